"""What castor is worth beside pollux, what its dials do, how true its predictions are,
and what it costs.

`python -m benchmarks.castor.osdi21 --traces DIR` (the folder with osdi21/; default:
$COADAPT_TRACES) plays the OSDI'21 workloads 1, 2, 3 and 6, 6 of twice the load, and
built-in ones on 16 x 4 GPUs. `--only SECTION` plays one part; what it gives replaces
that part of benchmarks/results/castor.json.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from benchmarks.stored import load_results, store_results
from coadapt.goodput.throughput import PARAM_NAMES
from coadapt.model import ClusterView, JobView, Node, Plan, ThroughputParams
from coadapt.policies import create_policy
from coadapt.policies.base import Policy
from coadapt.policies.castor.policy import Castor
from coadapt.runtime.history import History
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, compose
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.metrics import RunFacts, job_outcomes, measure
from coadapt.sim.traces import load_trace
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parents[1] / "results" / "castor.json"
CLUSTER = tuple(Node(id=f"node-{number:02d}", num_gpus=4) for number in range(16))
NAMED = ("osdi21/1", "osdi21/2", "osdi21/3", "osdi21/6")
TWICE = ("osdi21-2.0/6",)  # of twice the load
FOLDERS = {"osdi21": "workloads", "osdi21-2.0": "workloads-2.0"}
BUILTIN = ("default/0", "default/1", "default/2", "busy/0", "busy/1")
FIGURES = ("jct", "p99", "makespan", "rho")
SIZES = (
    (64, 160, 21),
    (1024, 400, 11),
    (16384, 10000, 4),
)  # GPUs, jobs, rounds: all but the first count

# Seconds of a rescale in place: median of benchmarks/trainer/rescale.py on two cores.
IN_PLACE_S = 0.3
OWN = " castor"  # in the key of a run

Run = dict[str, float]


@dataclass(slots=True)
class Bench:
    """Runs by what they are of; a run that was made is not made again."""

    traces: Path
    runs: dict[str, Run] = field(default_factory=dict)
    cluster: tuple[Node, ...] = CLUSTER

    def load(self, name: str) -> tuple[Workload, Mapping[str, Application]]:
        source, _, rest = name.partition("/")
        if source in FOLDERS:
            folder = self.traces / "osdi21"
            return load_trace(
                folder / FOLDERS[source] / f"workload-{rest}.csv", folder / "traces"
            )
        return builtin_workload(source, 160, int(rest))

    def run(
        self,
        name: str,
        policy: str,
        rescale_s: float = 30.0,
        reaction_s: float | None = None,
    ) -> Run:
        key = f"{name} {policy} {rescale_s:g} {reaction_s}"
        if key not in self.runs:
            config = ExperimentConfig(rescale_s=rescale_s, reaction_s=reaction_s)
            self.runs[key] = self.play(name, create_policy(policy), config)[0]
            print(key, self.runs[key], flush=True)
        return self.runs[key]

    def play(
        self, name: str, policy: Policy, config: ExperimentConfig
    ) -> tuple[Run, History]:
        workload, applications = self.load(name)
        simulation = compose(workload, applications, self.cluster, policy, config)
        simulation.run()
        history = simulation.recorder.history
        facts = RunFacts(
            workload=workload,
            applications=applications,
            cluster=self.cluster,
            round_s=config.round_s,
            rescale_s=config.rescale_s,
        )
        found = measure(
            history, job_outcomes(history, facts), simulation.solver.decision_s, facts
        )
        run = {
            "jct": found.jct_mean_s,
            "p99": found.jct_p99_s,
            "makespan": found.makespan_s,
            "rho": found.rho_max,
            "unfair": found.unfair_share,
            "rescales": float(found.num_rescales),
            "decision_ms": found.decision_ms_p50,
        }
        return {name: round(value, 4) for name, value in run.items()}, history

    def ratios(self, names: tuple[str, ...], runs: list[Run]) -> Run:
        """Return the means over workloads of the figures against those of pollux at 30
        s.
        """
        rivals = [self.run(name, "pollux") for name in names]
        means = {
            figure: statistics.mean(
                run[figure] / rival[figure]
                for run, rival in zip(runs, rivals, strict=True)
            )
            for figure in FIGURES
        }
        counts = {
            figure: statistics.mean(run[figure] for run in runs)
            for figure in ("unfair", "rescales")
        }
        return {name: round(value, 3) for name, value in (means | counts).items()}


def quality(bench: Bench) -> dict[str, object]:
    """The named workloads: as castor is, by what the makespan weighs, in rounds alone,
    and in place.
    """
    ways: dict[str, tuple[str, float, float | None]] = {
        "30 s": ("castor", 30.0, None),
        "30 s, makespan_jobs=1": ("castor(makespan_jobs=1.0)", 30.0, None),
        "30 s, makespan_jobs=8": ("castor(makespan_jobs=8.0)", 30.0, None),
        "30 s, makespan_jobs=12": ("castor(makespan_jobs=12.0)", 30.0, None),
        "30 s, rounds alone": ("castor", 30.0, math.inf),
        "in place": ("castor", IN_PLACE_S, 0.0),
        "in place, makespan_jobs=4, tail=0.5": (
            "castor(makespan_jobs=4.0,tail=0.5)",
            IN_PLACE_S,
            0.0,
        ),
    }
    found: dict[str, object] = {
        name: bench.ratios((name,), [bench.run(name, "castor")])
        for name in NAMED + TWICE
    }
    found["in place, " + TWICE[0]] = bench.ratios(
        TWICE, [bench.run(TWICE[0], *ways["in place"])]
    )
    for way, how in ways.items():
        found[way] = bench.ratios(NAMED, [bench.run(name, *how) for name in NAMED])
    return found


def dials(bench: Bench) -> dict[str, object]:
    """The dials on the built-in workloads."""
    names = BUILTIN[:3]
    options = [f"castor(makespan_jobs={value})" for value in (1.0, 8.0)]
    return {
        each: bench.ratios(names, [bench.run(name, each) for name in names])
        for each in options
    }


def builtin(bench: Bench) -> dict[str, object]:
    """The built-in mixes as they are."""
    return {
        "castor": bench.ratios(BUILTIN, [bench.run(name, "castor") for name in BUILTIN])
    }


@dataclass(slots=True)
class Misled:
    """Castor with wrong information about jobs. wrong, fits, noise: the largest factors
    of the errors, drawn by job.

    wrong: of lengths, taken away from a share `missing`; fits: of each step-time
    parameter; noise: of the noise scale.
    """

    reaction_s: ClassVar[float] = Castor.reaction_s
    wrong: float = 1.0
    missing: float = 0.0
    fits: float = 1.0
    noise: float = 1.0
    castor: Castor = field(default_factory=Castor)

    def allocate(self, view: ClusterView) -> Plan:
        return self.castor.allocate(
            replace(view, jobs=tuple(self._mislead(job) for job in view.jobs))
        )

    def _mislead(self, job: JobView) -> JobView:
        rng = np.random.default_rng(list(job.id.encode()))

        def factor(most: float) -> float:
            return float(np.exp(rng.uniform(-1.0, 1.0) * np.log(most)))

        target = job.measured.progress_target
        wrong = factor(self.wrong)
        missing = rng.random() < self.missing
        noise = factor(self.noise)
        times = [factor(self.fits) for _ in TIMES]
        measured = job.measured
        grad = measured.grad
        by_type = {
            name: replace(profile, params=_scaled(profile.params, times))
            for name, profile in measured.by_type.items()
        }
        return replace(
            job,
            measured=replace(
                measured,
                progress_target=None if missing or target is None else target * wrong,
                by_type=by_type if self.fits > 1.0 else measured.by_type,
                grad=None if grad is None else replace(grad, var=grad.var * noise),
            ),
        )


TIMES = [name for name in PARAM_NAMES if name != "gamma"]


def _scaled(params: ThroughputParams, factors: list[float]) -> ThroughputParams:
    times = {
        name: getattr(params, name) * factor
        for name, factor in zip(TIMES, factors, strict=True)
    }
    return replace(params, **times)


def lengths(bench: Bench) -> dict[str, object]:
    """Declared lengths that are wrong or missing; fits and noise scales that are
    off.
    """
    cases = {
        "wrong by up to 4": Misled(wrong=4.0),
        "missing for half": Misled(missing=0.5),
        "missing for all": Misled(missing=1.0),
        "step times 20 % off": Misled(fits=1.2),
        "noise scale 2 x off": Misled(noise=2.0),
    }
    found: dict[str, object] = {
        "as the traces tell": bench.ratios(
            NAMED, [bench.run(name, "castor") for name in NAMED]
        )
    }
    for case, how in cases.items():
        runs = [
            bench.play(name, replace(how, castor=Castor()), ExperimentConfig())[0]
            for name in NAMED
        ]
        found[case] = bench.ratios(NAMED, runs)
        print(case, found[case], flush=True)
    return found


Said = tuple[
    str, float, float, float, float
]  # job, instant, end, and the interval of it


@dataclass(slots=True)
class Recorded:
    """Castor, with what it predicted at each round."""

    reaction_s: ClassVar[float] = Castor.reaction_s
    castor: Castor = field(default_factory=Castor)
    said: list[Said] = field(default_factory=list)
    starts: list[Said] = field(default_factory=list)

    def allocate(self, view: ClusterView) -> Plan:
        plan = self.castor.allocate(view)
        self.said += [
            (job, view.at, each.end_at, each.low_at, each.high_at)
            for job, each in self.castor.predictions.items()
        ]
        self.starts += [
            (job, view.at, each.end_at, each.low_at, each.high_at)
            for job, each in self.castor.starts.items()
        ]
        return plan


LEFT_S = (
    600.0,
    3_600.0,
    14_400.0,
    np.inf,
)  # groups of predictions, by what they say is left


def predictions(bench: Bench) -> dict[str, object]:
    """Return the share of ends that were within their predicted intervals, over all
    rounds, and with each job weighted equally.
    """
    played = []
    for name in NAMED + TWICE + BUILTIN:
        policy = Recorded()
        _, history = bench.play(name, policy, ExperimentConfig())
        played.append((policy, history))
    return accuracy(played)


def accuracy(played: Iterable[tuple[Recorded, History]]) -> dict[str, object]:
    """Return how accurate castor's predictions were in these runs."""
    shares = []
    errors = []
    groups: dict[float, list[tuple[bool, float]]] = {bound: [] for bound in LEFT_S}
    starts: list[bool] = []
    for policy, history in played:
        within: dict[str, list[bool]] = {}
        for job, at, end_at, low_at, high_at in policy.said:
            ended_at = history.jobs[job].ended_at
            if ended_at is None:
                continue
            inside = low_at <= ended_at <= high_at
            within.setdefault(job, []).append(inside)
            errors.append(
                abs(end_at - ended_at)
                / max(ended_at - history.jobs[job].submitted_at, 1.0)
            )
            bound = next(each for each in LEFT_S if end_at - at < each)
            groups[bound].append((inside, (ended_at - at) / max(end_at - at, 60.0)))
        shares.append(
            statistics.mean(statistics.mean(each) for each in within.values())
        )
        starts += [_started(history, *word) for word in policy.starts]
    every = [inside for group in groups.values() for inside, _ in group]
    return {
        "within, all": round(statistics.mean(every), 3),
        "starts": {
            "predictions": len(starts),
            "within": round(statistics.mean(starts), 3),
        },
        "within, per workload": [round(each, 3) for each in shares],
        "median error": round(statistics.median(errors), 3),
        "by what was said to be left": {
            f"below {bound:g} s": _calibration(group)
            for bound, group in groups.items()
            if group
        },
    }


def _started(
    history: History, job: str, at: float, _: float, low_at: float, high_at: float
) -> bool:
    """Return whether a job that waited at an instant got GPUs when it was said to."""
    spans = history.jobs[job].spans
    starts_at = next(
        (max(each.start, at) for each in spans if each.num_gpus and each.end > at),
        math.inf,
    )
    return low_at <= starts_at <= high_at


def _calibration(predicted: list[tuple[bool, float]]) -> dict[str, object]:
    """Return the share within the interval, and percentiles of the time left over the
    predicted time.
    """
    low, middle, high = np.percentile([ratio for _, ratio in predicted], (5, 50, 95))
    return {
        "predictions": len(predicted),
        "within": round(statistics.mean(inside for inside, _ in predicted), 3),
        "left / said, 5 %, median, 95 %": [
            round(float(each), 2) for each in (low, middle, high)
        ],
    }


# where all jobs have an application, and tell of another batch in each round
SHARED = "castor, ten applications"
TYPES = (
    "castor, types"  # where GPUs are of three types, and all jobs were timed on each
)


def decisions(_: Bench) -> dict[str, object]:
    """CPU time of one decision and the gap of the round's program, beside pollux where
    that is bearable.
    """
    from benchmarks.castor.views import crowded_views

    found: dict[str, object] = {}
    for num_gpus, num_jobs, rounds in SIZES:
        row: dict[str, float] = {}
        makers: dict[str, Callable[[], Policy]] = {
            "castor": Castor,
            SHARED: Castor,
            TYPES: Castor,
        }
        if num_gpus <= 1024:
            makers["pollux"] = lambda: create_policy("pollux")
        for name, make in makers.items():
            policy = make()
            spent = []
            gaps = []
            views = crowded_views(
                num_gpus,
                num_jobs,
                rounds,
                shared=name == SHARED,
                types=3 if name == TYPES else 1,
            )
            for view in views:
                began_s = time.process_time()
                plan = policy.allocate(view)
                spent.append(time.process_time() - began_s)
                gaps.append(plan.diagnostics.get("gap", 0.0))
            row[f"{name} ms"] = round(1000 * statistics.median(spent[1:]), 1)
            row[f"{name} gap"] = round(statistics.mean(gaps), 6)
        found[f"{num_gpus} GPUs, {num_jobs} jobs"] = row
        print(num_gpus, row, flush=True)
    return found


SECTIONS: dict[str, Callable[[Bench], dict[str, object]]] = {
    "quality": quality,
    "builtin": builtin,
    "dials": dials,
    "lengths": lengths,
    "predictions": predictions,
    "decisions": decisions,
}


def known_runs(stored: Mapping[str, Run], resume: bool) -> dict[str, Run]:
    """Return the stored runs that are not made again: of castor only to resume, of all
    others.
    """
    return {key: run for key, run in stored.items() if resume or OWN not in key}


def main(argv: list[str] | None = None) -> None:
    """Play the sections, print them and store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--resume", action="store_true", help="keep stored runs of castor, too"
    )
    parser.add_argument("--only", action="append", choices=list(SECTIONS))
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error(
            "--traces or COADAPT_TRACES must name the folder that holds osdi21"
        )
    stored = load_results(RESULTS)
    kept = stored.get("runs", {})
    bench = Bench(Path(options.traces), known_runs(kept, options.resume))
    for section in options.only or SECTIONS:
        stored[section] = SECTIONS[section](bench)
        stored["runs"] = {**kept, **bench.runs}
        store_results(RESULTS, stored)
        print(json.dumps({section: stored[section]}, indent=1), flush=True)


if __name__ == "__main__":
    main()
