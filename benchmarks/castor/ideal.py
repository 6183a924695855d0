"""What castor could come to if it knew its jobs: its rounds, over jobs whose truth is
known.

`python -m benchmarks.castor.ideal --traces DIR` (the folder with osdi21/; or
$COADAPT_TRACES) plays drawn workloads of OSDI'21 by castor's values, its program and
its price of a change. Jobs have their true goodputs in eight phases, each at its best
batch, and no places; who will come is not known. The figures over those of pollux go
into benchmarks/results/castor_ideal.json.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.castor.gap import (
    NUM_GPUS,
    PRICES,
    SIZES,
    Phase,
    bench_of,
    crowd_of,
    kinds_of,
    mean_and_error,
    store,
)
from benchmarks.castor.osdi21 import Run
from coadapt.policies.castor.job_values import ITERATIONS
from coadapt.policies.castor.round import Prospects, earnings
from coadapt.policies.solvers.arrays import FloatArray
from coadapt.policies.solvers.fluid_pool import Pool
from coadapt.policies.solvers.fluid_relaxation import (
    Objective,
    fixed_point,
    values_at,
)
from coadapt.policies.solvers.knapsack import WAIT, Options, solve

RESULTS = Path(__file__).parents[1] / "results" / "castor_ideal.json"
LOADS = {"load 0.5": 80, "load 1": 160, "load 2": 320}
SEEDS = (300, 301, 302, 303)
DIALS = {
    "as castor": (4.0, 0.5),
    "tail=0": (4.0, 0.0),
    "makespan_jobs=1, tail=0": (1.0, 0.0),
}
ROUND_S = 60.0
DONE_S = 1e-6  # of a phase: less is rounding


@dataclass(slots=True)
class Job:
    """One job. phases: what it has left, the present one first, each with goodput by
    SIZES; value: per phase.

    size: index into SIZES, -1: none; delay_s: of a change, still to pay.
    """

    at: float
    phases: list[Phase]
    values: list[float] = field(default_factory=list)
    size: int = -1
    delay_s: float = 0.0
    end: float = np.inf

    @property
    def rate(self) -> float:
        return float(self.phases[0].goodput_K[self.size]) if self.size >= 0 else 0.0

    def takes_s(self) -> FloatArray:
        """Return how long the rest takes on each size."""
        with np.errstate(divide="ignore"):
            seconds: FloatArray = np.sum(
                [phase.work / phase.goodput_K for phase in self.phases], axis=0
            )
        return seconds

    def train(self, now: float, seconds: float) -> None:
        """Train on, to the end of the present phase at most."""
        paid = min(self.delay_s, seconds)
        self.delay_s -= paid
        work, goodput_K = self.phases[0]
        left = work - self.rate * (seconds - paid)
        if left > DONE_S * self.rate:
            self.phases[0] = Phase(left, goodput_K)
            return
        del self.phases[0], self.values[0]
        if not self.phases:
            self.end = now + seconds


def ideal(jobs: Sequence[Job], dials: tuple[float, float], rescale_s: float) -> Run:
    """Play these jobs to their ends and return the figures. dials: as in Objective."""
    now, next_round = 0.0, 0.0
    while left := [job for job in jobs if job.end == np.inf]:
        here = [job for job in left if job.at <= now]
        if now >= next_round:
            next_round += ROUND_S
            if here:
                _settle(here, now, dials)
                _choose(here, rescale_s)
        ends = [
            now + job.delay_s + job.phases[0].work / job.rate
            for job in here
            if job.rate > 0.0
        ]
        after = min([next_round, *ends])
        for job in here:
            if job.size >= 0:
                job.train(now, after - now)
        now = after
    took_J = np.array([job.end - job.at for job in jobs])
    return {
        "jct": float(took_J.mean()),
        "p99": float(np.percentile(took_J, 99)),
        "makespan": max(job.end for job in jobs),
    }


def _settle(here: Sequence[Job], now: float, dials: tuple[float, float]) -> None:
    """Set the values of the jobs that are here."""
    num_jobs = len(here)
    never_J = np.full(len(here), np.inf)
    crowd, parts = crowd_of([job.phases for job in here], np.zeros(num_jobs))
    value_P = values_at(crowd.curves, np.ones(len(parts)), np.array([PRICES[1]]))
    for part, (row, number) in enumerate(parts):
        if here[row].values:
            value_P[part] = here[row].values[number]
    age_J = np.array([now - job.at for job in here])
    goal = Objective(
        np.ones(num_jobs),
        never_J,
        age_J,
        never_J,
        never_J,
        np.ones(num_jobs),
        *dials,
        usual_s=0.0,
    )
    value_P, _, _ = fixed_point(Pool(crowd), value_P, goal, ITERATIONS)
    for job in here:
        job.values = [0.0] * len(job.phases)
    for (row, number), value in zip(parts, value_P.tolist(), strict=True):
        here[row].values[number] = value


def _choose(here: Sequence[Job], rescale_s: float) -> None:
    """Set the sizes of the jobs that are here, by the worths of castor's round."""
    every_J = np.arange(len(here))
    size_J = np.array([job.size for job in here])
    takes_s_JK = np.array([job.takes_s() for job in here])
    runs_J = size_J >= 0
    prospects = Prospects(
        np.array([job.phases[0].goodput_K for job in here]),
        np.array([job.rate for job in here]),
        runs_J,
        takes_s_JK,
        np.where(runs_J, takes_s_JK[every_J, size_J], np.inf),
        np.full(len(here), rescale_s),
    )
    worth_JO = earnings(np.array([job.values[0] for job in here]), prospects)
    worth_JK = worth_JO[:, :-1].copy()
    keep_J = worth_JO[:, -1]
    worth_JK[every_J[runs_J], size_J[runs_J]] = keep_J[runs_J]
    sizes_JK = np.tile(SIZES, (len(here), 1))
    nobody_J = np.full(len(here), -1)
    options = Options(
        worth_JK, sizes_JK, np.zeros_like(sizes_JK), nobody_J, np.array([NUM_GPUS]), 1
    )
    for job, size in zip(here, solve(options).option_J.tolist(), strict=True):
        if size != job.size and size != WAIT:
            job.delay_s = rescale_s
        job.size = size


def main(argv: list[str] | None = None) -> None:
    """Play, print and store the figures over those of pollux."""
    bench = bench_of(__doc__, argv, RESULTS)
    found: dict[str, dict[str, list[float]]] = {}
    for load, num_jobs in LOADS.items():
        ratios: dict[str, list[Run]] = {}
        for name in [f"{num_jobs}/{seed}" for seed in SEEDS]:
            workload, applications = bench.load(name)
            kinds = kinds_of(workload, applications)
            rival = bench.run(name, "pollux")
            plays = {"castor": bench.run(name, "castor", reaction_s=math.inf)}
            for rescale_s in (30.0, 0.0):
                for dial, dials in DIALS.items():
                    jobs = [
                        Job(job.at, list(kinds[job.application]))
                        for job in workload.jobs
                    ]
                    plays[f"ideal jobs, {rescale_s:g} s, {dial}"] = ideal(
                        jobs, dials, rescale_s
                    )
            for way, run in plays.items():
                figures = {
                    each: run[each] / rival[each] for each in ("jct", "p99", "makespan")
                }
                ratios.setdefault(way, []).append(figures)
        for way, runs in ratios.items():
            figures = {
                each: mean_and_error([run[each] for run in runs]) for each in runs[0]
            }
            found[f"{load}, {way}"] = figures
            print(load, way, figures, flush=True)
        store(RESULTS, found, bench)


if __name__ == "__main__":
    main()
