"""The scheduler's metrics for Prometheus, computed at each scrape."""

# The cost of a scrape is bounded, whatever the number of jobs. Sums over jobs are
# updated when a job changes (contributions.py), and at most JOB_SERIES_MAX jobs have
# series of their own: first the jobs that hold GPUs, in the order of their submission,
# then the others. With this order the same jobs keep their series, and Prometheus
# stores few new ones. The longest silence is over all jobs, so that an alert misses
# none.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coadapt.core.costs import budget_uses, spent
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import TenantId
from coadapt.model.wire import Json
from coadapt.runtime.background_snapshots import copy_of
from coadapt.runtime.buying_picture import buying_picture
from coadapt.runtime.snapshot import job_efficiency
from coadapt.service.figures.tally import Tally

# With 1,000 jobs the text of their series takes 50 ms of CPU; with 10,000 it took
# 500 ms and 4 MB.
JOB_SERIES_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The values that a scrape reads from the scheduler's state under its lock.

    silent_since: instant of the oldest last report of a training job, s.
    """

    counted: list[Metric]
    jobs: list[JobRecord]
    num_without_series: int
    silent_since: float | None
    num_gpus: int
    num_rounds: int
    costs: dict[TenantId, float]
    currency: str
    budget_shares: dict[TenantId, float]
    buying: dict[str, Json] | None


Read = Callable[[Callable[[SchedulerState], _Look]], _Look]


def metrics_text(
    read: Read,
    tally: Tally,
    at: float,
    *,
    ended: Mapping[str, int],
    num_waiting: int,
    num_dropped: int = 0,
    overdue_s: float = 0.0,
) -> bytes:
    """Return the metrics at `at` (s) in Prometheus' text format.

    ended: jobs that ended, by state. num_waiting: events that wait to be written.
    num_dropped: reports beyond their jobs' budget. overdue_s: how much later than
    allowed the next plan is.
    """

    def look(state: SchedulerState) -> _Look:
        # This runs under the lock of the loop, so it only copies.
        tally.upto(max(at, state.at))
        return _Look(
            counted=[*_cluster_metrics(tally, ended), *tally.registry.collect()],
            jobs=_jobs_with_series(state),
            num_without_series=max(tally.sums.by_state.total() - JOB_SERIES_MAX, 0),
            silent_since=_silent_since(state),
            num_gpus=sum(node.num_gpus for node in state.nodes.values()),
            num_rounds=state.round,
            costs=spent(state, max(at, state.at)),
            budget_shares={
                name: use.share
                for name, use in budget_uses(state, max(at, state.at)).items()
            },
            currency="" if state.prices is None else state.prices.currency,
            buying=buying_picture(state, at),
        )

    seen = read(look)
    silent_s = 0.0 if seen.silent_since is None else max(at - seen.silent_since, 0.0)
    metrics = [
        *seen.counted,
        _gauge(
            "coadapt_jobs_without_series",
            "Live jobs without series of their own (the limit is 1,000 jobs)",
            seen.num_without_series,
        ),
        _gauge(
            "coadapt_longest_silence_seconds",
            "Time since the oldest last report of any training job, s",
            silent_s,
        ),
        _gauge("coadapt_gpus", "GPUs of all live nodes", seen.num_gpus),
        CounterMetricFamily(
            "coadapt_rounds",
            "Decisions that were requested from the policy",
            value=seen.num_rounds,
        ),
        _gauge(
            "coadapt_events_waiting",
            "Events that wait to be written to the journal",
            num_waiting,
        ),
        CounterMetricFamily(
            "coadapt_reports_dropped",
            "Training reports that were dropped because a job sent too many",
            value=num_dropped,
        ),
        _gauge(
            "coadapt_plan_overdue_seconds",
            "How much later than allowed the next plan is, s; 0 if it is not late",
            overdue_s,
        ),
    ]
    if seen.costs:
        metrics.append(_cost_by_tenant(seen.costs, seen.currency))
    if seen.budget_shares:
        metrics.append(_budget_used(seen.budget_shares))
    if seen.buying is not None:
        metrics += _bought(seen.buying)
    if tally.plan_at is not None:
        age_s = max(at - tally.plan_at, 0.0)
        metrics.append(
            _gauge(
                "coadapt_last_plan_age_seconds",
                "Time since the last valid plan, s",
                age_s,
            )
        )
    metrics += _job_metrics(seen.jobs, at)
    return generate_latest(_Given(metrics))


def _cost_by_tenant(costs: Mapping[TenantId, float], currency: str) -> Metric:
    counter = CounterMetricFamily(
        "coadapt_cost",
        "What the GPUs of a tenant's jobs have cost since prices were set",
        labels=["tenant", "currency"],
    )
    for tenant, cost in islice(costs.items(), JOB_SERIES_MAX):
        counter.add_metric([tenant, currency], cost)
    return counter


def _budget_used(shares: Mapping[TenantId, float]) -> Metric:
    gauge = GaugeMetricFamily(
        "coadapt_budget_used",
        "Share that a tenant has spent of its budget for the present period, 1: all",
        labels=["tenant"],
    )
    for tenant, share in islice(shares.items(), JOB_SERIES_MAX):
        gauge.add_metric([tenant], share)
    return gauge


def _bought(buying: Mapping[str, Json]) -> list[Metric]:
    """Return the figures of nodes that are bought, by offer."""
    nodes = GaugeMetricFamily(
        "coadapt_bought_nodes",
        "Nodes of an offer: live (idle ones are among them), ordered, leaving",
        labels=["offer", "state"],
    )
    for offer in cast("list[dict[str, Json]]", buying["offers"]):
        for state in ("live", "idle", "ordered", "leaving"):
            count = cast(int, offer[f"num_{state}"])
            nodes.add_metric([str(offer["id"]), state], count)
    hours = CounterMetricFamily(
        "coadapt_bought_node_hours",
        "Hours of bought nodes since offers were configured",
        labels=["offer"],
    )
    cost = CounterMetricFamily(
        "coadapt_bought_node_cost",
        "What bought nodes have cost since offers were configured",
        labels=["offer"],
    )
    for row in cast("list[dict[str, Json]]", buying["costs"]):
        hours.add_metric([str(row["offer"])], cast(float, row["node_hours"]))
        cost.add_metric([str(row["offer"])], cast(float, row["cost"]))
    failing = _gauge(
        "coadapt_sizer_fails",
        "1 while the sizer's last answer failed or was refused",
        float(bool(buying["error"])),
    )
    return [nodes, hours, cost, failing]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class _Given(CollectorRegistry):
    """A registry of metrics that are already computed."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return iter(self._metrics)


def _cluster_metrics(tally: Tally, ended: Mapping[str, int]) -> list[Metric]:
    jobs = GaugeMetricFamily("coadapt_jobs", "Jobs by state", labels=["state"])
    for state in (state for state in JobState if state not in ENDED):
        jobs.add_metric([state.value], tally.sums.by_state[state])
    for name, number in ended.items():
        jobs.add_metric([name], number)
    pending = GaugeMetricFamily(
        "coadapt_jobs_pending",
        "Pending jobs by reason and tenant",
        labels=["reason", "tenant"],
    )
    for labels, number in sorted(tally.sums.waiting.items()):
        pending.add_metric(list(labels), number)
    return [
        jobs,
        pending,
        _gauge("coadapt_gpus_used", "GPUs that jobs hold", tally.sums.num_held),
    ]


def _jobs_with_series(state: SchedulerState) -> list[JobRecord]:
    """Return copies of the jobs that have series of their own: those that hold GPUs,
    then others.
    """
    live = [job for job in state.jobs.values() if job.state not in ENDED]
    chosen = list(islice((job for job in live if job.ordered), JOB_SERIES_MAX))
    others = (job for job in live if not job.ordered)
    chosen += islice(others, JOB_SERIES_MAX - len(chosen))
    return [copy_of(job) for job in chosen]


def _silent_since(state: SchedulerState) -> float | None:
    """Return the oldest instant, s, of the last reports of training jobs."""
    training = (job.running for job in state.jobs.values() if job.state not in ENDED)
    last_reports = (
        each.reported_at
        for each in training
        if each.reported_at is not None and each.grant.allocation
    )
    return min(last_reports, default=None)


def _job_metrics(jobs: Iterable[JobRecord], at: float) -> list[Metric]:
    """Return the gauges of single jobs, with a series for each of `jobs`."""
    gpus = _job_gauge("coadapt_job_gpus", "GPUs that an active job holds")
    batch = _job_gauge("coadapt_job_batch", "Total batch size, samples")
    progress = _job_gauge(
        "coadapt_job_progress", "Progress so far: samples times efficiency"
    )
    efficiency = _job_gauge("coadapt_job_efficiency", "Statistical efficiency, (0, 1]")
    pause = _job_gauge(
        "coadapt_job_pause_seconds",
        "Duration of each part of the last rescale in place, s",
        "part",
    )
    silent = _job_gauge(
        "coadapt_job_last_report_age_seconds", "Time since the job's last report, s"
    )
    for job in jobs:
        gpus.add_metric([job.id], job.ordered.num_replicas)
        progress.add_metric([job.id], job.measured.progress)
        if job.running.reported_at is not None and job.trains_on:
            silent.add_metric([job.id], max(at - job.running.reported_at, 0.0))
        for part, seconds in job.usage.costs.pause.items():
            pause.add_metric([job.id, part], seconds)
        if job.measured.batch is not None:
            batch.add_metric([job.id], job.measured.batch.total)
        share = job_efficiency(job)
        if share is not None:
            efficiency.add_metric([job.id], share)
    return [gpus, batch, progress, efficiency, pause, silent]


def _job_gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["job", *labels])
