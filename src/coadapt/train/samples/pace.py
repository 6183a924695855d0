"""In which steps the gradient's noise is measured, and after which ones the replicas
reach a consensus.
"""

import math
import time

# One step of each period is measured, from the first one on: a measured step costs 0.6
# ms more (two replicas on a busy CPU), and reading norms from a GPU waits for it. Two
# in a row where one replica without accumulation compares successive gradients.
MEASURE_PERIOD = 8
# Where nobody uses the noise scale (a fixed batch, no scheduler to report to, a script
# that does not ask), gradients are looked at only to see whether they are finite. A
# multiple of MEASURE_PERIOD.
WATCH_PERIOD = 64
# A consensus follows every step at first, where most mistakes of a script show, and
# later every step that takes SYNC_EVERY_S; of shorter ones, up to MEASURE_PERIOD share
# one, which costs 0.3-0.6 ms (two replicas on a busy CPU).
SYNCED_AT_FIRST = 50
SYNC_EVERY_S = 0.4
# Two measured steps in a row cost 0.15 to 0.4 ms of CPU on one replica: of steps far
# below a millisecond that is as much again. At most so often they cost 2 % at most;
# averages get 50 estimates a second all the same.
# Of this thread's CPU time: on a busy machine a fourth of all steps would be measured
# by the clock, as steps take several times longer by it.
PAIR_EVERY_CPU_S = 0.02
# Of steps below that, one in so many is timed, which costs 10 us on a busy machine. Not
# one in eight: so those in which the noise is measured are timed in their turn, and the
# mean is that of all steps.
ALL_TIMED_S = 0.002
TIMED_PERIOD = 7


def measures(step: int, *, compares: bool, period: int = MEASURE_PERIOD) -> bool:
    """Return whether `step` is measured. compares: successive steps make one
    estimate.
    """
    return step % period < (2 if compares else 1)


def cut_in_two(step: int) -> bool:
    """Return whether `step`, in a single pass otherwise, takes two passes so that they
    can be compared.
    """
    return measures(step, compares=False)


class Pace:
    """All replicas have the same stride: rank 0 sets the next one, and all take it over
    at the same step.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.measuring = False  # the present step
        self._synced: tuple[int, float] | None = None
        self._pair_at = -math.inf
        self._in_pair = False
        self._all_timed = True

    def measures(self, step: int, *, compares: bool, used: bool = True) -> bool:
        """Return whether `step`, which begins now, is measured: as `measures` says, or
        less often.

        used: whether anybody uses the noise scale. Less often only where one replica
        alone compares successive steps, so that replicas never differ.
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
        """Return whether it is to be measured how long `step`, which begins now,
        takes.
        """
        return self._all_timed or step % TIMED_PERIOD == 0

    def syncs(self, step: int) -> bool:
        """Return whether the replicas reach a consensus at the end of `step`."""
        return step % self.stride == 0

    def next(self, step: int) -> int:
        """Return the stride that rank 0 finds right, a divisor of MEASURE_PERIOD; a
        consensus is due now.
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
