"""The whole log of Philly's clusters, or its first jobs, simulated under castor on
4,096 GPUs.

`python -m benchmarks.castor.log --traces DIR [--skip N] [--jobs N]` (the folder with
osdi21/; default: $COADAPT_TRACES): each of the log's 82,000 jobs comes when it came,
and trains what the generator of OSDI'21 draws for a job of its GPU-hours. A part of the
log begins with its first arrival. A bar on stderr tells how far it is; `--profile`
tells where the time goes. Figures go to benchmarks/results/castor_log.json.
"""

import argparse
import cProfile
import json
import os
import platform
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.stored import load_results, store_results
from coadapt.model import Node
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, RunResult, simulate
from coadapt.sim.traces import load_trace, read_log
from coadapt.sim.traces.osdi21 import applications_in
from coadapt.sim.traces.osdi21_generator import requests_of, whole
from coadapt.sim.traces.tuned_jobs import write_jobs
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parents[1] / "results" / "castor_log.json"
NODES = 1024
GPUS_PER_NODE = 4
CPU_MAX_S = 900.0
MEMORY_MAX_MB = 4096.0
HORIZON_S = 200 * 86_400.0  # the log has 109 days, and what comes last has to end
BAR = 40  # characters


def load(traces: Path, part: slice) -> tuple[Workload, Mapping[str, Application]]:
    """Return a part of the log with what was drawn for its jobs, the first of which
    comes at 0 s.
    """
    profiles = traces / "osdi21" / "traces"
    jobs = whole(
        list(read_log(profiles / "philly.csv")), requests_of(applications_in(profiles))
    )
    jobs = jobs[part]
    jobs = [job._replace(time=job.time - jobs[0].time) for job in jobs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "philly.csv")
        write_jobs(path, jobs)
        return load_trace(path, profiles)


def draw_bar(now_s: float, ended: int, num_jobs: int, began_s: float) -> None:
    """Write how far a run is: jobs that ended, days of the log, CPU seconds so far and
    to come.
    """
    spent_s = time.process_time() - began_s
    share = ended / num_jobs
    rest = f"{spent_s / share - spent_s:,.0f} s to go" if share > 0.01 else ""
    bar = "#" * round(BAR * share) + "." * (BAR - round(BAR * share))
    line = (
        f"\r{bar} {ended:,}/{num_jobs:,} jobs, day {now_s / 86_400:.1f}, "
        f"{spent_s:,.0f} CPU s, {rest:20}"
    )
    sys.stderr.write(line)
    sys.stderr.flush()


def run(traces: Path, policy: str, part: slice, config: ExperimentConfig) -> RunResult:
    """Simulate a part of the log, with a bar on a terminal and a line now and then
    elsewhere.
    """
    workload, applications = load(traces, part)
    cluster = tuple(
        Node(id=f"n{number:04}", num_gpus=GPUS_PER_NODE) for number in range(NODES)
    )
    began_s = time.process_time()
    shown_s = 0.0
    every_s = 0.5 if sys.stderr.isatty() else 20.0

    def on_progress(now_s: float, ended: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > every_s:
            shown_s = time.monotonic()
            draw_bar(now_s, ended, len(workload.jobs), began_s)

    result = simulate(
        workload, applications, cluster, policy, config=config, on_progress=on_progress
    )
    draw_bar(result.metrics.makespan_s, len(result.jobs), len(workload.jobs), began_s)
    sys.stderr.write("\n")
    return result


def figures(result: RunResult) -> dict[str, object]:
    """Return what a run gave and cost; CPU seconds of the run without its imports and
    the workload's.
    """
    found = result.metrics
    return {
        "jobs": len(result.jobs),
        "cpu_s": round(result.cpu_s, 1),
        "cpu_max_s": CPU_MAX_S,
        "peak_rss_mb": round(result.peak_rss_mb, 1),
        "memory_max_mb": MEMORY_MAX_MB,
        "rounds": len(result.history.rounds),
        "plans_failed": result.num_plans_failed,
        "jct_mean_s": round(found.jct_mean_s, 1),
        "jct_p99_s": round(found.jct_p99_s, 1),
        "makespan_s": round(found.makespan_s, 1),
        "rho_max": round(found.rho_max, 3),
        "utilisation": round(found.utilisation, 4),
        "rescales": found.num_rescales,
        "decision_ms_p50": round(found.decision_ms_p50, 3),
        "decision_ms_max": round(found.decision_ms_max, 1),
        "applications": dict(
            sorted(Counter(each.application for each in result.jobs).items())
        ),
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        ),
    }


def main(argv: list[str] | None = None) -> None:
    """Run, print and store the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--skip", type=int, default=0, help="so many jobs at the beginning of the log"
    )
    parser.add_argument("--jobs", type=int, help="so many jobs only")
    parser.add_argument("--policy", default="castor")
    parser.add_argument("--round", type=float, default=60.0, help="seconds")
    parser.add_argument(
        "--reaction",
        type=float,
        help="seconds from an arrival or exit to a round; inf: none",
    )
    parser.add_argument(
        "--reports",
        type=float,
        help="seconds between a job's reports; default: a round",
    )
    parser.add_argument(
        "--profile", action="store_true", help="tell where the time goes; store nothing"
    )
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error(
            "--traces or COADAPT_TRACES must name the folder that holds osdi21"
        )
    config = ExperimentConfig(
        round_s=options.round,
        reaction_s=options.reaction,
        report_s=options.reports,
        figures_only=True,
        horizon_s=HORIZON_S,
    )
    part = slice(
        options.skip, None if options.jobs is None else options.skip + options.jobs
    )
    asked = (Path(options.traces), options.policy, part, config)
    if options.profile:
        profile = cProfile.Profile()
        told = figures(profile.runcall(run, *asked))
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        print(json.dumps(told, indent=1))
        return
    told = figures(run(*asked))
    rounds = "" if options.reaction is None else f" reaction {options.reaction:g} s"
    reports = "" if options.reports is None else f" reports {options.reports:g} s"
    stored = load_results(RESULTS)
    skipped = f" after {options.skip}" if options.skip else ""
    settings = f"round {options.round:g} s{rounds}{reports}"
    stored[f"{options.policy} {told['jobs']} jobs{skipped}, {settings}"] = told
    store_results(RESULTS, stored)
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
