"""Which window Shockwave should plan, on generated workloads: python -m
benchmarks.policies.shockwave_window TABLE

TABLE is the artifact's throughput table (scheduler/tacc_throughputs.json of
uw-mad-dash/shockwave). Workloads are drawn with the shares of the artifact's generator;
none of its traces is used, so that the default is not fitted to what it is judged by.
"""

import argparse
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np

from coadapt.model import Node
from coadapt.policies import create_policy
from coadapt.sim.experiment import ExperimentConfig, compose
from coadapt.sim.metrics import UNFAIR_ABOVE
from coadapt.sim.static_fairness import static_fairness
from coadapt.sim.traces.shockwave import DATASET, load, read_throughputs

NUM_JOBS = 120
NUM_GPUS = 32
MEAN_GAP_S = 42.0
SHORTEST_S = 720.0
LONGEST_S = 18_000.0
WIDTHS = (1, 2, 4)
WIDTH_SHARES = (0.65, 0.28, 0.07)
BATCHES = {
    "ResNet-18": (16, 32, 64, 128, 256),
    "ResNet-50": (16, 32, 64, 128),
    "Transformer": (16, 32, 64, 128),
    "LM": (5, 10, 20, 40, 80),
    "Recommendation": (512, 1024, 2048, 4096, 8192),
}


def draw_trace(seed: int, rates: dict[tuple[str, int, int], float]) -> str:
    """Return a trace: models, batches, widths, modes and log-uniform lengths drawn from
    `seed`.
    """
    rng = np.random.default_rng(seed)
    at = 0.0
    lines = []
    while len(lines) < NUM_JOBS:
        model = str(rng.choice(list(DATASET)))
        width = (
            1 if model == "Recommendation" else int(rng.choice(WIDTHS, p=WIDTH_SHARES))
        )
        batch = int(rng.choice(BATCHES[model]))
        needed = [each for each in BATCHES[model] if each >= batch]
        if any(rates.get((model, each, width), 0.0) <= 0.0 for each in needed):
            continue
        seconds = float(np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S))))
        steps = max(int(seconds * rates[model, batch, width]), 1)
        mode = str(rng.choice(["accordion", "gns"]))
        cells = (
            f"{model} (batch size {batch})",
            "-",
            "-",
            "-",
            0,
            steps,
            width,
            mode,
            1,
            -1,
            int(seconds),
            at,
        )
        lines.append("\t".join(map(str, cells)))
        at += float(rng.exponential(MEAN_GAP_S))
    return "\n".join(lines) + "\n"


def figures(
    trace: Path, table: Path, options: dict[str, object]
) -> tuple[float, float, float, float]:
    """Return makespan and mean completion time in s, the largest ρ and the share of
    jobs above 1.05.
    """
    workload, applications = load(trace, table)
    cluster = (Node(id="cluster", num_gpus=NUM_GPUS),)
    config = ExperimentConfig(round_s=120.0, rescale_s=20.0)
    simulation = compose(
        workload, applications, cluster, create_policy("shockwave", **options), config
    )
    simulation.run()
    history = simulation.recorder.history
    alone_s = {
        job.id: applications[job.application].exclusive_s for job in workload.jobs
    }
    rho = list(static_fairness(history, alone_s, NUM_GPUS).values())
    jobs = history.jobs.values()
    ends = [job.ended_at or 0.0 for job in jobs]
    jct_s = mean(end - job.submitted_at for end, job in zip(ends, jobs, strict=True))
    return (
        max(ends),
        jct_s,
        max(rho),
        sum(each > UNFAIR_ABOVE for each in rho) / len(rho),
    )


def main(arguments: list[str]) -> int:
    """Print one line per setting: means over the drawn workloads, and the CPU seconds
    of a run.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies.shockwave_window"
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(arguments)
    rates = read_throughputs(given.table)
    with tempfile.TemporaryDirectory() as folder:
        traces = [Path(folder, f"{seed}.trace") for seed in range(given.seeds)]
        for seed, trace in enumerate(traces):
            trace.write_text(draw_trace(seed, rates), encoding="utf-8")
        for num_rounds, replan in product((20, 30, 40, 50, 60), (3, 8)):
            started_s = time.process_time()
            options = {"num_rounds": num_rounds, "replan_rounds": replan}
            found = [figures(trace, given.table, options) for trace in traces]
            makespan, jct, rho, unfair = (
                mean(column) for column in zip(*found, strict=True)
            )
            spent_s = (time.process_time() - started_s) / given.seeds
            sys.stdout.write(
                f"rounds {num_rounds:3} replan {replan}: makespan {makespan:8.0f} s, "
                f"mean JCT {jct:7.0f} s, "
                f"largest rho {rho:.3f}, unfair {100 * unfair:.1f} %, {spent_s:.1f} "
                f"CPU s\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
