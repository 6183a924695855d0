"""Castor on the published setups of two rivals: Sia's cluster of three GPU types, and Shockwave's 120 jobs.

`python -m benchmarks.castor_published --traces DIR` (the folder with sia/ and shockwave/; default:
$COADAPT_TRACES) plays castor and the rival in each, with the rival's rounds and rescale times, and puts what
they gave into benchmarks/results/castor_published.json. `--only NAME` plays one setup, `--policy` one policy.
"""

import argparse
import json
import os
import platform
from pathlib import Path

from coadapt.cli.research.inputs import parse_cluster
from coadapt.sim.experiment import ExperimentConfig, RunResult, simulate
from coadapt.sim.static_fairness import static_fairness
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.shockwave import load

RESULTS = Path(__file__).parent / "results" / "castor_published.json"
SIA, SIA_CLUSTER = ("philly/1", "philly/2", "saturn/1"), "6x4:aws,2x8:dgx-ext,3x8:rtx"
SHOCKWAVE, SHOCKWAVE_GPUS = "shockwave/120", 32
RIVALS = dict.fromkeys(SIA, "sia") | {SHOCKWAVE: "shockwave"}

Run = dict[str, float]


def on_sias_cluster(traces: Path, name: str, policy: str) -> Run:
    """Return the figures of a workload of Sia's artifact: rounds of 60 s, each model's own rescale time."""
    source, number = name.split("/")
    path = traces / "sia" / "workloads" / source / f"workload-{number}.csv"
    workload, applications = load_trace(path, traces / "sia" / "traces")
    config = ExperimentConfig(figures_only=True)
    result = simulate(workload, applications, parse_cluster(SIA_CLUSTER), policy, config=config)
    return figures(result) | {"rho": round(result.metrics.rho_max, 3)}


def on_shockwaves_trace(traces: Path, _: str, policy: str) -> Run:
    """Return the figures of the artifact of Shockwave: rounds of 120 s, 20 s per start, its own ρ."""
    folder = traces / "shockwave"
    workload, applications = load(folder / "120_jobs_32_gpus.trace", folder)
    config = ExperimentConfig(round_s=120.0, rescale_s=20.0, figures_only=True)
    result = simulate(workload, applications, parse_cluster(f"1x{SHOCKWAVE_GPUS}"), policy, config=config)
    alone_s = {job.id: applications[job.application].exclusive_s for job in workload.jobs}
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


def main(argv: list[str] | None = None) -> None:
    """Play, print and store the figures, and castor's over the rival's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--only", action="append", choices=[*SIA, SHOCKWAVE])
    parser.add_argument("--policy", action="append")
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "sia").is_dir():
        parser.error("--traces or COADAPT_TRACES must name the folder that holds sia and shockwave")
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in options.only or RIVALS:
        play = on_shockwaves_trace if name == SHOCKWAVE else on_sias_cluster
        runs = stored.setdefault("runs", {}).setdefault(name, {})
        for policy in options.policy or ("castor", RIVALS[name]):
            runs[policy] = play(Path(options.traces), name, policy)
            print(name, policy, runs[policy], flush=True)
        if {"castor", RIVALS[name]} <= runs.keys():
            own, rival = runs["castor"], runs[RIVALS[name]]
            ratios = {each: round(own[each] / rival[each], 3) for each in ("jct", "p99", "makespan", "rho")}
            stored.setdefault("castor over its rival", {})[name] = ratios
            print(name, ratios, flush=True)
        stored["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        RESULTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
