"""Taking turns: how long jobs that run are left in front of those that wait."""

import math
from collections.abc import Callable

from coadapt.model import ClusterView, JobView
from coadapt.policies.allocation.contenders import contenders

# The round of Gavel (OSDI'20), whose jobs share time: about ten rescales fit in.
GAVEL_ROUND_S = 360.0


class Turns:
    """Turns of turn_s seconds, counted from instant 0; with 0 every round begins one.

    A policy that orders jobs by what they used would otherwise swap equal jobs in each
    round, and pay a rescale for each swap. Raises ValueError for a turn that is no
    duration.
    """

    def __init__(self, turn_s: float) -> None:
        if not (math.isfinite(turn_s) and turn_s >= 0.0):
            raise ValueError(f"turn_s must be finite and >= 0, got {turn_s}")
        self._turn_s = turn_s
        self._number = -1

    def begins(self, at: float) -> bool:
        """Return whether a turn begins with the round at `at` (s). Call it once in a
        round.
        """
        number = int(at // self._turn_s) if self._turn_s else self._number + 1
        begins = number != self._number
        self._number = number
        return begins

    def ahead(self, view: ClusterView) -> Callable[[JobView], bool]:
        """Return which jobs go before all others: within a turn, those that run and
        those that never did.
        """
        if self.begins(view.at):
            return lambda _: False
        return lambda job: bool(job.allocation) or job.usage.started_at is None

    def by_time_left(
        self, view: ClusterView, left: Callable[[JobView], float | None]
    ) -> list[JobView]:
        """Return the jobs that contend, those with the least `left` first. Ties keep
        the view's order.

        Behind them come, in turns, those of which it is not known (None), the least
        attained service first.
        """
        ahead = self.ahead(view)

        def key(job: JobView) -> tuple[bool, bool, float]:
            known = left(job)
            if known is None:
                return True, not ahead(job), view.service_gpu_s(job)
            return False, False, known

        return sorted(contenders(view), key=key)
