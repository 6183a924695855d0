"""Figures of one run: completion times, fairness, utilisation, and where the time went.

What happened comes from the run's History; what a job would have reached alone on its fair share comes from
the same truth that the world ran on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coadapt.core.lifecycle import JobState
from coadapt.goodput.batch import split_total
from coadapt.goodput.efficiency import gain
from coadapt.model import BatchConfig, JobId, JobSpec, Node
from coadapt.runtime.history import History, JobHistory
from coadapt.sim.applications import Application, packed, step_s
from coadapt.sim.workload import Workload

# A job that took 5 % longer than on its fair share was treated unfairly (Shockwave, NSDI'23).
UNFAIR_ABOVE = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run was made of, as far as the figures need it. Durations in seconds."""

    workload: Workload
    applications: Mapping[str, Application]
    cluster: tuple[Node, ...]
    round_s: float
    rescale_s: float

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Figures over the jobs that succeeded; times in seconds, shares in [0, 1].

    makespan_s: from instant 0 to the last end. rho_max, unfair_share: see `finish_time_fairness`.
    utilisation: GPU-seconds held over GPU-seconds there were, from instant 0 to the last end. num_rescales:
    changes of allocation after the first start, of all jobs. time_*: shares of all jobs' time from submission
    to end: spent in steps (time goodput), and lost to waiting, starting and rescaling. efficiency: progress
    per sample, mean over jobs. decision_ms_*: CPU time of the policy.
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


def measure(history: History, decision_s: Sequence[float], setting: Setting) -> Metrics:
    """Return the figures of a run. Raises ValueError if no job succeeded."""
    jobs = _succeeded(history)
    if not jobs:
        raise ValueError(f"{setting.workload.name}: no job succeeded, so there is nothing to measure")
    jct_s = [_jct_s(job) for job in jobs]
    rho = list(finish_time_fairness(history, setting).values())
    makespan_s = max(job.ended_at or 0.0 for job in jobs)
    held_gpu_s = sum(span.num_gpus * (span.end - span.start) for job in jobs for span in job.spans)
    wait_s = sum(span.end - span.start for job in jobs for span in job.spans if not span.num_gpus)
    start_s = sum(min(job.rescale_total_s, setting.rescale_s) for job in jobs)
    rescale_s = sum(job.rescale_total_s for job in jobs) - start_s
    total_s = sum(jct_s)
    p50, p90, p99 = np.percentile(jct_s, (50, 90, 99))
    decision_ms = [1000 * each for each in decision_s] or [0.0]
    return Metrics(
        num_jobs=len(history.jobs),
        jct_mean_s=total_s / len(jobs),
        jct_p50_s=float(p50),
        jct_p90_s=float(p90),
        jct_p99_s=float(p99),
        makespan_s=makespan_s,
        rho_max=max(rho),
        unfair_share=sum(each > UNFAIR_ABOVE for each in rho) / len(rho),
        utilisation=held_gpu_s / (setting.num_gpus * makespan_s),
        num_rescales=sum(job.num_rescales for job in history.jobs.values()),
        time_goodput=1.0 - (wait_s + start_s + rescale_s) / total_s,
        time_wait=wait_s / total_s,
        time_start=start_s / total_s,
        time_rescale=rescale_s / total_s,
        efficiency=float(np.mean([job.progress / job.samples for job in jobs if job.samples] or [1.0])),
        decision_ms_p50=float(np.median(decision_ms)),
        decision_ms_max=max(decision_ms),
    )


def finish_time_fairness(history: History, setting: Setting) -> dict[JobId, float]:
    """Return ρ of each job that succeeded: its JCT over its JCT on an isolated fair share (Themis, NSDI'20).

    The fair share is 1/N of the cluster, N being the mean number of active jobs over the job's life, rounded
    up to whole GPUs and kept within the job's limits. There the job runs alone on as few nodes as possible:
    it waits for the next round, pays one start, and trains; an adaptive job with the best batch of each epoch
    among the doublings of its initial one, as truth has it, any other with the requested batch.
    """
    traces = {job.id: job for job in setting.workload.jobs}
    active = _ActiveJobs(list(history.jobs.values()))
    alone_s: dict[tuple[str, JobSpec, int], float] = {}
    rho = {}
    for job in _succeeded(history):
        spec = traces[job.id].spec
        num_replicas = _fair_replicas(spec, setting.num_gpus / active.mean_during(job))
        key = (traces[job.id].application, spec, num_replicas)
        if key not in alone_s:
            alone_s[key] = _alone_s(setting, *key)
        first_round_at = max(math.ceil(job.submitted_at / setting.round_s), 1) * setting.round_s
        fair_s = first_round_at - job.submitted_at + setting.rescale_s + alone_s[key]
        rho[job.id] = _jct_s(job) / fair_s
    return rho


class _ActiveJobs:
    """How many jobs were submitted and had not ended, over time: kept as its integral, linear in between."""

    def __init__(self, jobs: Sequence[JobHistory]) -> None:
        changes = [(job.submitted_at, 1) for job in jobs]
        changes += [(job.ended_at, -1) for job in jobs if job.ended_at is not None]
        changes.sort()
        self._at = np.array([at for at, _ in changes])
        counts = np.cumsum([step for _, step in changes])
        self._integral = np.concatenate(([0.0], np.cumsum(counts[:-1] * np.diff(self._at))))

    def mean_during(self, job: JobHistory) -> float:
        """Return the mean over the life of a job that has ended; it counts itself, so it is >= 1."""
        start, end = np.interp([job.submitted_at, job.ended_at or 0.0], self._at, self._integral)
        return max(float(end - start) / _jct_s(job), 1.0)


def _fair_replicas(spec: JobSpec, share_gpus: float) -> int:
    limits = spec.batch
    # A whole share must not be rounded up by the last bit of a quotient.
    wanted = math.ceil(share_gpus - 1e-9)
    most = (limits.max_total if spec.adaptive else limits.requested) // limits.min_atomic
    return max(min(wanted, spec.replicas.max, most), spec.replicas.min)


def _alone_s(setting: Setting, application_name: str, spec: JobSpec, num_replicas: int) -> float:
    """Return the seconds that a job trains alone on `num_replicas` packed GPUs."""
    application = setting.applications[application_name]
    placement = packed(num_replicas, max(node.num_gpus for node in setting.cluster))
    step_times = {
        batch.total: step_s(application, placement, batch) for batch in _batches(spec, num_replicas)
    }
    seconds = 0.0
    for epoch in range(application.num_epochs):
        rates = []
        for total, each_s in step_times.items():
            grad = application.grad_stats(total, epoch)
            rates.append(gain(total / spec.batch.initial, grad.sqr, grad.var) / each_s)
        seconds += (application.progress_at(epoch + 1) - application.progress_at(epoch)) / max(rates)
    return seconds


def _batches(spec: JobSpec, num_replicas: int) -> list[BatchConfig]:
    limits = spec.batch
    totals = [limits.requested]
    if spec.adaptive:
        doublings = int(math.log2(limits.max_total / limits.initial))
        totals += [limits.initial << power for power in range(doublings + 1)]
    fitting = {total for total in totals if total >= num_replicas * limits.min_atomic}
    return [
        split_total(total, num_replicas, limits, accumulate_alone=True, exact=not spec.adaptive)
        for total in sorted(fitting or {limits.requested})
    ]


def _succeeded(history: History) -> list[JobHistory]:
    return [job for job in history.jobs.values() if job.state is JobState.SUCCEEDED]


def _jct_s(job: JobHistory) -> float:
    assert job.ended_at is not None, "only jobs that ended are measured"
    return job.ended_at - job.submitted_at
