"""A live run beside its simulation: 20 short jobs on 4 slots of a real scheduler.

    python -m benchmarks.service.replayed [--policy NAME ...]

The jobs mostly sleep, so that slots which share cores do not slow each other down; one
that is stopped notes what is left and goes on from there. Each run is read from its
journal as `coadapt trace from-journal` does it, and simulated on as many slots, by the
same policy, rounds and measured cost of a start. A job before them waits until the
policy's process is up, which takes seconds, and is left out: the simulated policy is up
at once. Compared are the makespan, the mean
time from submission to end, and the order of first starts.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.stored import load_results, store_results
from coadapt.cli.cluster.read_back import read_back
from coadapt.cli.state_dir import StateDir
from coadapt.model import JobId, Node
from coadapt.runtime.history import History
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.recorded import recorded, write_recorded
from tests.cli.live_cluster import LiveCluster

RESULTS = Path(__file__).parents[1] / "results" / "replayed.json"
POLICIES = ("fifo", "tiresias", "castor")
SLOTS = 4
NUM_JOBS = 20
SEED = 5
ROUND_S = 1
REACTION_S = 0.1
# A simulated job ends when it would report. The sleepers end at any instant.
REPORT_S = 0.1
PATIENCE_S = 600.0
# Two starts that are closer than this have no order that repeats.
TIE_S = 0.5

SLEEPER = """\
cd "$COADAPT_CHECKPOINT_DIR"
left=$(cat left 2> /dev/null || echo "$LENGTH")
began=$(date +%s.%N)
stopped() {
  awk "BEGIN {left = $left - ($(date +%s.%N) - $began); print (left > 0 ? left : 0)}" \\
    > left.new
  mv left.new left
  kill $!
  exit 75
}
trap stopped TERM
sleep "$left" &
wait $!
"""


def live(policy: str, folder: Path, num_jobs: int) -> History:
    """Return the history of a live run of the jobs under `policy`."""
    random = np.random.default_rng(SEED)
    arrivals = np.cumsum(random.exponential(3.0, num_jobs))
    lengths = np.clip(random.lognormal(2.4, 0.6, num_jobs), 4.0, 40.0)
    gpus = random.choice([1, 1, 1, 2, 4], num_jobs)
    cluster = LiveCluster(folder, policy)
    try:
        cluster.up(SLOTS, round_s=ROUND_S)
        first = cluster.submit("warm-up", "true", "1")
        cluster.wait_for(first, "succeeded", within_s=PATIENCE_S)
        begun = time.monotonic()
        names = []
        for number, at in enumerate(arrivals):
            time.sleep(max(begun + at - time.monotonic(), 0.0))
            length = f"{lengths[number]:.2f}"
            names.append(
                cluster.submit(
                    f"job-{number:02d}", SLEEPER, str(gpus[number]), LENGTH=length
                )
            )
        for name in names:
            cluster.wait_for(name, "succeeded", within_s=PATIENCE_S)
        cluster.kill(15)
        directory = StateDir(folder.absolute() / "state")
        _, history = read_back(
            directory.journal, directory.index, directory.first_config()
        )
        del history.jobs[first]
        return history
    finally:
        cluster.close()


def simulated(policy: str, history: History, folder: Path) -> tuple[History, float]:
    """Return the history of the run's simulation, and what a start took, s."""
    found = recorded(history)
    path = folder / "run.csv"
    write_recorded(path, found)
    workload, applications = load_trace(path)
    config = ExperimentConfig(
        round_s=float(ROUND_S),
        reaction_s=REACTION_S,
        report_s=REPORT_S,
        rescale_s=found.start_s,
    )
    cluster = (Node(id="node-0", num_gpus=SLOTS),)
    run = simulate(workload, applications, cluster, policy, config=config)
    return run.history, found.start_s


def compared(was: History, now: History) -> dict[str, object]:
    """Return the figures of the live run, and how far the simulated one is off."""
    figures: dict[str, object] = {}
    for name, of in (("makespan_s", makespan_s), ("mean_jct_s", mean_jct_s)):
        then, again = of(was), of(now)
        figures[name] = round(then, 2)
        figures[f"{name}_simulated"] = round(again, 2)
        figures[f"{name}_off"] = round(again / then - 1.0, 4)
    then = starts(was)
    # The table numbers its rows: `00-` goes before the name of a job.
    again = {job.partition("-")[2]: at for job, at in starts(now).items()}
    swapped = [
        (a, b)
        for a in then
        for b in then
        if then[b] - then[a] > TIE_S and again[a] - again[b] > TIE_S
    ]
    figures["pairs_started_in_another_order"] = len(swapped)
    figures["pairs"] = len(then) * (len(then) - 1) // 2
    figures["preemptions"] = preemptions(was)
    figures["preemptions_simulated"] = preemptions(now)
    return figures


def makespan_s(history: History) -> float:
    ends = [job.ended_at or 0.0 for job in history.jobs.values()]
    return max(ends) - min(job.submitted_at for job in history.jobs.values())


def mean_jct_s(history: History) -> float:
    took = [(job.ended_at or 0.0) - job.submitted_at for job in history.jobs.values()]
    return sum(took) / len(took)


def starts(history: History) -> Mapping[JobId, float]:
    """Return when each job first had GPUs, s after the first submission."""
    first = min(job.submitted_at for job in history.jobs.values())
    return {
        job.id: next(span.start for span in job.spans if span.num_gpus) - first
        for job in history.jobs.values()
    }


def preemptions(history: History) -> int:
    """Return how often jobs lost all GPUs and got some again."""
    return sum(
        sum(
            bool(before.num_gpus) and not after.num_gpus
            for before, after in zip(job.spans, job.spans[1:], strict=False)
        )
        for job in history.jobs.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*", default=POLICIES)
    parser.add_argument("--jobs", type=int, default=NUM_JOBS)
    parser.add_argument("--no-store", action="store_true")
    arguments = parser.parse_args()
    found = cast("dict[str, object]", load_results(RESULTS))
    for policy in arguments.policy:
        with tempfile.TemporaryDirectory() as folder:
            was = live(policy, Path(folder), arguments.jobs)
            print(policy, "ran", round(makespan_s(was), 1), "s", flush=True)
            now, start_s = simulated(policy, was, Path(folder))
        row = {"start_s": round(start_s, 3), **compared(was, now)}
        print(policy, json.dumps(row), flush=True)
        found[policy] = row
        if not arguments.no_store:
            store_results(RESULTS, found)


if __name__ == "__main__":
    main()
