"""The scheduler's figures for Prometheus, taken from its state at each scrape."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import SchedulerState
from coadapt.runtime.snapshot import job_efficiency
from coadapt.runtime.snapshots_aside import picture_of
from coadapt.service.tally import Tally

_Counted = tuple[list[Metric], SchedulerState]
Read = Callable[[Callable[[SchedulerState], _Counted]], _Counted]


def metrics_text(read: Read, tally: Tally, at: float, *, ended: Mapping[str, int], num_waiting: int) -> bytes:
    """Return the figures at `at` (s) in Prometheus' text format.

    ended: jobs that ended, by state. num_waiting: events that wait to be written.
    """

    def counted(state: SchedulerState) -> _Counted:
        # Under the loop's lock, as when it counts; the rest is said of a copy, as the loop waits meanwhile.
        tally.upto(max(at, state.at))
        return [*tally.registry.collect()], picture_of(state)

    counts, picture = read(counted)
    metrics = [*counts, *_cluster_metrics(picture), *_job_metrics(picture, at)]
    for metric in metrics:
        if metric.name == "coadapt_jobs":
            for name, number in ended.items():
                metric.add_sample("coadapt_jobs", {"state": name}, number)
    metrics.append(GaugeMetricFamily("coadapt_events_waiting", "Events to be written", value=num_waiting))
    if tally.plan_at is not None:
        age_s = max(at - tally.plan_at, 0.0)
        text = "Time since a plan was taken"
        metrics.append(GaugeMetricFamily("coadapt_last_plan_age_seconds", text, value=age_s))
    return generate_latest(_Given(metrics))


class _Given(CollectorRegistry):
    """A registry of figures that are there already."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return iter(self._metrics)


def _cluster_metrics(state: SchedulerState) -> list[Metric]:
    jobs = GaugeMetricFamily("coadapt_jobs", "Jobs by state", labels=["state"])
    live = [job for job in state.jobs.values() if job.state not in ENDED]
    numbers = Counter(job.state for job in live)
    for job_state in (job_state for job_state in JobState if job_state not in ENDED):
        jobs.add_metric([job_state.value], numbers[job_state])
    pending = GaugeMetricFamily("coadapt_jobs_pending", "Jobs that wait", labels=["reason", "tenant"])
    waiting = Counter((job.reason.value, job.spec.tenant) for job in live if job.state is JobState.PENDING)
    for labels, number in sorted(waiting.items()):
        pending.add_metric(list(labels), number)
    used = sum(num_gpus_held(job) for job in live)
    total = sum(node.num_gpus for node in state.nodes.values())
    return [
        jobs,
        pending,
        GaugeMetricFamily("coadapt_gpus", "GPUs of all live nodes", value=total),
        GaugeMetricFamily("coadapt_gpus_used", "GPUs that jobs hold", value=used),
        CounterMetricFamily("coadapt_rounds", "Decisions asked for", value=state.round),
    ]


def _job_metrics(state: SchedulerState, at: float) -> list[Metric]:
    gpus = GaugeMetricFamily("coadapt_job_gpus", "GPUs that an active job holds", labels=["job"])
    batch = GaugeMetricFamily("coadapt_job_batch", "Total batch size, samples", labels=["job"])
    progress = GaugeMetricFamily("coadapt_job_progress", "Scale-invariant samples so far", labels=["job"])
    efficiency = GaugeMetricFamily("coadapt_job_efficiency", "Statistical efficiency, (0, 1]", labels=["job"])
    pause = GaugeMetricFamily(
        "coadapt_job_pause_seconds",
        "Part of the time that training stood still in the last change in place",
        labels=["job", "part"],
    )
    silent = GaugeMetricFamily(
        "coadapt_job_last_report_age_seconds", "Since a job that trains last reported", labels=["job"]
    )
    for job_id, job in sorted(state.jobs.items()):
        if job.state in ENDED:
            continue
        gpus.add_metric([job_id], job.ordered.num_replicas)
        progress.add_metric([job_id], job.measured.progress)
        if job.running.reported_at is not None and job.trains_on:
            silent.add_metric([job_id], max(at - job.running.reported_at, 0.0))
        for part, seconds in job.usage.costs.pause.items():
            pause.add_metric([job_id, part], seconds)
        if job.measured.batch is not None:
            batch.add_metric([job_id], job.measured.batch.total)
        if (share := job_efficiency(job)) is not None:
            efficiency.add_metric([job_id], share)
    return [gpus, batch, progress, efficiency, pause, silent]
