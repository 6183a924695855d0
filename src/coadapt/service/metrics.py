"""The scheduler's figures for Prometheus, taken from its state at each scrape."""

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from coadapt.core.accounting import held_gpus
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import SchedulerState
from coadapt.runtime.snapshot import job_efficiency

Read = Callable[[Callable[[SchedulerState], list[Metric]]], list[Metric]]


class StateCollector(Collector):
    """Figures of the state that `read` gives access to; `decision_s` are the latest decision times."""

    def __init__(self, read: Read, decision_s: Sequence[float]) -> None:
        self._read = read
        self._decision_s = decision_s

    def collect(self) -> Iterable[Metric]:
        seconds = list(self._decision_s)
        return [*self._read(_cluster_metrics), *self._read(_job_metrics), _decisions(seconds)]


def metrics_text(read: Read, decision_s: Sequence[float]) -> bytes:
    """Return the figures in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(StateCollector(read, decision_s))
    return generate_latest(registry)


def _cluster_metrics(state: SchedulerState) -> list[Metric]:
    jobs = GaugeMetricFamily("coadapt_jobs", "Jobs by state", labels=["state"])
    for job_state in JobState:
        jobs.add_metric([job_state.value], sum(job.state is job_state for job in state.jobs.values()))
    records = state.jobs.values()
    used = sum(sum(held_gpus(job).values()) for job in records)
    total = sum(node.num_gpus for node in state.nodes.values())
    return [
        jobs,
        GaugeMetricFamily("coadapt_gpus", "GPUs of all live nodes", value=total),
        GaugeMetricFamily("coadapt_gpus_used", "GPUs that jobs hold", value=used),
        CounterMetricFamily("coadapt_rounds", "Decisions asked for", value=state.round),
        CounterMetricFamily("coadapt_rescales", "Rescales", value=sum(job.num_rescales for job in records)),
        CounterMetricFamily(
            "coadapt_rescales_in_place",
            "Rescales without a restart",
            value=sum(job.num_in_place for job in records),
        ),
        CounterMetricFamily(
            "coadapt_rescale_seconds",
            "Training time that rescales cost",
            value=sum(job.rescale_total_s for job in records),
        ),
        CounterMetricFamily(
            "coadapt_failures", "Failed starts", value=sum(job.num_failures for job in records)
        ),
    ]


def _job_metrics(state: SchedulerState) -> list[Metric]:
    gpus = GaugeMetricFamily("coadapt_job_gpus", "GPUs that an active job holds", labels=["job"])
    batch = GaugeMetricFamily("coadapt_job_batch", "Total batch size, samples", labels=["job"])
    progress = GaugeMetricFamily("coadapt_job_progress", "Scale-invariant samples so far", labels=["job"])
    efficiency = GaugeMetricFamily("coadapt_job_efficiency", "Statistical efficiency, (0, 1]", labels=["job"])
    pause = GaugeMetricFamily(
        "coadapt_job_pause_seconds",
        "Part of the time that training stood still in the last change in place",
        labels=["job", "part"],
    )
    for job_id, job in sorted(state.jobs.items()):
        if job.state in ENDED:
            continue
        gpus.add_metric([job_id], job.ordered.num_replicas)
        progress.add_metric([job_id], job.progress)
        for part, seconds in job.pause.items():
            pause.add_metric([job_id, part], seconds)
        if job.batch is not None:
            batch.add_metric([job_id], job.batch.total)
        if (share := job_efficiency(job)) is not None:
            efficiency.add_metric([job_id], share)
    return [gpus, batch, progress, efficiency, pause]


def _decisions(seconds: Sequence[float]) -> Metric:
    return SummaryMetricFamily(
        "coadapt_decision_seconds",
        "Time that the latest decisions took",
        count_value=len(seconds),
        sum_value=sum(seconds),
    )
