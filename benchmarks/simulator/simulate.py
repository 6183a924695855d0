"""What simulating one published workload costs, beside the cost of the Pollux
artifact's own simulator.

`python -m benchmarks.simulator.simulate --traces DIR` (the folder with osdi21/;
default: $COADAPT_TRACES) runs `coadapt simulate` several times per policy, each time in
a fresh process on one BLAS thread, and counts its whole CPU time from the start of
Python, and what is left of it without Python's start and imports: those of another
process that imports the same modules. Results go to benchmarks/results/simulate.json.

`python -m benchmarks.simulator.simulate --against PYTHON` (the Python of another
version's environment) compares what a run costs beyond Python's start and imports,
version against version in alternation, and that both come to the same completion times.
Results go to benchmarks/results/simulate-against.json.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stored import store_results

RESULTS = Path(__file__).parents[1] / "results" / "simulate.json"
RESULTS_AGAINST = Path(__file__).parents[1] / "results" / "simulate-against.json"
ONE_RUN = Path(__file__).with_name("_simulated_run.py")
WORKLOAD = "osdi21/workloads/workload-6.csv"
PROFILES = "osdi21/traces"
CLUSTER = "16x4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One policy. beyond_max_s: allowed beyond the imports, CPU seconds.

    artifact: its CPU seconds, MiB and mean JCT, measured on 2 cores with one BLAS
    thread.
    """

    policy: str
    num_runs: int
    cpu_max_s: float
    beyond_max_s: float | None = None
    artifact: tuple[float, float, float] | None = None


CASES = (
    Case(
        policy="tiresias",
        num_runs=5,
        cpu_max_s=2.0,
        beyond_max_s=0.5,
        artifact=(18.0, 220.0, 3469.694),
    ),
    Case(
        policy="optimus",
        num_runs=5,
        cpu_max_s=2.0,
        beyond_max_s=0.8,
        artifact=(57.0, 199.0, 5301.875),
    ),
    Case(policy="pollux", num_runs=3, cpu_max_s=10.0),
    Case(
        policy="pollux-genetic",
        num_runs=1,
        cpu_max_s=90.0,
        artifact=(1434.0, 189.0, 2446.1),
    ),
)


# Policy and workload of a comparison, and how often each version runs it.
COMPARED = (
    ("tiresias", "builtin", 5),
    ("optimus", "builtin", 5),
    ("pollux", "builtin", 3),
    ("fifo", "rigid:2000", 3),
    ("srtf", "rigid:2000", 3),
)

# Runs the command of its arguments, then writes the modules that there are, in the
# order of their import.
TELL_MODULES = """
import runpy, sys
try:
    runpy.run_module("coadapt.cli.research.simulate", run_name="__main__")
except SystemExit:
    pass
print(*(name for name in sys.modules if name.isascii() and not name.startswith("__")))
"""

# Imports the modules that its arguments name, as far as they can be by themselves.
IMPORT_MODULES = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""


def main(argv: list[str] | None = None) -> None:
    """Measure, print a table or (`--json`) the results, and store them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--policy", action="append", choices=[case.policy for case in CASES]
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--against", help="the Python of another version's environment")
    options = parser.parse_args(argv)
    if options.against:
        compare(options.against)
        return
    if options.traces is None or not (options.traces / WORKLOAD).is_file():
        parser.error(
            f"--traces or COADAPT_TRACES must name the folder that holds {WORKLOAD}"
        )
    cases = [
        case
        for case in CASES
        if options.policy is None or case.policy in options.policy
    ]
    rows = [measure(case, options.traces) for case in cases]
    result = {
        "workload": WORKLOAD,
        "cluster": CLUSTER,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "policies": rows,
    }
    if options.policy is None:
        store_results(RESULTS, result)
    print(json.dumps(result) if options.json else table(rows))


def measure(case: Case, traces: Path) -> dict[str, object]:
    """Return the figures of one policy: medians over its runs, after one that warms the
    caches on disk.
    """
    first_cpu_s, _ = run(case.policy, traces)
    runs = [run(case.policy, traces) for _ in range(case.num_runs)]
    cpu_s = statistics.median(each_cpu_s for each_cpu_s, _ in runs)
    imports_s = imports_cpu_s(case, traces)
    artifact_cpu_s, artifact_rss_mb, artifact_jct_s = case.artifact or (
        None,
        None,
        None,
    )
    return {
        "policy": case.policy,
        "cpu_s": round(cpu_s, 2),
        "cpu_max_s": case.cpu_max_s,
        "beyond_imports_s": round(cpu_s - imports_s, 2),
        "beyond_max_s": case.beyond_max_s,
        "first_cpu_s": round(first_cpu_s, 2),
        "artifact_cpu_s": artifact_cpu_s,
        "peak_rss_mb": round(max(each["peak_rss_mb"] for _, each in runs), 1),
        "artifact_rss_mb": artifact_rss_mb,
        "jct_mean_s": round(runs[0][1]["jct_mean_s"], 3),
        "artifact_jct_s": artifact_jct_s,
        "decision_ms_p50": round(
            statistics.median(each["decision_ms_p50"] for _, each in runs), 3
        ),
    }


def run(policy: str, traces: Path) -> tuple[float, dict[str, float]]:
    """Return the CPU seconds of one `coadapt simulate`, and its result."""
    command = ["-m", "coadapt.cli.research.simulate", *_arguments(policy, traces)]
    cpu_s, told = _counted(command)
    entry: dict[str, float] = json.loads(told)["results"][0]
    return cpu_s, entry


def imports_cpu_s(case: Case, traces: Path) -> float:
    """Return the CPU seconds of Python's start and of importing all that one run of
    `case` imports.
    """
    names = (
        _counted(["-c", TELL_MODULES, *_arguments(case.policy, traces)])[1]
        .splitlines()[-1]
        .split()
    )
    return statistics.median(
        _counted(["-c", IMPORT_MODULES, *names])[0] for _ in range(case.num_runs)
    )


def _arguments(policy: str, traces: Path) -> list[str]:
    options = ["--cluster", CLUSTER, "--policy", policy, "--json"]
    return [str(traces / WORKLOAD), "--profiles", str(traces / PROFILES), *options]


def _counted(arguments: list[str]) -> tuple[float, str]:
    """Return the CPU seconds of a Python with these arguments, and what it wrote."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        done.stdout,
    )


def compare(other: str) -> None:
    """Run each of COMPARED with `other` and with this Python in turn; print and store
    the medians.
    """
    rows = []
    for policy, workload, num_runs in COMPARED:
        runs: dict[str, list[dict[str, float]]] = {other: [], sys.executable: []}
        for _ in range(num_runs + 1):  # the first may compile
            for python, told in runs.items():
                told.append(one_run(python, policy, workload))
        before, now = ([run["cpu_s"] for run in each[1:]] for each in runs.values())
        same = len({run["jct_mean_s"] for each in runs.values() for run in each}) == 1
        row = {
            "policy": policy,
            "workload": workload,
            "before_cpu_s": round(statistics.median(before), 2),
            "cpu_s": round(statistics.median(now), 2),
            "ratio": round(statistics.median(now) / statistics.median(before), 2),
            "peak_rss_mb": round(
                max(run["peak_rss_mb"] for run in runs[sys.executable]), 1
            ),
            "same_results": same,
        }
        print(row, flush=True)
        rows.append(row)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
        "runs": rows,
    }
    store_results(RESULTS_AGAINST, result)


def one_run(python: str, policy: str, workload: str) -> dict[str, float]:
    """Return what one run told of itself."""
    command = [python, str(ONE_RUN), policy, workload]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ONE_RUN.parent
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def table(rows: list[dict[str, object]]) -> str:
    """Return the results as text; `first`: the run before, which may compile code for
    the cache on disk.
    """
    head = (
        "policy",
        "CPU s",
        "allowed",
        "beyond",
        "allowed",
        "first",
        "artifact",
        "MiB",
        "artifact",
        "JCT s",
        "artifact",
        "ms",
    )
    lines = [
        head,
        *(
            ["-" if cell is None else str(cell) for cell in row.values()]
            for row in rows
        ),
    ]
    return "\n".join("".join(cell.rjust(15) for cell in line) for line in lines)


if __name__ == "__main__":
    main()
