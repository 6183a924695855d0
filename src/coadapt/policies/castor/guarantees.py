"""Reservations: GPUs that some jobs get in a round before the knapsack gives the rest
by value.
"""

from typing import NamedTuple

import numpy as np

from coadapt.policies.castor.fairness import Fair
from coadapt.policies.solvers.arrays import JobFloats, JobInts


class Reservations(NamedTuple):
    """What is reserved for each job.

    gpus: the number of GPUs reserved, 0 for jobs without a reservation. goodput: a
    configuration serves a job's reservation if the job's goodput there is at least
    this. If not all reservations fit, as many reserved GPUs as possible are served.
    """

    gpus: JobInts
    goodput: JobFloats


def no_reservations(num_jobs: int) -> Reservations:
    """Return reservations of nothing."""
    return Reservations(np.zeros(num_jobs, dtype=np.int64), np.full(num_jobs, np.inf))


def fair_share_reservations(fair: Fair, rho_max: float) -> Reservations:
    """Return reservations for jobs whose least possible rho is at least `rho_max`.

    Each gets the goodput of its equal share of the most common type that it may use,
    on any configuration.
    """
    late = fair.least >= rho_max
    return Reservations(
        np.where(late, fair.gpus, 0),
        np.where(late, fair.goodput, np.inf),
    )
