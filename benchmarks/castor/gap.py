"""Where castor's gap to a clairvoyant plan is: rescales, rounds, dials; on drawn
workloads of OSDI'21.

`python -m benchmarks.castor.gap --traces DIR` (the folder with osdi21/; or
$COADAPT_TRACES) plays castor with what holds it back taken away, and the fluid of all
jobs with their true goodputs, noise and arrivals, which knows no rescale, no whole GPU
and no place. What it finds goes into benchmarks/results/castor_gap.json.
Stored runs are not made again, but for those of castor without `--resume`.
"""

import argparse
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.castor.epochs import REFERENCE, Setting, epochs_of
from benchmarks.castor.generated import Drawn
from benchmarks.castor.osdi21 import FIGURES, Run, known_runs
from benchmarks.stored import load_results, store_results
from coadapt.model import JobSpec
from coadapt.policies.solvers.arrays import FloatArray
from coadapt.policies.solvers.concave_envelope import envelopes
from coadapt.policies.solvers.fluid_pool import Pool
from coadapt.policies.solvers.fluid_relaxation import (
    FluidJobs,
    Objective,
    fixed_point,
    values_at,
)
from coadapt.sim.applications import Application
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parents[1] / "results" / "castor_gap.json"
NAMES = ("160/300", "160/301", "160/302", "160/303")
NUM_GPUS = 64
SIZES = np.array([1, 2, 3, *range(4, 65, 4)])  # that castor may give of 16 x 4 GPUs
# of a job; of the fixed point (tried: 600 plays, within 0.5 %)
PHASES = 8
ITERATIONS = 60
PRICES = (
    0.002,
    0.01,
    0.05,
)  # of a GPU, at which values begin; the plan of the least cost counts
# Rescale time, s, and reaction to arrivals and exits, s (None: as castor wants it).
WAYS = {
    "castor": (30.0, None),
    "rounds alone": (30.0, math.inf),
    "no rescale": (0.0, None),
    "no rescale, rounds alone": (0.0, math.inf),
}
DIALS = {
    "fluid": (4.0, 0.5),
    "fluid, tail=0": (4.0, 0.0),
    "fluid, mean alone": (0.0, 0.0),
}


class Phase(NamedTuple):
    """A part of a job: progress to make, and how fast that goes on each of SIZES (0: it
    may not be there).
    """

    work: float
    goodput_K: FloatArray


def phases_of(application: Application, spec: JobSpec) -> list[Phase]:
    """Return a job as phases of equal time, its best batch in each epoch."""
    work_E, rate_EK = epochs_of(
        application, spec, Setting(num_gpus=NUM_GPUS, node_gpus=4)
    )
    rate_EK = rate_EK[
        :, [size - 1 for size in SIZES.tolist() if size <= rate_EK.shape[1]]
    ]
    may_K = np.flatnonzero((rate_EK > 0.0).all(axis=0))
    near = may_K[np.abs(SIZES[may_K] - REFERENCE).argmin()]
    seconds_E = work_E / rate_EK[:, near]
    middle_E = (np.cumsum(seconds_E) - 0.5 * seconds_E) / seconds_E.sum()
    phase_E = np.minimum((middle_E * PHASES).astype(np.int64), PHASES - 1)
    found = []
    for phase in np.unique(phase_E):
        work = work_E[phase_E == phase]
        rate = rate_EK[phase_E == phase][:, may_K]
        goodput_K = np.zeros(len(SIZES))
        goodput_K[may_K] = work.sum() / (work[:, None] / rate).sum(axis=0)
        found.append(Phase(float(work.sum()), goodput_K))
    return found


def kinds_of(
    workload: Workload, applications: Mapping[str, Application]
) -> dict[str, list[Phase]]:
    """Return the phases of the applications of a workload."""
    kinds: dict[str, list[Phase]] = {}
    for job in workload.jobs:
        if job.application not in kinds:
            limits = job.spec.batch
            if job.spec.adaptive:
                limits = replace(limits, requested=limits.initial)
            spec = replace(job.spec, batch=limits)
            kinds[job.application] = phases_of(applications[job.application], spec)
    return kinds


def crowd_of(
    phases: Sequence[Sequence[Phase]], arrives_J: FloatArray
) -> tuple[FluidJobs, list[tuple[int, int]]]:
    """Return jobs of these phases as a crowd, and of each of its parts the job and
    which phase it is.
    """
    num_jobs = len(phases)
    parts = [(row, 0) for row in range(num_jobs)]
    parts += [
        (row, number)
        for row, each in enumerate(phases)
        for number in range(1, len(each))
    ]
    next_P = np.full(len(parts), -1, dtype=np.int64)
    last = list(range(num_jobs))
    for place, (row, _) in enumerate(parts[num_jobs:], num_jobs):
        next_P[last[row]] = last[row] = place
    goodput_PK = np.array([phases[row][number].goodput_K for row, number in parts])
    left_P = np.array([phases[row][number].work for row, number in parts])
    arrives_P = np.append(arrives_J, np.full(len(parts) - num_jobs, np.inf))
    curves = envelopes(goodput_PK, SIZES.astype(np.float64))
    return FluidJobs(
        curves, left_P, arrives_P, next_P, np.array([float(NUM_GPUS)])
    ), parts


def clairvoyant(
    workload: Workload,
    applications: Mapping[str, Application],
    dials: tuple[float, float],
    usual_s: float,
) -> Run:
    """Return the figures of the best plan found for the fluid. dials, usual_s: as in
    Objective.
    """
    kinds = kinds_of(workload, applications)
    at_J = np.array([job.at for job in workload.jobs])
    num_jobs = len(workload.jobs)
    crowd, _ = crowd_of([kinds[job.application] for job in workload.jobs], at_J)
    never_J = np.full(num_jobs, np.inf)
    goal = Objective(
        np.ones(num_jobs),
        never_J,
        -at_J,
        never_J,
        never_J,
        np.ones(num_jobs),
        *dials,
        usual_s,
    )
    plans = []
    for price in PRICES:
        start_P = values_at(crowd.curves, np.ones(len(crowd.left_P)), np.array([price]))
        _, course, cost = fixed_point(Pool(crowd), start_P, goal, ITERATIONS)
        plans.append((cost, course.end_s))
    _, end_J = min(plans, key=lambda plan: plan[0])
    took_J = end_J - at_J
    return {
        "jct": float(took_J.mean()),
        "p99": float(np.percentile(took_J, 99)),
        "makespan": float(end_J.max()),
    }


def held_to(bench: Drawn, name: str, dials: tuple[float, float]) -> Run:
    """Return `clairvoyant` of a named workload."""
    return clairvoyant(
        *bench.load(name), dials, usual_s=bench.run(name, "castor")["jct"]
    )


def mean_and_error(values: Sequence[float]) -> list[float]:
    """Return the mean and its standard error."""
    return [
        round(statistics.mean(values), 3),
        round(statistics.stdev(values) / len(values) ** 0.5, 3),
    ]


def bench_of(about: str | None, argv: list[str] | None, results: Path) -> Drawn:
    """Return the bench of a command line that names the traces, with stored runs as of
    `known_runs`.
    """
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--resume", action="store_true", help="keep stored runs of castor, too"
    )
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error(
            "--traces or COADAPT_TRACES must name the folder that holds osdi21"
        )
    stored = load_results(results)
    return Drawn(
        Path(options.traces), known_runs(stored.get("runs", {}), options.resume)
    )


def store(results: Path, found: Mapping[str, object], bench: Drawn) -> None:
    """Write what was found, and the runs that it was found from."""
    figures = {"gpus": NUM_GPUS, "over pollux": found, "runs": bench.runs}
    store_results(results, figures)


def main(argv: list[str] | None = None) -> None:
    """Play, print and store the figures over those of pollux."""
    bench = bench_of(__doc__, argv, RESULTS)
    found: dict[str, dict[str, list[float]]] = {}
    for way in (*WAYS, *DIALS):
        ratios = []
        for name in NAMES:
            run = (
                bench.run(name, "castor", *WAYS[way])
                if way in WAYS
                else held_to(bench, name, DIALS[way])
            )
            rival = bench.run(name, "pollux")
            ratios.append(
                {
                    figure: run[figure] / rival[figure]
                    for figure in FIGURES
                    if figure in run
                }
            )
        found[way] = {
            figure: mean_and_error([each[figure] for each in ratios])
            for figure in ratios[0]
        }
        store(RESULTS, found, bench)
        print(way, found[way], flush=True)


if __name__ == "__main__":
    main()
