"""When rank 0 takes snapshots for its reporter, and how long it took to get going."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from coadapt.model import BatchConfig
from coadapt.train.batch.tuning import RunSnapshot, take_snapshot
from coadapt.train.report.reporter import Reporter
from coadapt.train.rescale.pause import Pause
from coadapt.train.session import Session

# The first report soon after the start: until then the scheduler knows nothing of this
# placement.
FIRST_REPORT_S = 2.0
# Weight of the newest step in the reported step time.
STEP_TIME_WEIGHT = 0.1
_loaded_at = time.monotonic()
PROCESS_STAT = Path("/proc/self/stat")
# Field 22 of it, counted from the one after the command's name (proc(5)).
START_TIME_FIELD = 19


class Telemetry:
    """Between the training loop of rank 0 and its reporter; does nothing slow."""

    def __init__(
        self,
        session: Session,
        reporter: Reporter,
        num_epochs: int,
        cost: Callable[[], Pause | float],
    ) -> None:
        """`cost`: asked after the first step, what it cost training to come that
        far.
        """
        self._session = session
        self._reporter = reporter
        self._num_epochs = num_epochs
        self._cost: Callable[[], Pause | float] | None = cost
        self._due_at = time.monotonic() + min(
            FIRST_REPORT_S, session.config.times.report_every_s
        )
        self._decision: Future[BatchConfig | None] | None = None
        self._began_at: float | None = None
        self._step_time_s: float | None = None

    def begin_pass(self) -> None:
        """The loop asks for data; the step's clock starts with its first pass."""
        if self._began_at is None:
            self._began_at = time.monotonic()

    def break_off(self) -> None:
        """No step is under way: what comes next is no part of one."""
        self._began_at = None

    def end_step(self) -> None:
        """Note the step's time, take over the newest fit, report if it is time to."""
        assert self._began_at is not None, "a step ended that never began"
        now = time.monotonic()
        step_s = now - self._began_at
        self._began_at = None
        before_s = step_s if self._step_time_s is None else self._step_time_s
        self._step_time_s = before_s + STEP_TIME_WEIGHT * (step_s - before_s)
        if self._cost is not None:
            self._reporter.offer(self._cost())
            self._cost = None
        if self._reporter.params is not None:
            self._session.profiles.params[self._session.gpu_type] = (
                self._reporter.params
            )
        answer = self._reporter.answer
        if answer is not None:
            self._session.checkpoint_period.hazard_per_h = answer.hazard_per_h
        if now >= self._due_at:
            self._due_at = now + self._session.config.times.report_every_s
            self._report()

    def decide(self) -> None:
        """Begin to look for a better batch, by what was measured until now."""
        self._decision = self._reporter.better_batch(self._snapshot())

    def decided(self) -> BatchConfig | None:
        """Return the better batch that `decide` has led to, once; waits for it. None:
        there is none.
        """
        decision = self._decision
        self._decision = None
        return None if decision is None else decision.result()

    def batch_changed(self) -> None:
        """The scheduler is to hear soon of what was measured with another batch."""
        soon = min(FIRST_REPORT_S, self._session.config.times.report_every_s)
        self._due_at = min(self._due_at, time.monotonic() + soon)

    def retire(self) -> None:
        """Another takes over. Returns at once."""
        self._reporter.retire()

    def close(self) -> None:
        """Send a last report. Waits a few seconds at most."""
        self._report()
        self._reporter.close()

    def _report(self) -> None:
        self._reporter.offer(self._snapshot())

    def _snapshot(self) -> RunSnapshot:
        return take_snapshot(self._session, self._num_epochs, self._step_time_s)


def process_age_s(stat: Path = PROCESS_STAT) -> float:
    """Return the seconds since this process was started; without `stat`, since it
    loaded this file.
    """
    if not stat.exists():  # not on Linux
        return time.monotonic() - _loaded_at
    fields = stat.read_text().rpartition(")")[2].split()
    started_s = int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
