"""Reservations: GPUs that a round gives to some jobs before it gives the rest by
value.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.castor.fairness import Fair
from coadapt.policies.solvers.arrays import FloatArray, IntArray

# What `rho_max` guarantees comes before all other reservations.
SHARES_FIRST = 100.0
ANY_TYPE = -1


class Reservations(NamedTuple):
    """What is reserved for each job.

    gpus_J: at least so many, 0 where nothing is; type_J: of this GPU type, or ANY_TYPE;
    goodput_J: or any size that does as much, infinity: none. urgency_J: what a GPU
    counts where not all reservations fit.
    """

    gpus_J: IntArray
    type_J: IntArray
    goodput_J: FloatArray
    urgency_J: FloatArray


def no_reservations(num_jobs: int) -> Reservations:
    """Return reservations of nothing."""
    return Reservations(
        np.zeros(num_jobs, dtype=np.int64),
        np.full(num_jobs, ANY_TYPE),
        np.full(num_jobs, np.inf),
        np.ones(num_jobs),
    )


def of_shares(fair: Fair, rho_max: float) -> Reservations:
    """Return reservations of their fair share for all jobs that are late."""
    late_J = fair.least_J >= rho_max
    return Reservations(
        np.where(late_J, fair.gpus_J, 0),
        np.where(late_J, fair.type_J, ANY_TYPE),
        np.where(late_J, fair.goodput_J, np.inf),
        np.where(late_J, SHARES_FIRST, 1.0),
    )
