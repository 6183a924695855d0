"""In which steps the gradient noise is measured, and after which steps the replicas
reach a consensus.
"""

import math
import time

# One step of each period is measured, from the first one on: a measured step costs 0.6
# ms more (two replicas on a busy CPU), and reading norms from a GPU waits for it. Two
# in a row where one replica without accumulation compares successive gradients.
MEASURE_PERIOD = 8
# The period if the noise scale is not used (a fixed batch, no scheduler to report to,
# and a script that does not read it). Then gradients are only checked for infinite
# values and NaN. A multiple of MEASURE_PERIOD.
WATCH_PERIOD = 64
# At first a consensus follows every step, because most errors of a script show then.
# Later it follows every step of at least SYNC_EVERY_S. Up to MEASURE_PERIOD shorter
# steps share a consensus, which costs 0.3-0.6 ms (two replicas on a busy CPU).
SYNCED_AT_FIRST = 50
SYNC_EVERY_S = 0.4
# The shortest time between two such pairs. Two measured steps in a row cost 0.15 to 0.4
# ms of CPU on one replica, which doubles the cost of steps far below a millisecond.
# With this limit they cost at most 2 %, and averages still get 50 estimates a second.
# The time is this thread's CPU time. By the wall clock, steps take several times longer
# on a busy machine, and a fourth of all steps would be measured.
PAIR_EVERY_CPU_S = 0.02
# If steps are shorter than ALL_TIMED_S, one in TIMED_PERIOD is timed, which costs 10 us
# on a busy machine. The period is not eight, so that steps in which the noise is
# measured are timed in turn, and the mean is that of all steps.
ALL_TIMED_S = 0.002
TIMED_PERIOD = 7


def measures(step: int, *, compares: bool, period: int = MEASURE_PERIOD) -> bool:
    """Return whether `step` is measured. compares: whether two successive steps give
    one estimate.
    """
    return step % period < (2 if compares else 1)


def cut_in_two(step: int) -> bool:
    """Return whether `step`, which otherwise has a single pass, has two passes so that
    these can be compared.
    """
    return measures(step, compares=False)


class Pace:
    """The steps that are measured, timed and followed by a consensus. All replicas have
    the same stride: rank 0 sets the next one, and all use it from the same step on.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.measuring = False  # the present step
        self._synced: tuple[int, float] | None = None
        self._pair_at = -math.inf
        self._in_pair = False
        self._all_timed = True

    def measures(self, step: int, *, compares: bool, used: bool = True) -> bool:
        """Return whether `step`, which begins now, is measured: as in the function
        `measures`, or less often.

        used: whether the noise scale is used. Only a single replica that compares
        successive steps measures less often, so replicas never differ.
        """
        period = MEASURE_PERIOD if used else WATCH_PERIOD
        if not measures(step, compares=compares, period=period):
            return False
        if not compares:
            return True
        if step % MEASURE_PERIOD == 0:
            now = time.thread_time()
            self._in_pair = now - self._pair_at >= PAIR_EVERY_CPU_S
            if self._in_pair:
                self._pair_at = now
        return self._in_pair

    def times(self, step: int) -> bool:
        """Return whether `step`, which begins now, is timed."""
        return self._all_timed or step % TIMED_PERIOD == 0

    def syncs(self, step: int) -> bool:
        """Return whether the replicas reach a consensus at the end of `step`."""
        return step % self.stride == 0

    def next(self, step: int) -> int:
        """Return rank 0's choice of the next stride, a divisor of MEASURE_PERIOD. Call
        this when a consensus is due.
        """
        before = self._synced
        self._synced = (step, time.monotonic())
        self._all_timed = True
        if before is None or step < SYNCED_AT_FIRST or step <= before[0]:
            return 1
        steps = step - before[0]
        since_s = self._synced[1] - before[1]
        self._all_timed = since_s >= ALL_TIMED_S * steps
        fitting = min(int(SYNC_EVERY_S * steps / since_s), MEASURE_PERIOD)
        return 1 << max(fitting.bit_length() - 1, 0)
