"""What one decision of `pollux` costs and how far it is from the proven bound, beside
the published search.

`python -m benchmarks.policies.pollux_decision` decides rounds of seeded clusters: one
with every job waiting, then one with the first plan in force a minute later. CPU time
of this process on one thread, compiled code warm. The artifact's cost is that of
REFERENCES, measured on two cores. Results go to benchmarks/results/.
"""

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.stored import store_results
from coadapt.model import (
    ClusterView,
    GradStats,
    Grant,
    JobSpec,
    JobView,
    Measured,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    TypeProfile,
    Usage,
    check_plan,
)
from coadapt.policies.pollux.policy import Pollux, PolluxGenetic
from coadapt.sim.library.builtin import builtin_workload

RESULTS = Path(__file__).parents[1] / "results" / "pollux_decision.json"
NUM_SEEDS = 5
NOW_S = 40_000.0
# CPU seconds of one cold decision of the Pollux artifact at this size; the last one is
# extrapolated.
REFERENCES = {(64, 26): 1.8, (256, 102): 16.7, (1024, 400): 457.0}


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster of 4-GPU nodes. ms_max: what a decision may take; searched: whether the
    search runs too.
    """

    num_gpus: int
    num_jobs: int
    ms_max: float | None = None
    searched: bool = False


SIZES = (
    Size(64, 26, searched=True),
    Size(64, 160, 30.0, searched=True),
    Size(256, 102),
    Size(1024, 400, 500.0),
)


def main(argv: list[str] | None = None) -> None:
    """Measure, print a table or (`--json`) the results, and store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-store", action="store_true")
    options = parser.parse_args(argv)
    decide(cluster(Size(64, 26), 0), Pollux())
    decide(cluster(Size(64, 26), 0), PolluxGenetic())
    rows = [measure(size) for size in SIZES]
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    result = {"python": platform.python_version(), "machine": machine, "sizes": rows}
    if not options.no_store:
        store_results(RESULTS, result)
    print(json.dumps(result) if options.json else table(rows))


def measure(size: Size) -> dict[str, float | int | None]:
    """Return cost and gap over the seeds, two rounds each."""
    took_ms: list[float] = []
    gaps: list[float] = []
    searched_ms: list[float] = []
    ratios: list[float] = []
    for seed in range(NUM_SEEDS):
        view = cluster(size, seed)
        policy = Pollux()
        search = PolluxGenetic(seed=seed)
        for _ in range(2):
            plan, ms = decide(view, policy)
            took_ms.append(ms)
            gaps.append(plan.diagnostics["gap"])
            if size.searched:
                found, ms = decide(view, search)
                searched_ms.append(ms)
                ratios.append(
                    found.diagnostics["objective"] / plan.diagnostics["bound"]
                )
            view = a_minute_later(view, plan)
    reference_s = REFERENCES.get((size.num_gpus, size.num_jobs))
    return {
        "num_gpus": size.num_gpus,
        "num_jobs": size.num_jobs,
        "ms_median": round(statistics.median(took_ms), 2),
        "ms_largest": round(max(took_ms), 2),
        "ms_allowed": size.ms_max,
        "gap_mean": round(statistics.mean(gaps), 5),
        "gap_largest": round(max(gaps), 5),
        "search_ms_median": round(statistics.median(searched_ms), 1)
        if searched_ms
        else None,
        "search_gap_mean": round(1.0 - statistics.mean(ratios), 5) if ratios else None,
        "artifact_ms": None if reference_s is None else reference_s * 1000.0,
    }


def decide(view: ClusterView, policy: Pollux | PolluxGenetic) -> tuple[Plan, float]:
    """Return the plan, which is checked, and the milliseconds of CPU that it took."""
    started_s = time.process_time()
    plan = policy.allocate(view)
    took_ms = (time.process_time() - started_s) * 1000.0
    check_plan(view, plan)
    return plan, took_ms


def cluster(size: Size, seed: int) -> ClusterView:
    """Return a round in which all jobs ran before and wait now; applications are the
    built-in ones.
    """
    rng = np.random.default_rng(seed)
    workload, applications = builtin_workload(num_jobs=size.num_jobs, seed=seed)
    nodes = tuple(
        Node(id=f"n{index:04d}", num_gpus=4) for index in range(size.num_gpus // 4)
    )
    jobs = []
    for job in workload.jobs:
        application = applications[job.application]
        epoch = int(rng.integers(0, application.num_epochs))
        grad = application.grad_stats(application.limits.initial, epoch)
        jobs.append(trained(job.id, job.spec, application.params, grad, rng))
    jobs.sort(key=lambda job: (job.submitted_at, job.id))
    return ClusterView(at=NOW_S, nodes=nodes, jobs=tuple(jobs))


def trained(
    name: str, spec: JobSpec, params: object, grad: GradStats, rng: np.random.Generator
) -> JobView:
    """Return a job that has run for a while, with step times up to 20 % off its
    application's.
    """
    age_s = float(rng.exponential(3000.0)) + 120.0
    scale = float(rng.lognormal(0.0, 0.2))
    slower = {
        key: getattr(params, key) * scale
        for key in ("alpha_c", "beta_c", "alpha_r", "alpha_n")
    }
    profile = TypeProfile(
        params=replace(params, **slower),  # type: ignore[type-var]
        num_replicas_profiled=int(2 ** rng.integers(0, 6)),
    )
    return JobView(
        id=name,
        spec=replace(
            spec, replicas=ReplicaLimits(max=64), contract=RescaleContract.ADAPTIVE
        ),
        submitted_at=NOW_S - age_s,
        usage=Usage(
            started_at=NOW_S - age_s + 60.0,
            num_rescales=int(rng.integers(0, 5)),
            attained_service_gpu_s=age_s * float(rng.uniform(0.0, 8.0)),
        ),
        measured=Measured(by_type={"gpu": profile}, grad=grad),
    )


def a_minute_later(view: ClusterView, plan: Plan) -> ClusterView:
    """Return the next round, with the plan in force."""
    held = {job.id: plan.allocations.get(job.id, job.allocation) for job in view.jobs}
    jobs = (replace(job, grant=Grant(allocation=held[job.id])) for job in view.jobs)
    return replace(view, at=view.at + 60.0, jobs=tuple(jobs))


def table(rows: list[dict[str, float | int | None]]) -> str:
    """Return the results as text."""
    lines = [
        list(rows[0]),
        *(
            ["-" if cell is None else str(cell) for cell in row.values()]
            for row in rows
        ),
    ]
    return "\n".join("".join(cell.rjust(18) for cell in line) for line in lines)


if __name__ == "__main__":
    main()
