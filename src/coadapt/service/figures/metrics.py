"""The scheduler's figures for Prometheus, put together at each scrape."""

# What a scrape costs is bounded, whatever the number of jobs: sums over jobs go with
# their changes (standing.py), and series of their own are for so many jobs only. Those
# are the ones that hold GPUs, in the order of their submission, then others: a rule by
# which the same ones stay, since each series that comes and goes is a new one for
# Prometheus. Of all jobs there is the one that has been silent the longest, as an alert
# must miss none.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from coadapt.core.costs import cost_of, spent
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import TenantId
from coadapt.model.wire import Json
from coadapt.runtime.background_snapshots import copy_of
from coadapt.runtime.buying_picture import buying_picture
from coadapt.runtime.snapshot import job_efficiency
from coadapt.service.figures.tally import Tally

# A scrape of so many takes 20 ms; all of 10,000 took 500, and 4 MB.
JOBS_TOLD_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The figures that are read from the scheduler's state under its lock.

    silent_since: instant of the oldest last report of a training job, s.
    """

    counted: list[Metric]
    jobs: list[JobRecord]
    num_untold: int
    silent_since: float | None
    num_gpus: int
    num_rounds: int
    costs: dict[TenantId, float]
    currency: str
    budgets: dict[TenantId, float]
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
    """Return the figures at `at` (s) in Prometheus' text format.

    ended: jobs that ended, by state. num_waiting: events that wait to be written.
    num_dropped: reports beyond their jobs' budget. overdue_s: how much later than
    allowed the next plan is.
    """

    def look(state: SchedulerState) -> _Look:
        # This runs under the lock of the loop, which waits meanwhile. So only copies
        # are taken here.
        tally.upto(max(at, state.at))
        return _Look(
            counted=[*_cluster_metrics(tally, ended), *tally.registry.collect()],
            jobs=_jobs_to_tell(state),
            num_untold=max(tally.sums.by_state.total() - JOBS_TOLD_MAX, 0),
            silent_since=_silent_since(state),
            num_gpus=sum(node.num_gpus for node in state.nodes.values()),
            num_rounds=state.round,
            costs=spent(state, max(at, state.at)),
            budgets={
                name: tenant.budget
                for name, tenant in sorted(state.tenants.items())
                if tenant.budget is not None
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
            seen.num_untold,
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
    if seen.budgets:
        metrics.append(_budget_used(seen.costs, seen.budgets))
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
    return generate_latest(_Given(metrics)) + _job_text(seen.jobs, at).encode()


def _cost_by_tenant(costs: Mapping[TenantId, float], currency: str) -> Metric:
    counter = CounterMetricFamily(
        "coadapt_cost",
        "What the GPUs of a tenant's jobs have cost since prices were set",
        labels=["tenant", "currency"],
    )
    for tenant, cost in islice(costs.items(), JOBS_TOLD_MAX):
        counter.add_metric([tenant, currency], cost)
    return counter


def _budget_used(
    costs: Mapping[TenantId, float], budgets: Mapping[TenantId, float]
) -> Metric:
    gauge = GaugeMetricFamily(
        "coadapt_budget_used",
        "Share of its budget that a tenant has spent, 1: all of it",
        labels=["tenant"],
    )
    for tenant, budget in islice(budgets.items(), JOBS_TOLD_MAX):
        cost = cost_of(costs, tenant)
        gauge.add_metric([tenant], cost / budget if budget else 1.0)
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
    """A registry of figures that are there already."""

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


def _jobs_to_tell(state: SchedulerState) -> list[JobRecord]:
    """Return copies of the jobs that have series of their own: those that hold GPUs,
    then others.
    """
    live = [job for job in state.jobs.values() if job.state not in ENDED]
    told = list(islice((job for job in live if job.ordered), JOBS_TOLD_MAX))
    told += islice((job for job in live if not job.ordered), JOBS_TOLD_MAX - len(told))
    return [copy_of(job) for job in told]


def _silent_since(state: SchedulerState) -> float | None:
    """Return when the training job that has been silent the longest last reported,
    s.
    """
    training = (job.running for job in state.jobs.values() if job.state not in ENDED)
    told = (
        each.reported_at
        for each in training
        if each.reported_at is not None and each.grant.allocation
    )
    return min(told, default=None)


class _JobSeries:
    """Gauges with the label `job`, as text: made of thousands of samples, so not by the
    client's library.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def family(self, name: str, text: str) -> Callable[..., None]:
        """Return how to add a sample to this gauge: its value, its job, and further
        labels, written out.
        """
        lines = self._lines.setdefault(
            name, [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        )

        def add(value: float, job: str, further: str = "") -> None:
            lines.append(f'{name}{{job="{job}"{further}}} {float(value)!r}')

        return add

    def text(self) -> str:
        return (
            "\n".join(line for lines in self._lines.values() for line in lines) + "\n"
        )


def _job_text(jobs: Iterable[JobRecord], at: float) -> str:
    series = _JobSeries()
    gpus = series.family("coadapt_job_gpus", "GPUs that an active job holds")
    batch = series.family("coadapt_job_batch", "Total batch size, samples")
    progress = series.family(
        "coadapt_job_progress", "Progress so far: samples times efficiency"
    )
    efficiency = series.family(
        "coadapt_job_efficiency", "Statistical efficiency, (0, 1]"
    )
    pause = series.family(
        "coadapt_job_pause_seconds",
        "Duration of each part of the last rescale in place, s",
    )
    silent = series.family(
        "coadapt_job_last_report_age_seconds", "Time since the job's last report, s"
    )
    for job in jobs:
        name = _escaped(job.id)
        gpus(job.ordered.num_replicas, name)
        progress(job.measured.progress, name)
        if job.running.reported_at is not None and job.trains_on:
            silent(max(at - job.running.reported_at, 0.0), name)
        for part, seconds in job.usage.costs.pause.items():
            pause(seconds, name, f',part="{_escaped(part)}"')
        if job.measured.batch is not None:
            batch(job.measured.batch.total, name)
        if (share := job_efficiency(job)) is not None:
            efficiency(share, name)
    return series.text()


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
