"""The workloads that castor and pollux are compared on with intervals: drawn as those
of OSDI'21 were.

`python -m benchmarks.castor.generated --traces DIR [--count N]`: loads 0.5 to 2, ten
seeds each, 40 in all, as castor is and in rounds alone. Stored runs of pollux are not
made again, nor with `--resume` those of castor, so it can be stopped and go on. All
take about five minutes of a core.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.castor.osdi21 import CLUSTER, FIGURES, Bench, Run, known_runs
from benchmarks.stored import load_results, store_results
from coadapt.sim.applications import Application
from coadapt.sim.traces import load_trace, read_log
from coadapt.sim.traces.osdi21 import applications_in
from coadapt.sim.traces.osdi21_generator import Recipe, generate, requests_of
from coadapt.sim.traces.tuned_jobs import write_jobs
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parents[1] / "results" / "castor_generated.json"
JOBS = (160, 80, 240, 320)  # load 1, 0.5, 1.5 and 2
SEEDS = 10
T_95 = {
    3: 4.30,
    5: 2.78,
    10: 2.26,
    20: 2.09,
    40: 2.02,
}  # Student's t for so many values, two sides


class Drawn(Bench):
    """A bench whose workloads are named jobs/seed."""

    def load(self, name: str) -> tuple[Workload, Mapping[str, Application]]:
        num_jobs, _, seed = name.partition("/")
        profiles = self.traces / "osdi21" / "traces"
        folder = RESULTS.parent / ".drawn"
        path = folder / f"workload-{num_jobs}-{seed}.csv"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            recipe = Recipe(num_jobs=int(num_jobs), seed=int(seed))
            log = list(read_log(profiles / "philly.csv"))
            write_jobs(
                path, generate(log, requests_of(applications_in(profiles)), recipe)
            )
        return load_trace(path, profiles)


def interval(values: Sequence[float]) -> list[float]:
    """Return the mean and half the width of its 95 % confidence interval."""
    if len(values) < min(T_95):
        return [round(statistics.mean(values), 3)]
    times = T_95[max(count for count in T_95 if count <= len(values))]
    half = times * statistics.stdev(values) / len(values) ** 0.5
    return [round(statistics.mean(values), 3), round(half, 3)]


WAYS = {
    "": None,
    ", rounds alone": math.inf,
}  # from an arrival or exit to a round, s; None: as castor wants


def compared(bench: Bench, names: Sequence[str]) -> dict[str, object]:
    """Return castor's figures over those of pollux, over all workloads and per load."""
    groups = {"all": list(names)}
    for jobs in JOBS:
        groups[f"{jobs} jobs"] = [name for name in names if name.startswith(f"{jobs}/")]
    found: dict[str, object] = {}
    for way, reaction_s in WAYS.items():
        ratios: dict[str, Run] = {}
        for name in names:
            castor = bench.run(name, "castor", reaction_s=reaction_s)
            pollux = bench.run(name, "pollux")
            ratios[name] = {
                figure: castor[figure] / pollux[figure] for figure in FIGURES
            }
        for group, members in groups.items():
            if members:
                found[group + way] = {
                    figure: interval([ratios[name][figure] for name in members])
                    for figure in FIGURES
                } | {"workloads": len(members)}
    return found


def main(argv: list[str] | None = None) -> None:
    """Play the first workloads, print the comparison and store it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--count", type=int, default=len(JOBS) * SEEDS)
    parser.add_argument(
        "--resume", action="store_true", help="keep stored runs of castor, too"
    )
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error(
            "--traces or COADAPT_TRACES must name the folder that holds osdi21"
        )
    stored = load_results(RESULTS)
    bench = Drawn(
        Path(options.traces), known_runs(stored.get("runs", {}), options.resume)
    )
    names = [f"{jobs}/{seed}" for seed in range(SEEDS) for jobs in JOBS][
        : options.count
    ]
    for number in range(1, len(names) + 1):
        found = compared(bench, names[:number])
        figures = {
            "gpus": sum(node.num_gpus for node in CLUSTER),
            "compared": found,
            "runs": bench.runs,
        }
        store_results(RESULTS, figures)
    print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()
