"""Castor elsewhere than on 16 x 4 GPUs at 30 s: other clusters, rescales, rounds,
reports; drawn workloads.

`python -m benchmarks.castor.elsewhere --traces DIR` (the folder with osdi21/; or
$COADAPT_TRACES) plays both, castor and pollux, in each place, with as many jobs per
GPU. The figures over those of pollux there go into
benchmarks/results/castor_elsewhere.json, with the commit of each row. Stored runs of
pollux are not made again, nor with `--resume` those of castor. Rows that a run does not
reach stay as they are. It takes about 15 minutes of a core.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.castor.gap import bench_of, mean_and_error
from benchmarks.castor.generated import Drawn
from benchmarks.castor.osdi21 import CLUSTER, FIGURES, OWN
from benchmarks.stored import load_results, store_results, this_run
from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import Node
from coadapt.policies import create_policy
from coadapt.sim.experiment import ExperimentConfig

RESULTS = Path(__file__).parents[1] / "results" / "castor_elsewhere.json"
SEEDS = range(4)
USUAL = ExperimentConfig()


class Place(NamedTuple):
    """Where jobs run, how many there are, and the settings."""

    cluster: tuple[Node, ...] = CLUSTER
    num_jobs: int = 160
    config: ExperimentConfig = USUAL


# Nodes have four GPUs at most: on more the public profiles measured nothing.
PLACES = {
    "4 nodes of 4": Place(parse_cluster("4x4"), 40),
    "8 nodes of 4": Place(parse_cluster("8x4"), 80),
    "32 nodes of 4": Place(parse_cluster("32x4"), 320),
    "32 nodes of 2": Place(parse_cluster("32x2")),
    "64 nodes of 1": Place(parse_cluster("64x1")),
    "rescales of 5 s": Place(config=ExperimentConfig(rescale_s=5.0)),
    "rescales of 120 s": Place(config=ExperimentConfig(rescale_s=120.0)),
    "rescales of 300 s": Place(config=ExperimentConfig(rescale_s=300.0)),
    "rounds of 300 s": Place(config=ExperimentConfig(round_s=300.0)),
    "reports every 300 s": Place(config=ExperimentConfig(report_s=300.0)),
    "interference 0.3": Place(config=ExperimentConfig(interference=0.3)),
}


def over_pollux(bench: Drawn, name: str, place: Place) -> dict[str, list[float]]:
    """Return castor's figures over those of pollux, means over workloads and standard
    errors.
    """
    bench.cluster = place.cluster
    ratios = []
    for seed in SEEDS:
        runs = []
        for policy in (OWN.strip(), "pollux"):
            key = f"{name}, {seed} {policy}"
            if key not in bench.runs:
                played, _ = bench.play(
                    f"{place.num_jobs}/{seed}", create_policy(policy), place.config
                )
                bench.runs[key] = played
            runs.append(bench.runs[key])
        ratios.append({figure: runs[0][figure] / runs[1][figure] for figure in FIGURES})
    return {
        figure: mean_and_error([each[figure] for each in ratios]) for figure in FIGURES
    }


def table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| | mean completion time | p99 | makespan | worst ρ |",
        "|---|---|---|---|---|",
    ]
    for name, figures in found.items():
        cells = " | ".join(
            f"{mean:.3f} ± {error:.3f}" for mean, error in figures.values()
        )
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Play, print and store."""
    bench = bench_of(__doc__, argv, RESULTS)
    stored = load_results(RESULTS)
    found: dict[str, dict[str, list[float]]] = stored.get("over pollux", {})
    commits: dict[str, str] = stored.get("commits", {})
    for name, place in PLACES.items():
        num_known = len(bench.runs)
        found[name] = over_pollux(bench, name, place)
        if len(bench.runs) > num_known:
            commits[name] = this_run()["commit"]
        print(name, found[name], flush=True)
        figures = {"over pollux": found, "commits": commits, "runs": bench.runs}
        store_results(RESULTS, figures)
    print(table(found))


if __name__ == "__main__":
    main()
