"""Counters for Prometheus that are updated with each event: rescales, failures, waits,
decisions, GPU time by use.
"""

# Counters are kept here and not summed over live jobs: a job that ends would take its
# share with it, and Prometheus reads a falling counter as a restart. Counters start at
# 0 when the scheduler starts.
#
# GPU time is divided by use. The sum over all uses is GPUs times wall time, so the
# share of each loss is a division in PromQL. The uses are:
#
#   productive  the job has reported a step since it was started
#   unreported  the job runs and has reported no step: it still starts, or its script
#               never reports
#   startup, rescale, stopping
#               between an order and its answer
#   idle        no job holds the GPU

from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

from coadapt import __version__
from coadapt.core.commands import Command, Solve
from coadapt.core.events import (
    Event,
    NodeJoined,
    NodeLost,
    PlanFailed,
    PlanReady,
    SchedulerRestarted,
)
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, Usage
from coadapt.runtime.index_writer import touched_jobs
from coadapt.service.figures.contributions import JobContribution, Sums, contribution_of

MINUTE = 60.0
HOUR = 3_600.0
DAY = 86_400.0
WAIT_BUCKETS_S = (
    1,
    5,
    15,
    MINUTE,
    5 * MINUTE,
    15 * MINUTE,
    HOUR,
    4 * HOUR,
    12 * HOUR,
    DAY,
    7 * DAY,
)
COMPLETION_BUCKETS_S = (
    MINUTE,
    5 * MINUTE,
    15 * MINUTE,
    HOUR,
    4 * HOUR,
    12 * HOUR,
    DAY,
    3 * DAY,
    14 * DAY,
)
DECISION_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60)
PAUSE_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)

IDLE = "idle"  # no job holds the GPU


class Tally:
    """An observer of the runtime that counts once `begin` was called."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        info = Gauge(
            "coadapt_build_info",
            "The running version",
            ["version"],
            registry=self.registry,
        )
        info.labels(__version__).set(1)
        self._figures = _Figures(self.registry)
        self.sums = Sums()
        """Sums over the live jobs at this moment."""
        self._seen: dict[JobId, JobContribution] = {}
        self._asked_at: tuple[int, float] = (0, 0.0)
        self._counting = False
        self._at = 0.0
        self._num_gpus = 0
        self.plan_at: float | None = None
        """When the last valid plan arrived, s; None before the first."""

    def begin(self, state: SchedulerState) -> None:
        """Count from `state` on. Earlier events were counted by another process."""
        self._counting = True
        self._at = state.at
        self._num_gpus = _capacity(state)
        self.sums = Sums()
        self._seen = {}
        for job in state.jobs.values():
            if job.state not in ENDED:
                self._seen[job.id] = contribution_of(job, state.nodes)
                self.sums.put(self._seen[job.id])

    def upto(self, at: float) -> None:
        """Count GPU time up to instant `at`, s."""
        since_s = at - self._at
        if since_s <= 0.0:
            return
        self._at = at
        num_idle = float(self._num_gpus)
        for use, num_gpus in self.sums.num_gpus.items():
            if num_gpus:
                self._figures.gpu_s_of[use].inc(num_gpus * since_s)
                num_idle -= num_gpus
        if num_idle > 0.0:
            self._figures.gpu_s_of[IDLE].inc(num_idle * since_s)

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        if not self._counting:
            return
        self.upto(state.at)
        if isinstance(event, NodeJoined | NodeLost):
            self._num_gpus = _capacity(state)
        everyone = isinstance(event, SchedulerRestarted)
        for job in (
            list(state.jobs.values())
            if everyone
            else touched_jobs(event, commands, state)
        ):
            self._follow(job, state)
        if isinstance(event, NodeJoined):
            self._follow_leaving(state)
        self._note_round(event, commands, state)

    def _follow_leaving(self, state: SchedulerState) -> None:
        """Update jobs that are being stopped: they may hold GPUs of a node that was
        lost and has joined again.
        """
        for job in [
            job for job in state.jobs.values() if job.status.state is JobState.STOPPING
        ]:
            self._follow(job, state)

    def _follow(self, job: JobRecord, state: SchedulerState) -> None:
        seen = self._seen.pop(job.id, None)
        if seen is not None:
            self.sums.take(seen)
        self._count(
            seen.usage if seen is not None else Usage(accounted_at=job.submitted_at),
            job,
        )
        if job.state in ENDED:
            self._figures.ended.labels(job.state.value).observe(
                state.at - job.submitted_at
            )
            return
        self._seen[job.id] = contribution_of(job, state.nodes)
        self.sums.put(self._seen[job.id])

    def _count(self, before: Usage, job: JobRecord) -> None:
        usage = job.usage
        figures = self._figures
        if before is usage:
            return
        figures.rescales.inc(usage.num_rescales - before.num_rescales)
        figures.in_place.inc(usage.costs.num_in_place - before.costs.num_in_place)
        figures.failures.inc(usage.num_failures - before.num_failures)
        cost_s = usage.costs.total_s - before.costs.total_s
        figures.rescale_s.inc(max(cost_s, 0.0))
        if usage.costs.num_measured > before.costs.num_measured:
            figures.costs.observe(cost_s)
        if before.started_at is None and usage.started_at is not None:
            figures.waits.observe(usage.started_at - job.submitted_at)

    def _note_round(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        for command in commands:
            if isinstance(command, Solve):
                self._asked_at = (command.round, state.at)
        if not isinstance(event, PlanReady | PlanFailed):
            return
        number, asked_at = self._asked_at
        if event.round == number:
            self._figures.decisions.observe(max(event.at - asked_at, 0.0))
        if isinstance(event, PlanFailed) or state.plan_error:
            self._figures.plan_failures.inc()
        else:
            self.plan_at = state.at


class _Figures:
    """The counters and histograms."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(
            name: str, text: str, buckets: Sequence[float], *labels: str
        ) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self.rescales = counter("coadapt_rescales", "Rescales")
        self.in_place = counter(
            "coadapt_rescales_in_place", "Rescales without a restart"
        )
        self.rescale_s = counter(
            "coadapt_rescale_seconds",
            "Training time lost to starts and rescales, s",
        )
        self.failures = counter(
            "coadapt_failures", "Failures of jobs that count against max_failures"
        )
        self.plan_failures = counter(
            "coadapt_plan_failures", "Decisions without a valid plan"
        )
        gpu_s = counter(
            "coadapt_job_gpu_seconds",
            "GPU time by use; the sum is GPUs times wall time, s",
            "state",
        )
        self.gpu_s_of = {use: gpu_s.labels(use) for use in (*Sums().num_gpus, IDLE)}
        self.waits = histogram(
            "coadapt_job_wait_seconds",
            "Time from a job's submission to its first start, s",
            WAIT_BUCKETS_S,
        )
        self.ended = histogram(
            "coadapt_job_completion_seconds",
            "Time from a job's submission to its end, s",
            COMPLETION_BUCKETS_S,
            "state",
        )
        self.costs = histogram(
            "coadapt_rescale_cost_seconds",
            "Training time lost to one start or rescale, s",
            PAUSE_BUCKETS_S,
        )
        self.decisions = histogram(
            "coadapt_decision_seconds",
            "Time from requesting a plan to its arrival, s",
            DECISION_BUCKETS_S,
        )


def _capacity(state: SchedulerState) -> int:
    return sum(node.num_gpus for node in state.nodes.values())
