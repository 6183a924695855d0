"""Reservations: GPUs that some jobs get in a round before the knapsack gives the rest
by value.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.castor.fairness import Fair
from coadapt.policies.solvers.arrays import FloatArray, IntArray

# Urgency of the reservations of late jobs and of gangs that are served: all that there
# are now. Only its ratio to the urgency of other reservations matters.
SHARES_FIRST = 100.0
ANY_TYPE = -1


class Reservations(NamedTuple):
    """What is reserved for each job.

    A configuration serves a reservation if it has at least gpus_J GPUs of type type_J
    (ANY_TYPE: of any type), or if its goodput is at least goodput_J (infinity: the
    number of GPUs alone decides). gpus_J is 0 for jobs without a reservation. If not
    all reservations fit, a reserved GPU counts urgency_J.
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


def fair_share_reservations(fair: Fair, rho_max: float) -> Reservations:
    """Return reservations for jobs whose least possible rho is at least `rho_max`.

    Each gets its equal share: a number of GPUs of the most common type that it may use,
    or any configuration with at least that goodput.
    """
    late_J = fair.least_J >= rho_max
    return Reservations(
        np.where(late_J, fair.gpus_J, 0),
        np.where(late_J, fair.type_J, ANY_TYPE),
        np.where(late_J, fair.goodput_J, np.inf),
        np.where(late_J, SHARES_FIRST, 1.0),
    )
