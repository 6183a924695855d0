"""The report budget: how many reports and bytes per second of one job are kept, with
room for a burst.
"""

# Why a job has a budget
#
# Each report is an event, and events are kept for months. A job that reports as fast as
# it can, by a mistake or on purpose, would fill the journal's disk within hours. A
# normal job sends one or two kilobytes every 30 s. The budget allows a thousand times
# as much for some minutes, and about fifty times as much for ever.
#
# A dropped report does no harm, because the next one has the job's newer state. Dropped
# reports are counted, and the log and `coadapt doctor` show the count.

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from coadapt.model import JobId

REPORTS_BURST = 200
REPORTS_PER_S = 10.0
BYTES_BURST = 1_000_000
BYTES_PER_S = 4_000.0
JOBS_MAX = 10_000  # that are remembered
LOG_EVERY_S = 600.0  # of one job


class TooManyReportsError(RuntimeError):
    """A job sent more reports than its budget allows; this one was not kept.

    again_s: seconds until the job may report again.
    """

    def __init__(self, job: JobId, again_s: int) -> None:
        self.again_s = again_s
        super().__init__(
            f"{job} reports too much: at most {REPORTS_PER_S:g} reports and "
            f"{BYTES_PER_S:g} bytes per second are kept"
        )


class _Left:
    """The rest of a job's budget at instant `at` (s), its dropped reports, and when
    they were logged last.
    """

    __slots__ = ("at", "dropped", "logged_at", "num_bytes", "reports")

    def __init__(self, at: float) -> None:
        self.at = at
        self.reports = float(REPORTS_BURST)
        self.num_bytes = float(BYTES_BURST)
        self.dropped = 0
        self.logged_at = -math.inf


class ReportBudget:
    """Counts what jobs report. `take` is for one thread, `dropped` for any.

    tell: called with a sentence about a job of which reports are dropped, now and then.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._jobs: OrderedDict[JobId, _Left] = OrderedDict()
        self.dropped = 0

    def take(self, job: JobId, num_bytes: int) -> None:
        """Take a report of `num_bytes` in. Raises TooManyReportsError where the job's
        budget is used up.
        """
        now = self._clock()
        left = self._jobs.pop(job, None) or _Left(now)
        self._jobs[job] = left
        if len(self._jobs) > JOBS_MAX:
            self._jobs.popitem(last=False)
        elapsed = now - left.at
        left.at = now
        left.reports = min(left.reports + elapsed * REPORTS_PER_S, REPORTS_BURST)
        left.num_bytes = min(left.num_bytes + elapsed * BYTES_PER_S, BYTES_BURST)
        if left.reports >= 1.0 and left.num_bytes >= num_bytes:
            left.reports -= 1.0
            left.num_bytes -= num_bytes
            return
        self.dropped += 1
        left.dropped += 1
        if now - left.logged_at >= LOG_EVERY_S:
            left.logged_at = now
            self._tell(f"job {job} reports too much: {left.dropped} reports dropped")
        missing_s = max(
            (1.0 - left.reports) / REPORTS_PER_S,
            (num_bytes - left.num_bytes) / BYTES_PER_S,
        )
        raise TooManyReportsError(job, max(math.ceil(missing_s), 1))
