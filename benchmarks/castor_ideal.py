"""What castor could come to if it knew its jobs: its rounds, over jobs whose truth is known.

`python -m benchmarks.castor_ideal --traces DIR` (the folder with osdi21/; or $COADAPT_TRACES) plays drawn
workloads of OSDI'21 by castor's values, its program and its price of a change. Jobs have their true goodputs
in eight phases, each at its best batch, and no places; who will come is not known. The figures over those of
pollux go into benchmarks/results/castor_ideal.json.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.castor import Run
from benchmarks.castor_gap import NUM_GPUS, PRICES, SIZES, Phase, crowd_of, kinds_of, mean_and_error
from benchmarks.castor_generated import Drawn
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.fluid.crowd import Goal
from coadapt.policies.castor.fluid.play import at_price, settle
from coadapt.policies.castor.program.knapsack import solve
from coadapt.policies.castor.program.prices import WAIT, Options
from coadapt.policies.castor.round import HORIZON_S, SOON_S
from coadapt.policies.castor.values import PLAYS

RESULTS = Path(__file__).parent / "results" / "castor_ideal.json"
LOADS = {"load 0.5": 80, "load 1": 160, "load 2": 320}
SEEDS = (300, 301, 302, 303)
DIALS = {"as castor": (4.0, 0.5), "tail=0": (4.0, 0.0), "makespan_jobs=1, tail=0": (1.0, 0.0)}
ROUND_S = 60.0
DONE_S = 1e-6  # of a phase: less is rounding


@dataclass(slots=True)
class Job:
    """One job. phases: what it has left, the present one first, each with goodput by SIZES; value: per phase.

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
            seconds: FloatArray = np.sum([phase.work / phase.goodput_K for phase in self.phases], axis=0)
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
    """Play these jobs to their ends and return the figures. dials: as in Goal."""
    now, next_round = 0.0, 0.0
    while left := [job for job in jobs if job.end == np.inf]:
        here = [job for job in left if job.at <= now]
        if now >= next_round:
            next_round += ROUND_S
            if here:
                _settle(here, now, dials)
                _choose(here, rescale_s)
        ends = [now + job.delay_s + job.phases[0].work / job.rate for job in here if job.rate > 0.0]
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
    num_jobs, never_J = len(here), np.full(len(here), np.inf)
    crowd, whose = crowd_of([job.phases for job in here], np.zeros(num_jobs))
    value_P = at_price(crowd.curves, np.ones(len(crowd.left_J)), PRICES[1])
    owner = [*range(num_jobs), *whose]
    place = [owner[:part].count(row) for part, row in enumerate(owner)]
    for part, (row, phase) in enumerate(zip(owner, place, strict=True)):
        if here[row].values:
            value_P[part] = here[row].values[phase]
    age_J = np.array([now - job.at for job in here])
    goal = Goal(np.ones(num_jobs), never_J, age_J, never_J, *dials, usual_s=0.0)
    value_P, _, _ = settle(crowd, value_P, goal, PLAYS)
    for job in here:
        job.values = [0.0] * len(job.phases)
    for part, (row, phase) in enumerate(zip(owner, place, strict=True)):
        here[row].values[phase] = float(value_P[part])


def _choose(here: Sequence[Job], rescale_s: float) -> None:
    """Set the sizes of the jobs that are here, by the worths of castor's round."""
    horizon_s = max(HORIZON_S, 3.0 * rescale_s)
    worth_JK = np.empty((len(here), len(SIZES)))
    for row, job in enumerate(here):
        goodput_K, takes_s_K = job.phases[0].goodput_K, job.takes_s()
        worth_JK[row] = job.values[0] * goodput_K
        if job.size >= 0:
            kept_K = np.maximum(1.0 - rescale_s / np.minimum(takes_s_K + rescale_s, horizon_s), 0.0)
            lasts_s = min(max(takes_s_K[job.size], SOON_S), horizon_s)
            present = worth_JK[row, job.size]
            worth_JK[row] *= kept_K
            worth_JK[row, job.size] = present
            worth_JK[row] += present * min(rescale_s / lasts_s, 1.0)
        worth_JK[row, goodput_K <= 0.0] = -1.0
    sizes_JK = np.tile(SIZES, (len(here), 1))
    nobody_J = np.full(len(here), -1)
    options = Options(worth_JK, sizes_JK, np.zeros_like(sizes_JK), nobody_J, np.array([NUM_GPUS]), 1)
    for job, size in zip(here, solve(options).option_J.tolist(), strict=True):
        if size != job.size and size != WAIT:
            job.delay_s = rescale_s
        job.size = size


def main(argv: list[str] | None = None) -> None:
    """Play, print and store the figures over those of pollux."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error("--traces or COADAPT_TRACES must name the folder that holds osdi21")
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    bench = Drawn(Path(options.traces), dict(stored.get("runs", {})))
    found: dict[str, dict[str, list[float]]] = {}
    for load, num_jobs in LOADS.items():
        ratios: dict[str, list[Run]] = {}
        for name in [f"{num_jobs}/{seed}" for seed in SEEDS]:
            workload, applications = bench.load(name)
            kinds = kinds_of(workload, applications)
            rival = bench.run(name, "pollux")
            plays = {"castor": bench.run(name, "castor")}
            for rescale_s in (30.0, 0.0):
                for dial, dials in DIALS.items():
                    jobs = [Job(job.at, list(kinds[job.application])) for job in workload.jobs]
                    plays[f"ideal jobs, {rescale_s:g} s, {dial}"] = ideal(jobs, dials, rescale_s)
            for way, run in plays.items():
                figures = {each: run[each] / rival[each] for each in ("jct", "p99", "makespan")}
                ratios.setdefault(way, []).append(figures)
        for way, runs in ratios.items():
            figures = {each: mean_and_error([run[each] for run in runs]) for each in runs[0]}
            found[f"{load}, {way}"] = figures
            print(load, way, figures, flush=True)
        told = {"gpus": NUM_GPUS, "over pollux": found, "runs": bench.runs}
        RESULTS.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
