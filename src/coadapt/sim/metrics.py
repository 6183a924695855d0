"""Figures of one run: completion times, fairness, utilisation, and where the time went.

The run's History has what happened. The completion time of a job alone on its fair
share is computed from the same applications that the simulated cluster uses.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np

from coadapt.core.instants import next_multiple
from coadapt.core.lifecycle import JobState
from coadapt.goodput.batch import split_total
from coadapt.goodput.efficiency import gain
from coadapt.model import BatchConfig, BatchLimits, JobId, JobSpec, Node
from coadapt.runtime.history import History, JobHistory
from coadapt.sim.agent import kept_batch, within_memory
from coadapt.sim.applications import (
    Application,
    KnowsItsTimeAlone,
    packed,
    step_s,
)
from coadapt.sim.ramp import steps_to_come
from coadapt.sim.static_fairness import static_fairness
from coadapt.sim.workload import TraceJob, Workload

# A job that took 5 % longer than on its fair share was treated unfairly (Shockwave,
# NSDI'23).
UNFAIR_ABOVE = 1.05
# Gains by batch that are kept for jobs of the same application.
GAINS_KEPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The inputs of a run that the figures need. Durations are in seconds."""

    workload: Workload
    applications: Mapping[str, Application]
    cluster: tuple[Node, ...]
    round_s: float
    rescale_s: float

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.cluster)

    @property
    def gpu_type(self) -> str:
        """The GPU type that the cluster has most of, the first by name on ties."""
        return commonest_type(self.cluster)


def commonest_type(cluster: Iterable[Node]) -> str:
    """Return the GPU type that `cluster` has most GPUs of, the first by name on
    ties.
    """
    counts = gpus_by_type(cluster)
    return max(sorted(counts), key=counts.__getitem__)


def gpus_per_node(cluster: Iterable[Node], gpu_type: str) -> int:
    """Return how many GPUs the largest node of `gpu_type` has."""
    return max(node.num_gpus for node in cluster if node.gpu_type == gpu_type)


def gpus_by_type(cluster: Iterable[Node]) -> dict[str, int]:
    """Return how many GPUs of each type `cluster` has."""
    counts: Counter[str] = Counter()
    for node in cluster:
        counts[node.gpu_type] += node.num_gpus
    return dict(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures over the jobs that succeeded; times in seconds, shares in [0, 1].

    makespan_s: from the first arrival to the last end. rho_max, unfair_share: see
    `finish_time_fairness`. utilisation: GPU-seconds held over GPU-seconds of the
    cluster, from the first arrival to the last end. num_rescales: changes of allocation
    after the first start, of all jobs. time_*: shares of all jobs' time from submission
    to end: spent in steps (time goodput), and lost to waiting, starting and rescaling.
    efficiency: progress per sample, mean over jobs. decision_ms_*: CPU time of the
    policy. rho_isolated_max, unfair_isolated_share: the same as rho_max and
    unfair_share, for the ρ of `static_fairness`. num_deadlines: jobs that have a
    deadline. num_deadlines_met: jobs that ended by their deadline. cost, node_hours,
    idle_node_hours, num_nodes_lost: of bought nodes, 0 if no node was bought; see
    sim/market/costs.py.
    """

    num_jobs: int
    jct_mean_s: float
    jct_p50_s: float
    jct_p90_s: float
    jct_p99_s: float
    makespan_s: float
    rho_max: float
    unfair_share: float
    utilisation: float
    num_rescales: int
    time_goodput: float
    time_wait: float
    time_start: float
    time_rescale: float
    efficiency: float
    decision_ms_p50: float
    decision_ms_max: float
    rho_isolated_max: float
    unfair_isolated_share: float
    num_deadlines: int
    num_deadlines_met: int
    cost: float = 0.0
    node_hours: float = 0.0
    idle_node_hours: float = 0.0
    num_nodes_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The result of a job that succeeded. Times are in seconds, instants by the
    workload's clock.

    num_gpus: requested. first_wait_s: from arrival to the first start. wait_s: all time
    without GPUs. gpu_s: GPU-seconds held. num_rescales: changes of allocation after the
    first start. rho: `finish_time_fairness`; rho_isolated: `static_fairness`.
    deadline_s: None for a job without one. cost: its part of the cost of bought nodes.
    """

    id: JobId
    application: str
    num_gpus: int
    jct_s: float
    rho: float
    tenant: str
    arrival_s: float
    started_s: float
    ended_s: float
    first_wait_s: float
    wait_s: float
    gpu_s: float
    num_rescales: int
    rho_isolated: float
    deadline_s: float | None
    cost: float = 0.0


def job_outcomes(history: History, facts: RunFacts) -> tuple[JobOutcome, ...]:
    """Return the outcome of each job that succeeded, in the order of the history."""
    rho = finish_time_fairness(history, facts)
    isolated = static_fairness(history, _times_alone(history, facts), facts.num_gpus)
    applications = {job.id: job.application for job in facts.workload.jobs}
    found = []
    for job in _succeeded(history):
        arrival_s = job.submitted_at
        ended_s = job.submitted_at + _jct_s(job)
        started_s = next(
            (span.start for span in job.spans if span.num_gpus), job.submitted_at
        )
        found.append(
            JobOutcome(
                id=job.id,
                application=applications[job.id],
                num_gpus=job.spec.replicas.requested,
                jct_s=_jct_s(job),
                rho=rho[job.id],
                tenant=job.spec.tenant,
                arrival_s=arrival_s,
                started_s=started_s,
                ended_s=ended_s,
                first_wait_s=started_s - arrival_s,
                wait_s=_wait_s(job),
                gpu_s=_gpu_s(job),
                num_rescales=job.usage.num_rescales,
                rho_isolated=isolated[job.id],
                deadline_s=job.spec.deadline_at,
            )
        )
    return tuple(found)


def _wait_s(job: JobHistory) -> float:
    return sum(span.end - span.start for span in job.spans if not span.num_gpus)


def _gpu_s(job: JobHistory) -> float:
    return sum(span.num_gpus * (span.end - span.start) for span in job.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """One decision of a policy, and the cluster after it. at_s: by the workload's
    clock.

    num_running: jobs that hold GPUs; num_waiting: jobs that were submitted, have not
    ended and hold no GPU. gpus_held: a shared GPU counts by the job's share.
    decision_ms: CPU time. error: why the plan failed, if it did.
    """

    round: int
    at_s: float
    num_running: int
    num_waiting: int
    gpus_held: float
    gpus_total: int
    decision_ms: float
    error: str


def round_outcomes(
    history: History, decision_s: Sequence[float], facts: RunFacts
) -> tuple[RoundOutcome, ...]:
    """Return all rounds in order; `decision_s` has the CPU seconds of each."""
    spans = [span for job in history.jobs.values() for span in job.spans]
    running = _Level([(each.start, each.end, 1.0) for each in spans if each.num_gpus])
    waiting = _Level(
        [(each.start, each.end, 1.0) for each in spans if not each.num_gpus]
    )
    held = _Level([(each.start, each.end, each.num_gpus) for each in spans])
    found = []
    for index, each in enumerate(history.rounds):
        decided_s = decision_s[index] if index < len(decision_s) else 0.0
        found.append(
            RoundOutcome(
                round=each.round,
                at_s=each.at,
                num_running=round(running.at(each.at)),
                num_waiting=round(waiting.at(each.at)),
                gpus_held=round(held.at(each.at), 6),
                gpus_total=facts.num_gpus,
                decision_ms=round(1000 * decided_s, 3),
                error=each.error,
            )
        )
    return tuple(found)


class _Level:
    """The sum of amounts that hold at an instant. Each amount is given as (start, end,
    amount), and holds from its start on, up to just before its end.
    """

    def __init__(self, stretches: Sequence[tuple[float, float, float]]) -> None:
        changes = sorted(
            change
            for start, end, amount in stretches
            for change in ((start, amount), (end, -amount))
        )
        self._at = [at for at, _ in changes]
        self._sum = [0.0, *accumulate(step for _, step in changes)]

    def at(self, instant: float) -> float:
        return self._sum[bisect_right(self._at, instant)]


def measure(
    history: History,
    outcomes: Sequence[JobOutcome],
    decision_s: Sequence[float],
    facts: RunFacts,
) -> Metrics:
    """Return the figures of a run. outcomes: the result of `job_outcomes`. Raises
    ValueError if no job succeeded.
    """
    jobs = _succeeded(history)
    if not jobs:
        raise ValueError(
            f"{facts.workload.name}: no job succeeded, so there is nothing to measure"
        )
    jct_s = [outcome.jct_s for outcome in outcomes]
    rho = [outcome.rho for outcome in outcomes]
    isolated = [outcome.rho_isolated for outcome in outcomes]
    first_at = min(job.submitted_at for job in history.jobs.values())
    makespan_s = max(job.ended_at or 0.0 for job in jobs) - first_at
    held_gpu_s = sum(map(_gpu_s, jobs))
    time = _time_shares(jobs, facts, sum(jct_s))
    p50, p90, p99 = np.percentile(jct_s, (50, 90, 99))
    decision_ms = [1000 * each for each in decision_s] or [0.0]
    return Metrics(
        num_jobs=len(history.jobs),
        jct_mean_s=sum(jct_s) / len(jobs),
        jct_p50_s=float(p50),
        jct_p90_s=float(p90),
        jct_p99_s=float(p99),
        makespan_s=makespan_s,
        rho_max=max(rho),
        unfair_share=sum(each > UNFAIR_ABOVE for each in rho) / len(rho),
        utilisation=held_gpu_s / (facts.num_gpus * makespan_s),
        num_rescales=sum(job.usage.num_rescales for job in history.jobs.values()),
        time_goodput=time.goodput,
        time_wait=time.wait,
        time_start=time.start,
        time_rescale=time.rescale,
        efficiency=_mean_efficiency(jobs),
        decision_ms_p50=float(np.median(decision_ms)),
        decision_ms_max=max(decision_ms),
        rho_isolated_max=max(isolated),
        unfair_isolated_share=sum(each > UNFAIR_ABOVE for each in isolated) / len(rho),
        num_deadlines=sum(
            job.spec.deadline_at is not None for job in facts.workload.jobs
        ),
        num_deadlines_met=sum(map(_met_deadline, outcomes)),
    )


class _TimeShares(NamedTuple):
    """Shares of the jobs' completion times, which add up to 1."""

    goodput: float
    wait: float
    start: float
    rescale: float


def _time_shares(
    jobs: Sequence[JobHistory], facts: RunFacts, total_s: float
) -> _TimeShares:
    """Return how `total_s`, the sum of completion times in s, was spent."""
    traces = {job.id: job for job in facts.workload.jobs}
    wait_s = sum(map(_wait_s, jobs))
    start_s = sum(
        min(job.usage.costs.total_s, _start_s(traces[job.id], facts)) for job in jobs
    )
    rescale_s = sum(job.usage.costs.total_s for job in jobs) - start_s
    return _TimeShares(
        goodput=1.0 - (wait_s + start_s + rescale_s) / total_s,
        wait=wait_s / total_s,
        start=start_s / total_s,
        rescale=rescale_s / total_s,
    )


def _mean_efficiency(jobs: Sequence[JobHistory]) -> float:
    """Return the mean efficiency of the jobs that trained; 1 if none did."""
    measured = [job.measured for job in jobs]
    shares = [each.progress / each.samples for each in measured if each.samples]
    return float(np.mean(shares or [1.0]))


def _met_deadline(outcome: JobOutcome) -> bool:
    return outcome.deadline_s is not None and outcome.ended_s <= outcome.deadline_s


def finish_time_fairness(history: History, facts: RunFacts) -> dict[JobId, float]:
    """Return ρ of each job that succeeded: its JCT over its JCT on an isolated fair
    share (Themis, NSDI'20).

    The fair share is 1/N of the cluster, where N is the mean number of active jobs over
    the job's life. It is rounded up to whole GPUs. It is at most the GPUs of the type
    that the cluster has most of, and it is within the job's limits. On that type the
    job runs alone on as few nodes as possible: it waits for the next round, pays one
    start, and trains.

    An adaptive job trains each epoch with the best batch among the doublings of its
    initial batch, by the application's true gradient statistics. A job under `schedule`
    follows its batch schedule. Any other job trains with the requested batch.
    """
    traces = {job.id: job for job in facts.workload.jobs}
    active = _ActiveJobs(list(history.jobs.values()))
    alone_s: dict[tuple[str, JobSpec, int], float] = {}
    rho = {}
    num_gpus = facts.num_gpus
    most_gpus = gpus_by_type(facts.cluster)[facts.gpu_type]
    for job in _succeeded(history):
        spec = traces[job.id].spec
        share_gpus = min(num_gpus / active.mean_during(job), most_gpus)
        num_replicas = _fair_replicas(spec, share_gpus)
        key = (traces[job.id].application, _alike(spec), num_replicas)
        if key not in alone_s:
            alone_s[key] = _alone_s(facts, *key)
        first_round_at = next_multiple(
            facts.round_s, after=0.0, not_before=job.submitted_at
        )
        start_s = _start_s(traces[job.id], facts)
        fair_s = first_round_at - job.submitted_at + start_s + alone_s[key]
        rho[job.id] = _jct_s(job) / fair_s
    return rho


def _times_alone(history: History, facts: RunFacts) -> dict[JobId, float]:
    """Return the seconds that each job that succeeded trains undisturbed on the GPUs
    that it requested.

    If the trace contains this time, it is used. The time of the start is not included.
    """
    traces = {job.id: job for job in facts.workload.jobs}
    known: dict[tuple[str, JobSpec, int], float] = {}
    found = {}
    for job in _succeeded(history):
        name = traces[job.id].application
        spec = _alike(traces[job.id].spec)
        application = facts.applications[name]
        if isinstance(application, KnowsItsTimeAlone):
            found[job.id] = application.exclusive_s
            continue
        # A cluster may have fewer GPUs of one type than a job requests by hand.
        most = gpus_by_type(facts.cluster)[facts.gpu_type]
        num_replicas = max(min(spec.replicas.requested, most), spec.replicas.min)
        key = (name, spec, num_replicas)
        if key not in known:
            known[key] = _alone_s(facts, *key)
        found[job.id] = known[key]
    return found


def _alike(spec: JobSpec) -> JobSpec:
    """Return `spec` without the fields that do not affect a job's speed, such as its
    name and its tenant. Jobs with equal results have the same time alone.
    """
    return replace(
        spec,
        name="alone",
        tenant="anybody",
        priority=0,
        deadline_at=None,
        length=None,
        launch=None,
    )


class _ActiveJobs:
    """The number of jobs that were submitted and have not ended, over time. Kept as its
    integral, which is linear between two changes.
    """

    def __init__(self, jobs: Sequence[JobHistory]) -> None:
        changes = [(job.submitted_at, 1) for job in jobs]
        changes += [(job.ended_at, -1) for job in jobs if job.ended_at is not None]
        changes.sort()
        self._at = np.array([at for at, _ in changes])
        counts = np.cumsum([step for _, step in changes])
        self._integral = np.concatenate(
            ([0.0], np.cumsum(counts[:-1] * np.diff(self._at)))
        )

    def mean_during(self, job: JobHistory) -> float:
        """Return the mean number of active jobs over the life of `job`, which has
        ended. The job itself counts, so the mean is >= 1.
        """
        start, end = np.interp(
            [job.submitted_at, job.ended_at or 0.0], self._at, self._integral
        )
        return max(float(end - start) / _jct_s(job), 1.0)


def _start_s(trace: TraceJob, facts: RunFacts) -> float:
    return facts.rescale_s if trace.rescale_s is None else trace.rescale_s


def _fair_replicas(spec: JobSpec, share_gpus: float) -> int:
    limits = spec.batch
    # A whole share must not be rounded up by the last bit of a quotient.
    wanted = math.ceil(share_gpus - 1e-9)
    kept = limits.requested if limits.schedule is None else max(limits.schedule.totals)
    most = (limits.max_total if spec.adaptive else kept) // limits.min_atomic
    return max(min(wanted, spec.replicas.max, most), spec.replicas.min)


def _alone_s(
    facts: RunFacts, application_name: str, spec: JobSpec, num_replicas: int
) -> float:
    """Return the seconds that a job trains alone on `num_replicas` packed GPUs."""
    application = facts.applications[application_name]
    setting = packed(
        num_replicas, gpus_per_node(facts.cluster, facts.gpu_type), facts.gpu_type
    )
    if spec.batch.schedule is not None:
        return sum(
            count * _step_alone_s(facts, application, spec, total, num_replicas)
            for total, count in steps_to_come(application, spec).items()
        )
    limits = within_memory(spec.batch, application, setting)
    batches = _batches(spec, limits, num_replicas)
    step_times = {batch.total: step_s(application, setting, batch) for batch in batches}
    initial = spec.batch.initial
    seconds = 0.0
    rates = [
        [
            each / step_time_s
            for each in _gains(cast("Hashable", application), total, initial)
        ]
        for total, step_time_s in step_times.items()
    ]
    for epoch, rate in enumerate(map(max, zip(*rates, strict=True))):
        seconds += (
            application.progress_at(epoch + 1) - application.progress_at(epoch)
        ) / rate
    return seconds


@lru_cache(maxsize=GAINS_KEPT)
def _gains(application: Hashable, total: int, initial: int) -> tuple[float, ...]:
    """Return for each epoch how many steps of `initial` samples one step of `total`
    samples is worth.
    """
    truth = cast("Application", application)
    stats = [truth.grad_stats(total, epoch) for epoch in range(truth.num_epochs)]
    return tuple(gain(total / initial, each.sqr, each.var) for each in stats)


def _step_alone_s(
    facts: RunFacts,
    application: Application,
    spec: JobSpec,
    total: int,
    num_replicas: int,
) -> float:
    """Return the seconds of a step of `total` samples, on as many of the replicas as
    they can fill.
    """
    filled = max(min(num_replicas, total // spec.batch.min_atomic), spec.replicas.min)
    setting = packed(
        filled, gpus_per_node(facts.cluster, facts.gpu_type), facts.gpu_type
    )
    limits = within_memory(spec.batch, application, setting)
    return step_s(application, setting, kept_batch(limits, filled, total))


def _batches(
    spec: JobSpec, limits: BatchLimits, num_replicas: int
) -> list[BatchConfig]:
    totals = [limits.requested]
    if spec.adaptive:
        doublings = int(math.log2(limits.max_total / limits.initial))
        totals += [limits.initial << power for power in range(doublings + 1)]
    fitting = {total for total in totals if total >= num_replicas * limits.min_atomic}
    return [
        split_total(
            total, num_replicas, limits, accumulate_alone=True, exact=not spec.adaptive
        )
        for total in sorted(fitting or {limits.requested})
    ]


def _succeeded(history: History) -> list[JobHistory]:
    return [job for job in history.jobs.values() if job.state is JobState.SUCCEEDED]


def _jct_s(job: JobHistory) -> float:
    assert job.ended_at is not None, "only jobs that ended are measured"
    return job.ended_at - job.submitted_at
