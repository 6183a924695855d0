"""What sizers are worth: cost against completion time.

`python -m benchmarks.autoscaling --traces DIR` (the folder with osdi21/; default:
$COADAPT_TRACES). `--only PART` plays one part; what it gives replaces that part of
benchmarks/results/autoscaling.json. With `--resume`, runs that the file has are not
played again; with `--minutes M` no run begins later than that.
"""

# figure10: one ImageNet job on 1 to 16 nodes of 4 GPUs (Pollux, OSDI'21, figure 10).
# late_bounds: costs below which no sizer can finish the job of `deadlines` in time.
# deadlines: the variants of "Can't Be Late" (Frontier-CS; Wu et al., NSDI 2024), with
# drawn availability, for one elastic job on 1 to 16 nodes.
# osdi21: the workloads 1, 2, 3 and 6. drawn: built-in workloads, one per seed, castor's
# sizer at several values of time beside fixed sizes.
# daily: drawn workloads with a lull each night, where a fixed size pays for idle nodes.
# checkpoints: jobs on spot nodes without notice, by the time between checkpoints.
# Policy: castor for drawn workloads, max-min for checkpoints, else pollux. A node costs
# 1 an hour.

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from benchmarks.castor.generated import interval
from benchmarks.stored import load_results, store_results
from coadapt.goodput.efficiency import gain
from coadapt.model import (
    BatchLimits,
    JobSpec,
    Placement,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.applications import Application, Setting
from coadapt.sim.experiment import (
    ExperimentConfig,
    compose,
    new_policy,
    simulate,
)
from coadapt.sim.library.builtin import BUILTIN_APPLICATIONS, builtin_workload
from coadapt.sim.market.files import parse_offer
from coadapt.sim.market.spells import draw_spells
from coadapt.sim.market.terms import MarketTerms, OfferTerms
from coadapt.sim.traces import load_trace
from coadapt.sim.workload import TraceJob, Workload

RESULTS = Path(__file__).parent / "results" / "autoscaling.json"
OFFER = "node=4x1,most=16,provision=120"
WORKLOADS = (1, 2, 3, 6)
OSDI21_SIZERS = (
    "pollux-utility",
    "demand",
    "castor(value_of_time=1)",
    "fixed",
    "fixed(nodes=14)",
    "fixed(nodes=12)",
    "fixed(nodes=10)",
)
VALUES = (0.25, 0.5, 1.0, 2.0, 4.0)
FIXED = (2, 4, 6, 8, 12, 16)
# Days of a daily workload, its jobs per day, and the hours in which a day's jobs come.
DAYS = 2
DAY_JOBS = 8
DAY_S = 24 * 3600.0
WORKDAY_S = 8 * 3600.0
DAILY_VALUES = (0.25, 1.0, 4.0)
DAILY_FIXED = (1, 2, 3, 4, 6, 8)

# Shares of the time in which the benchmark's regions have spot nodes, from its README;
# prices of a node of one V100 as there, in dollars.
REGIONS = {
    "high": (0.775, 0.663, 0.628, 0.432),
    "low": (0.403, 0.391, 0.303, 0.043),
}
REGIONS["mixed"] = REGIONS["high"] + REGIONS["low"]
DEADLINES_H = {"tight": 52.0, "loose": 70.0}
OVERHEADS_S = {"small": 180.0, "large": 720.0}
ON_DEMAND, SPOT = 3.06, 0.9731
# The job trains for 48 hours on the nodes that it requests: so much larger is its data
# set than ImageNet.
LATE_SCALE = 1.11
LATE_NODES = 4
LATE_DECISION_S = 300.0
LATE_POLICY = "pollux"
LATE_SIZERS = {
    "uniform-progress": f"uniform-progress(decision_s={LATE_DECISION_S:.0f})",
    "castor": "castor(value_of_time=0)",
    "elastic": f"uniform-progress(decision_s={LATE_DECISION_S:.0f},elastic=true)",
}

# Seconds that a checkpoint costs, losses of a node per hour, least seconds between two.
SAVE_S = 20.0
SAVE_HAZARDS = (0.05, 0.5, 2.0)
SAVE_WAYS = {"chosen": 0.0, "each_minute": 0.0, "each_hour": 3600.0}

FloatArray = NDArray[np.float64]
Row = dict[str, float | str]
# What tells a run apart from the others of its part, and the run.
Task = tuple[Row, Callable[[], Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of many runs. figures: what is stored of its rows."""

    tasks: Iterator[Task]
    figures: Callable[[list[Row]], object]


def play(
    workload: Workload,
    applications: Mapping[str, Application],
    sizer: str,
    policy: str,
    offer: str = OFFER,
) -> Row:
    """Return figures of one run: costs in node-hours, completion times in hours."""
    terms = MarketTerms(offers=(parse_offer(offer),), sizer=sizer)
    config = ExperimentConfig(market=terms, figures_only=True)
    result = simulate(workload, applications, terms.largest, policy, config=config)
    costs = result.costs
    assert costs is not None
    return {
        "workload": workload.name,
        "sizer": sizer,
        "cost": round(costs.total, 3),
        "jct_h": round(result.metrics.jct_mean_s / 3600.0, 4),
        "makespan_h": round(result.metrics.makespan_s / 3600.0, 4),
        "idle_node_hours": round(costs.idle_node_hours, 3),
        "most_nodes": costs.most_nodes,
        "plans_failed": result.num_plans_failed,
    }


def figure10(traces: Path) -> dict[str, object]:
    """Return the runs of one ImageNet job, and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "imagenet.csv"
        path.write_text(
            "name,time,application,num_replicas,batch_size\n"
            "imagenet-0,0,imagenet,1,200\n"
        )
        workload, applications = load_trace(path, traces / "osdi21" / "traces")
    job = workload.jobs[0]
    wide = replace(job.spec.replicas, max=64)
    elastic = replace(
        workload, jobs=(replace(job, spec=replace(job.spec, replicas=wide)),)
    )
    ours = play(elastic, applications, "pollux-job", "pollux")
    rows = {
        "pollux-job": ours,
        "throughput": play(elastic, applications, "throughput", "pollux"),
        "fixed": play(elastic, applications, "fixed", "pollux"),
        "castor": play(elastic, applications, "castor(value_of_time=4)", "pollux"),
    }
    ratios = {
        name: {
            "cost": round(float(ours["cost"]) / float(row["cost"]), 3),
            "time": round(float(ours["makespan_h"]) / float(row["makespan_h"]), 3),
        }
        for name, row in rows.items()
    }
    return {"runs": rows, "pollux_job_over": ratios}


def late_job(deadline_s: float | None) -> tuple[Workload, dict[str, Application]]:
    """Return one elastic ImageNet job that requests LATE_NODES nodes of one GPU."""
    application = BUILTIN_APPLICATIONS["resnet50-imagenet"]
    samples = round(application.samples_per_epoch * LATE_SCALE)
    application = replace(application, samples_per_epoch=samples)
    limits = application.limits
    spec = JobSpec(
        name="late",
        application=application.name,
        batch=limits,
        replicas=ReplicaLimits(min=1, max=16, requested=LATE_NODES),
        contract=RescaleContract.ADAPTIVE,
        deadline_at=deadline_s,
    )
    job = TraceJob(id="late", at=0.0, application=application.name, spec=spec)
    return Workload(name="late", jobs=(job,)), {application.name: application}


def play_late(share: float, seed: int, deadline: str, overhead: str, sizer: str) -> Row:
    """Return cost and hours of the job in one region under a sizer of LATE_SIZERS."""
    spells = draw_spells(share, 16, 72 * 3600.0, seed)
    spot = parse_offer(f"spot=1x{SPOT},market=spot,most=16")
    firm = parse_offer(f"firm=1x{ON_DEMAND},most=16")
    offers: tuple[OfferTerms, ...] = (firm, replace(spot, available=spells))
    deadline_h = DEADLINES_H[deadline]
    workload, applications = late_job(deadline_h * 3600.0)
    terms = MarketTerms(
        offers=offers, sizer=LATE_SIZERS[sizer], sizing_s=LATE_DECISION_S
    )
    config = ExperimentConfig(
        market=terms,
        figures_only=True,
        round_s=LATE_DECISION_S,
        rescale_s=OVERHEADS_S[overhead],
    )
    result = simulate(workload, applications, terms.largest, LATE_POLICY, config=config)
    assert result.costs is not None
    hours = round(result.metrics.makespan_s / 3600.0, 2)
    return {
        "cost": round(result.costs.total, 2),
        "hours": hours,
        "losses": result.costs.num_lost,
        "missed": hours > deadline_h,
    }


def deadlines(num_seeds: int) -> Part:
    """Return the runs of all regions, and the mean costs of the 12 variants."""
    tasks = (
        (
            {
                "sizer": sizer,
                "share": share,
                "seed": seed,
                "deadline": deadline,
                "overhead": overhead,
            },
            partial(play_late, share, seed, deadline, overhead, sizer),
        )
        for sizer in LATE_SIZERS
        for share in REGIONS["mixed"]
        for seed in range(num_seeds)
        for deadline in DEADLINES_H
        for overhead in OVERHEADS_S
    )

    def figures(runs: list[Row]) -> object:
        variants = [
            late_variant(runs, region, deadline, overhead)
            for region in REGIONS
            for deadline in DEADLINES_H
            for overhead in OVERHEADS_S
        ]
        return {"runs": runs, "variants": [each for each in variants if each]}

    return Part(tasks=tasks, figures=figures)


def late_variant(runs: list[Row], region: str, deadline: str, overhead: str) -> Row:
    """Return the mean costs of a variant by sizer, the ratios of castor's to the
    others', and the deadlines missed; only of sizers that have played all its regions.
    """
    mine = [
        row
        for row in runs
        if row["share"] in REGIONS[region]
        and (row["deadline"], row["overhead"]) == (deadline, overhead)
    ]
    variant: Row = {"availability": region, "deadline": deadline, "overhead": overhead}
    found: Row = {}
    for sizer in LATE_SIZERS:
        rows = [row for row in mine if row["sizer"] == sizer]
        if {row["share"] for row in rows} != set(REGIONS[region]):
            continue
        costs = [float(row["cost"]) for row in rows]
        found[sizer] = round(sum(costs) / len(costs), 2)
        found[f"{sizer}_missed"] = sum(bool(row["missed"]) for row in rows)
    for sizer in LATE_SIZERS:
        if "castor" in found and sizer in found and sizer != "castor":
            ratio = float(found["castor"]) / float(found[sizer])
            found[f"castor_over_{sizer}"] = round(ratio, 3)
    return {**variant, **found} if found else {}


def late_bounds(num_seeds: int) -> list[Row]:
    """Return a lower bound of the job's cost by region, seed and deadline, for a sizer
    that knows when spot nodes are available, where changes cost no time.
    """
    workload, applications = late_job(None)
    [application] = applications.values()
    most_nodes = workload.jobs[0].spec.replicas.max
    rates_EN = best_rates(application, most_nodes)
    epochs = range(application.num_epochs)
    steps_E = np.diff(
        [application.progress_at(epoch) for epoch in (*epochs, len(epochs))]
    )
    rows: list[Row] = []
    for share in REGIONS["mixed"]:
        for seed in range(num_seeds):
            for deadline, hours in DEADLINES_H.items():
                spot_h = hours_with_spot(share, seed, hours)
                cost = least_cost(rates_EN, steps_E, spot_h, hours - spot_h)
                row: Row = {"share": share, "seed": seed, "deadline": deadline}
                rows.append({**row, "spot_h": round(spot_h, 2), "cost": round(cost, 1)})
    return rows


def best_rates(application: Application, most_nodes: int) -> FloatArray:
    """Return the highest progress per hour of any batch, in steps at the initial batch
    size, by epoch and number of nodes of one GPU (num_epochs, most_nodes).
    """
    initial = application.limits.initial
    rates_EN = np.zeros((application.num_epochs, most_nodes))
    for nodes in range(1, most_nodes + 1):
        setting = Setting(Placement((1,) * nodes), "gpu")
        for atomic, passes in batches(application.limits, nodes):
            total = nodes * atomic * passes
            whole_s, sync_s = application.step_time(setting, atomic)
            step_s = whole_s + (passes - 1) * (whole_s - sync_s)
            for epoch in range(application.num_epochs):
                grad = application.grad_stats(total, epoch)
                steps = gain(total / initial, grad.sqr, grad.var)
                rate = steps / step_s * 3600.0
                rates_EN[epoch, nodes - 1] = max(rates_EN[epoch, nodes - 1], rate)
    return rates_EN


def batches(limits: BatchLimits, nodes: int) -> Iterator[tuple[int, int]]:
    """Yield the batch of a pass of one node (each fourth size) and the passes of a
    step, where they make an allowed batch on `nodes` nodes.
    """
    assert limits.max_total is not None
    assert limits.max_atomic is not None
    for atomic in range(limits.min_atomic, limits.max_atomic + 1, 4):
        for passes in range(1, limits.max_total // (nodes * atomic) + 1):
            if nodes * atomic * passes >= limits.initial:
                yield atomic, passes


def hours_with_spot(share: float, seed: int, hours: float) -> float:
    """Return for how many of the first `hours` spot nodes are available."""
    spells = draw_spells(share, 16, 72 * 3600.0, seed)
    starts_h = [min(at / 3600.0, hours) for at, _ in spells] + [hours]
    lengths = zip(spells, starts_h, starts_h[1:], strict=False)
    return sum(end - start for (_, nodes), start, end in lengths if nodes)


def least_cost(
    rates_EN: FloatArray, steps_E: FloatArray, spot_h: float, firm_h: float
) -> float:
    """Return the least cost at which each epoch makes its `steps_E`, when nodes are
    spot nodes for `spot_h` hours and on-demand nodes for `firm_h` hours.

    A linear programme over the hours of each epoch on each number of nodes of each
    kind. Epochs may be out of order, so it is a lower bound.
    """
    num_epochs, most_nodes = rates_EN.shape
    prices_N = np.arange(1, most_nodes + 1)
    prices = np.tile(
        np.concatenate((SPOT * prices_N, ON_DEMAND * prices_N)), num_epochs
    )
    progress = np.kron(np.eye(num_epochs), np.ones(2 * most_nodes))
    progress *= np.hstack((rates_EN, rates_EN)).ravel()
    kinds = np.kron(np.eye(2), np.ones(most_nodes))
    found = linprog(
        prices,
        A_ub=np.tile(kinds, num_epochs),
        b_ub=[spot_h, firm_h],
        A_eq=progress,
        b_eq=steps_E,
    )
    return float(found.fun)


def checkpoints(num_seeds: int) -> dict[str, Row]:
    """Return mean completion times in hours by losses of a node per hour: with
    checkpoints as jobs choose them, at each report (a minute), and each hour.
    """
    found: dict[str, Row] = {}
    for hazard in SAVE_HAZARDS:
        row: Row = {}
        for way, checkpoint_s in SAVE_WAYS.items():
            hours = [
                hours_on_spot(hazard, checkpoint_s, seed, chosen=way == "chosen")
                for seed in range(num_seeds)
            ]
            row[way] = round(sum(hours) / len(hours), 3)
        print(hazard, json.dumps(row), flush=True)
        found[f"{hazard:g}"] = row
    return found


def hours_on_spot(
    hazard: float, checkpoint_s: float, seed: int, *, chosen: bool
) -> float:
    """Return the mean completion time of three jobs on four spot nodes, in hours.

    chosen: whether jobs choose the period of checkpoints, which is `checkpoint_s` at
    least.
    """
    offer = parse_offer(f"spot=4x1,market=spot,most=4,hazard={hazard}")
    terms = MarketTerms(offers=(offer,), sizer="fixed", seed=seed)
    workload, applications = builtin_workload("default", 3, 0, num_gpus=16)
    config = ExperimentConfig(
        market=terms, figures_only=True, save_s=SAVE_S, checkpoint_s=checkpoint_s
    )
    policy = new_policy("max-min", 0)
    simulation = compose(workload, applications, terms.largest, policy, config)
    if not chosen:
        simulation.world.hazard_of = lambda _: 0.0
    simulation.run()
    jobs = simulation.recorder.history.jobs.values()
    ends = [job.ended_at - job.submitted_at for job in jobs if job.ended_at is not None]
    return sum(ends) / len(ends) / 3600.0


def osdi21(traces: Path) -> Part:
    """Return the runs of the OSDI'21 workloads under sizers for clusters."""

    @cache
    def load(number: int) -> tuple[Workload, Mapping[str, Application]]:
        file = traces / "osdi21" / "workloads" / f"workload-{number}.csv"
        return load_trace(file, traces / "osdi21" / "traces")

    def run(number: int, sizer: str) -> Row:
        return play(*load(number), sizer, "pollux")

    tasks: Iterator[Task] = (
        ({"number": number, "sizer": sizer}, partial(run, number, sizer))
        for number in WORKLOADS
        for sizer in OSDI21_SIZERS
    )

    def figures(rows: list[Row]) -> object:
        return {"runs": rows, "over_fixed": over_fixed(rows)}

    return Part(tasks=tasks, figures=figures)


def over_fixed(rows: Sequence[Row]) -> list[Row]:
    """Return, by workload, the cost of each sizer over that of a fixed size with the
    same mean completion time, interpolated; left out beyond the fixed sizes.
    """
    found = []
    for workload in sorted({str(row["workload"]) for row in rows}):
        mine = [row for row in rows if row["workload"] == workload]
        fixed = sorted(
            (float(row["jct_h"]), float(row["cost"]))
            for row in mine
            if str(row["sizer"]).startswith("fixed")
        )
        hours = [each for each, _ in fixed]
        costs = [each for _, each in fixed]
        ratios: Row = {"workload": workload}
        for row in mine:
            at = float(row["jct_h"])
            if hours[0] <= at <= hours[-1]:
                ratio = float(row["cost"]) / np.interp(at, hours, costs)
                ratios[str(row["sizer"])] = round(float(ratio), 3)
        found.append(ratios)
    return found


def drawn(num_seeds: int, num_jobs: int) -> Part:
    """Return castor's sizer and fixed sizes on built-in workloads, one per seed."""
    sizers = [f"castor(value_of_time={value})" for value in VALUES]
    sizers += [f"fixed(nodes={nodes})" for nodes in FIXED]

    def run(seed: int, sizer: str) -> Row:
        workload, applications = builtin_workload(
            "default", num_jobs, seed, num_gpus=64
        )
        return play(workload, applications, sizer, "castor")

    return Part(tasks=by_seed(num_seeds, (*sizers, "demand"), run), figures=list)


def by_seed(
    num_seeds: int, sizers: Sequence[str], run: Callable[[int, str], Row]
) -> Iterator[Task]:
    """Yield the runs of each seed under each sizer."""
    for seed in range(num_seeds):
        for sizer in sizers:
            yield {"seed": seed, "sizer": sizer}, partial(run, seed, sizer)


def daily_workload(seed: int) -> tuple[Workload, dict[str, Application]]:
    """Return DAYS days of DAY_JOBS drawn jobs each, which come within WORKDAY_S."""
    jobs: list[TraceJob] = []
    applications: dict[str, Application] = {}
    for day in range(DAYS):
        drawn_day, applications = builtin_workload(
            "default", DAY_JOBS, DAYS * seed + day, num_gpus=64
        )
        stretch = WORKDAY_S / max(job.at for job in drawn_day.jobs)
        jobs += [
            replace(job, id=f"{day}-{job.id}", at=day * DAY_S + stretch * job.at)
            for job in drawn_day.jobs
        ]
    return Workload(name=f"daily:{seed}", jobs=tuple(jobs)), applications


def daily(num_seeds: int, policy: str) -> Part:
    """Return the runs of daily workloads, and what each sizer costs beside fixed sizes
    at the same mean completion time.
    """
    sizers = [f"castor(value_of_time={value})" for value in DAILY_VALUES]
    sizers += ["demand", *(f"fixed(nodes={nodes})" for nodes in DAILY_FIXED)]

    def run(seed: int, sizer: str) -> Row:
        return play(*daily_workload(seed), sizer, policy)

    def figures(rows: list[Row]) -> object:
        return {"policy": policy, "runs": rows, "beside_fixed": beside_fixed(rows)}

    return Part(tasks=by_seed(num_seeds, sizers, run), figures=figures)


def beside_fixed(rows: Sequence[Row]) -> dict[str, object]:
    """Return, by sizer, its cost over that of the cheapest fixed size that is at most
    5 % slower: mean with half of its 95 % interval, and range over workloads.

    A workload counts for a sizer if there is such a fixed size.
    """
    found: dict[str, list[float]] = {}
    for row in rows:
        if str(row["sizer"]).startswith("fixed"):
            continue
        rivals = [
            float(each["cost"])
            for each in rows
            if each["seed"] == row["seed"]
            and str(each["sizer"]).startswith("fixed")
            and float(each["jct_h"]) <= 1.05 * float(row["jct_h"])
        ]
        if rivals:
            ratio = float(row["cost"]) / min(rivals)
            found.setdefault(str(row["sizer"]), []).append(ratio)
    return {
        sizer: {
            "workloads": len(ratios),
            "mean": interval(ratios),
            "at_most_0.7": sum(ratio <= 0.7 for ratio in ratios),
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
        }
        for sizer, ratios in found.items()
    }


def rows_of(stored: object) -> list[Row]:
    """Return the runs of a part in the stored results; none where it is not there."""
    rows = stored.get("runs", []) if isinstance(stored, dict) else stored
    return list(rows) if isinstance(rows, list) else []


def fill(name: str, part: Part, rows: list[Row], until: float) -> None:
    """Play the runs of a part that are not among `rows`, and store each.

    until: when the last one may begin, by time.monotonic.
    """
    for key, run in part.tasks:
        if any(key.items() <= row.items() for row in rows):
            continue
        if time.monotonic() >= until:
            print("the time is over; go on with --resume")
            return
        began = time.process_time()
        row = run() | key
        row["cpu_s"] = round(time.process_time() - began, 1)
        print(json.dumps(row), flush=True)
        rows.append(row)
        known = load_results(RESULTS)
        store_results(RESULTS, {**known, name: part.figures(rows)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", default=os.environ.get("COADAPT_TRACES", "."))
    parts_of = (
        "figure10",
        "deadlines",
        "late_bounds",
        "osdi21",
        "drawn",
        "daily",
        "checkpoints",
    )
    parser.add_argument("--only", choices=parts_of)
    parser.add_argument("--policy", default="pollux", help="of the part daily")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--minutes", type=float, default=math.inf)
    given = parser.parse_args()
    traces = Path(given.traces)
    until = time.monotonic() + 60.0 * given.minutes
    parts = {
        "deadlines": deadlines(given.seeds),
        "osdi21": osdi21(traces),
        "drawn": drawn(given.seeds, given.jobs),
        "daily": daily(given.seeds, given.policy),
    }
    for name, part in parts.items():
        if given.only in (None, name):
            known = load_results(RESULTS).get(name) if given.resume else None
            fill(name, part, rows_of(known), until)
    whole = {
        "figure10": lambda: figure10(traces),
        "checkpoints": lambda: checkpoints(given.seeds),
        "late_bounds": lambda: late_bounds(given.seeds),
    }
    for name, measure in whole.items():
        if given.only in (None, name):
            found = measure()
            store_results(RESULTS, {**load_results(RESULTS), name: found})


if __name__ == "__main__":
    main()
