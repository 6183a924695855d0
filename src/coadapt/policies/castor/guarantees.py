"""Reservations: GPUs that some jobs get in a round before the knapsack gives the rest
by value.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.castor.fairness import Fair
from coadapt.policies.solvers.arrays import FloatArray, IntArray


class Reservations(NamedTuple):
    """What is reserved for each job.

    A configuration serves a job's reservation if the job's goodput there is at least
    goodput_J. gpus_J is the number of GPUs reserved, 0 for jobs without a reservation:
    if not all reservations fit, as many reserved GPUs as possible are served.
    """

    gpus_J: IntArray
    goodput_J: FloatArray


def no_reservations(num_jobs: int) -> Reservations:
    """Return reservations of nothing."""
    return Reservations(np.zeros(num_jobs, dtype=np.int64), np.full(num_jobs, np.inf))


def fair_share_reservations(fair: Fair, rho_max: float) -> Reservations:
    """Return reservations for jobs whose least possible rho is at least `rho_max`.

    Each gets the goodput of its equal share of the most common type that it may use,
    on any configuration.
    """
    late_J = fair.least_J >= rho_max
    return Reservations(
        np.where(late_J, fair.gpus_J, 0),
        np.where(late_J, fair.goodput_J, np.inf),
    )
