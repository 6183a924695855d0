"""Castor on the published setups of two rivals: Sia's cluster of three GPU types, and
Shockwave's 120 jobs.

`python -m benchmarks.castor.published --traces DIR` (the folder with sia/ and
shockwave/; default: $COADAPT_TRACES) plays castor and the rival in each, with the
rival's rounds and rescale times, and puts what they gave into
benchmarks/results/castor_published.json. `--only NAME` plays one setup, `--policy` one
policy. `--drawn N` plays N workloads drawn as Sia's were in place of all these (seeds 0
to N - 1), and stores means over `sia` with 95 % intervals; stored runs of `sia` are not
made again. A run takes some 15 s.
`--predictions N` stores how accurate castor's predictions on these N were (for ends,
in each round).
"""

import argparse
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.castor.generated import interval
from benchmarks.castor.osdi21 import FIGURES, Recorded, Run, accuracy
from benchmarks.stored import load_results, store_results
from coadapt.cli.research.inputs import parse_cluster
from coadapt.sim.experiment import ExperimentConfig, RunResult, compose, simulate
from coadapt.sim.static_fairness import static_fairness
from coadapt.sim.traces import load_trace, read_log
from coadapt.sim.traces.osdi21 import applications_in
from coadapt.sim.traces.osdi21_generator import Recipe, generate, requests_of
from coadapt.sim.traces.shockwave import load
from coadapt.sim.traces.tuned_jobs import TunedJob, write_jobs

RESULTS = Path(__file__).parents[1] / "results" / "castor_published.json"
SIA = ("philly/1", "philly/2", "saturn/1")
SIA_CLUSTER = "6x4:aws,2x8:dgx-ext,3x8:rtx"
SHOCKWAVE = "shockwave/120"
SHOCKWAVE_GPUS = 32
RIVALS = dict.fromkeys(SIA, "sia") | {SHOCKWAVE: "shockwave"}

Stored = dict[str, Any]  # what RESULTS holds


def on_sias_cluster(traces: Path, name: str, policy: str) -> Run:
    """Return the figures of a workload of Sia's artifact."""
    source, number = name.split("/")
    return _as_sia(
        traces, traces / "sia" / "workloads" / source / f"workload-{number}.csv", policy
    )


def _as_sia(traces: Path, path: Path, policy: str) -> Run:
    """Return the figures of a workload on Sia's cluster: rounds of 60 s, each model's
    own rescale time.
    """
    workload, applications = load_trace(path, traces / "sia" / "traces")
    config = ExperimentConfig(figures_only=True)
    result = simulate(
        workload, applications, parse_cluster(SIA_CLUSTER), policy, config=config
    )
    return figures(result) | {"rho": round(result.metrics.rho_max, 3)}


def drawn(traces: Path, seed: int) -> Path:
    """Return a workload of 160 jobs of Philly's log: as those of OSDI'21, but without
    `ncf`, as Sia's.
    """
    path = RESULTS.parent / ".drawn" / f"sia-{seed}.csv"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        profiles = traces / "osdi21" / "traces"
        requests = requests_of(applications_in(profiles))
        requests["ncf"] = requests["cifar10"]
        jobs = generate(
            list(read_log(profiles / "philly.csv")), requests, Recipe(seed=seed)
        )
        write_jobs(path, map(_without_ncf, jobs))
    return path


def _without_ncf(job: TunedJob) -> TunedJob:
    if job.application != "ncf":
        return job
    return job._replace(name=job.name.replace("ncf", "cifar10"), application="cifar10")


def on_shockwaves_trace(traces: Path, _: str, policy: str) -> Run:
    """Return the figures of the artifact of Shockwave: rounds of 120 s, 20 s per start,
    its own ρ.
    """
    folder = traces / "shockwave"
    workload, applications = load(folder / "120_jobs_32_gpus.trace", folder)
    config = ExperimentConfig(round_s=120.0, rescale_s=20.0, figures_only=True)
    result = simulate(
        workload,
        applications,
        parse_cluster(f"1x{SHOCKWAVE_GPUS}"),
        policy,
        config=config,
    )
    alone_s = {
        job.id: applications[job.application].exclusive_s for job in workload.jobs
    }
    rho = static_fairness(result.history, alone_s, SHOCKWAVE_GPUS).values()
    return figures(result) | {
        "rho": round(max(rho), 3),
        "unfair": sum(each > 1.05 for each in rho) / len(rho),
    }


def figures(result: RunResult) -> Run:
    """Return what a run gave, s, and what its decisions cost."""
    found = result.metrics
    return {
        "jct": round(found.jct_mean_s, 1),
        "p99": round(found.jct_p99_s, 1),
        "makespan": round(found.makespan_s, 1),
        "unfair": round(found.unfair_share, 4),
        "rescales": found.num_rescales,
        "decision_ms": round(found.decision_ms_p50, 2),
        "plans_failed": result.num_plans_failed,
    }


def play_published(
    stored: Stored, traces: Path, names: Iterable[str], policies: Sequence[str]
) -> None:
    """Play the setups of these names; no policies: castor and its rival."""
    for name in names:
        play = on_shockwaves_trace if name == SHOCKWAVE else on_sias_cluster
        rival = RIVALS[name]
        runs = stored.setdefault("runs", {}).setdefault(name, {})
        for policy in policies or ("castor", rival):
            runs[policy] = play(traces, name, policy)
            print(name, policy, runs[policy], flush=True)
        if {"castor", rival} <= runs.keys():
            ratios = {
                figure: round(runs["castor"][figure] / runs[rival][figure], 3)
                for figure in FIGURES
            }
            stored.setdefault("castor over its rival", {})[name] = ratios
            print(name, ratios, flush=True)
        _store(stored)


def play_drawn(
    stored: Stored, traces: Path, count: int, policies: Sequence[str]
) -> None:
    """Play `count` drawn workloads on Sia's cluster; stored runs of `sia` are not made
    again.
    """
    runs = stored.setdefault("drawn runs", {})
    for seed in range(count):
        of_seed = runs.setdefault(str(seed), {})
        for policy in policies or ("castor", "sia"):
            if policy != "sia" or policy not in of_seed:
                run = _as_sia(traces, drawn(traces, seed), policy)
                of_seed[policy] = {
                    each: run[each] for each in (*FIGURES, "unfair", "rescales")
                }
            print(seed, policy, of_seed[policy], flush=True)
        stored["drawn, over sia"] = _over_sia(runs.values())
        _store(stored)
    print(json.dumps(stored["drawn, over sia"], indent=1))


def play_predictions(stored: Stored, traces: Path, count: int) -> None:
    """Store how accurate castor's predictions on `count` drawn workloads were."""
    played = []
    for seed in range(count):
        policy, (workload, applications) = (
            Recorded(),
            load_trace(drawn(traces, seed), traces / "sia" / "traces"),
        )
        simulation = compose(
            workload,
            applications,
            parse_cluster(SIA_CLUSTER),
            policy,
            ExperimentConfig(),
        )
        simulation.run()
        played.append((policy, simulation.recorder.history))
    stored["predictions"] = accuracy(played)
    print(json.dumps(stored["predictions"], indent=1))
    _store(stored)


def _over_sia(runs: Iterable[Mapping[str, Run]]) -> dict[str, object]:
    """Return each policy's figures over those of `sia`, as means with 95 %
    intervals.
    """
    compared = [played for played in runs if "sia" in played]
    found: dict[str, object] = {}
    for policy in sorted(
        {policy for played in compared for policy in played} - {"sia"}
    ):
        both = [
            (played[policy], played["sia"]) for played in compared if policy in played
        ]
        over = {
            figure: interval([own[figure] / sia[figure] for own, sia in both])
            for figure in FIGURES
        }
        found[policy] = over | {"workloads": len(both)}
    return found


def _store(stored: Stored) -> None:
    stored["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    store_results(RESULTS, stored)


def main(argv: list[str] | None = None) -> None:
    """Play, print and store the figures, and castor's over the rival's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", action="append", choices=[*SIA, SHOCKWAVE])
    which.add_argument(
        "--drawn", type=int, default=0, metavar="N", help="so many drawn workloads"
    )
    which.add_argument(
        "--predictions",
        type=int,
        default=0,
        metavar="N",
        help="of so many drawn workloads",
    )
    parser.add_argument("--policy", action="append", default=[])
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "sia").is_dir():
        parser.error(
            "--traces or COADAPT_TRACES must name the folder that holds sia and "
            "shockwave"
        )
    if (options.drawn or options.predictions) and not Path(
        options.traces, "osdi21"
    ).is_dir():
        parser.error(
            "--drawn and --predictions draw from Philly's log, which is in the "
            "folder osdi21 of --traces"
        )
    stored: Stored = load_results(RESULTS)
    if options.drawn:
        play_drawn(stored, Path(options.traces), options.drawn, options.policy)
    elif options.predictions:
        play_predictions(stored, Path(options.traces), options.predictions)
    else:
        play_published(
            stored, Path(options.traces), options.only or RIVALS, options.policy
        )


if __name__ == "__main__":
    main()
