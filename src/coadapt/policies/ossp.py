"""Least makespan of the jobs that are there: a baseline of Gavel's and Shockwave's
comparisons (OSSP).
"""

from typing import ClassVar

import numpy as np

from coadapt.model import ClusterView, Plan
from coadapt.policies.allocation.paced_jobs import DividedTime, FloatArray, PacedJobs
from coadapt.policies.allocation.time_share_rounds import RoundOptions
from coadapt.policies.allocation.turns import GAVEL_ROUND_S
from coadapt.policies.base import PolicyCard
from coadapt.policies.solvers.time_shares import SLACK, central_max_min, max_min

# The released code looks for T by bisection between these, until both ends are within
# the tolerance.
BISECTION_S = (100.0, 1e6)


class Ossp:
    """Every job gets the rate at which all end together, as early as can be.

    round_s, resolve_s, hold_back: see RoundOptions. tolerance: 0 is exact; otherwise T
    is found by bisection to within this part, as in the released code (0.05), and lies
    above the optimum. central: of equally good parts the most central. Jobs that do not
    tell their length count as half done.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="least makespan, a baseline of Gavel, OSDI 2020, and Shockwave, NSDI 2023",
        decides="part of the time on each GPU type",
        oracle="time left",
        needs_scipy=True,
    )

    def __init__(
        self,
        *,
        round_s: float = GAVEL_ROUND_S,
        resolve_s: float = 0.0,
        hold_back: bool = False,
        tolerance: float = 0.0,
        central: bool = False,
    ) -> None:
        if not 0.0 <= tolerance < 1.0:
            raise ValueError(f"tolerance must be in [0, 1), got {tolerance}")
        self._tolerance = tolerance
        self._central = central
        options = RoundOptions(
            round_s=round_s, resolve_s=resolve_s, hold_back=hold_back
        )
        self._time = DividedTime(options, needs_length=True)

    def allocate(self, view: ClusterView) -> Plan:
        return self._time.plan(view, self._decide)

    def _decide(self, jobs: PacedJobs) -> FloatArray | None:
        slack = 0.0
        if self._tolerance:
            exact = max_min(jobs.base, jobs.left_J)
            if exact is None:
                return None
            rate_J = jobs.base.rates(exact)
            left_s_J = np.where(
                rate_J > 0.0, jobs.left_J / np.where(rate_J > 0.0, rate_J, 1.0), 0.0
            )
            least_s = float(np.max(left_s_J, initial=0.0))
            slack = 1.0 - least_s / bisected(least_s, self._tolerance)
        if self._central:
            return central_max_min(jobs.base, jobs.left_J, slack=slack)
        return max_min(jobs.base, jobs.left_J, slack=max(slack, SLACK))


def bisected(least_s: float, tolerance: float) -> float:
    """Return the T >= `least_s` at which a bisection that only sees whether T is
    possible stops.
    """
    low, high = BISECTION_S
    while high < least_s:
        low = high
        high = 10.0 * high
    while high > (1.0 + tolerance) * low:
        middle = (low + high) / 2.0
        if middle >= least_s:
            high = middle
        else:
            low = middle
    return high
