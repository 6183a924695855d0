"""On Ray, beside Ray Train in the same run: the pause of a change over nodes, and from
submit to first step.

python -m benchmarks.engines.ray_engine [--rounds N]        (needs: pip install
'ray[train]')

A Ray cluster whose three nodes of one CPU are this machine. 25 M parameters, momentum
SGD, gloo, 2 -> 3 -> 2 replicas on as many nodes: with Coadapt in place, and with Ray
Train elastic (`num_workers=(2, 3)`), which restarts its workers when a node came, and
when one was lost, its only way to shrink. A pause lasts from the end of the last step
before to the end of the first one after, read from the logs of the replicas.

Then a start: from the user's command (`coadapt submit`; a script that calls
`TorchTrainer.fit`) to the end of the first step of two replicas on two nodes. Results
go to benchmarks/results/ray_engine.json. With `--before FOLDER/src` only the pauses are
measured, by turns with the package of another checkout, and go to
ray_engine_turns.json.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.stored import store_results
from benchmarks.trainer.rescale import (
    JOB,
    STEADY_STEPS,
    WAIT_MAX_S,
    Way,
    folder_of,
    measure,
)
from coadapt.core.commands import Rescale, Start
from coadapt.core.events import Event
from coadapt.executors import prepare_executor
from coadapt.executors.host import Host
from coadapt.executors.processes.job_processes import kill_marked
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import Allocation, BatchLimits, JobSpec, Launch
from demo.processes import LiveScheduler

RESULTS = Path(__file__).parents[1] / "results" / "ray_engine.json"
TURNS = RESULTS.with_name("ray_engine_turns.json")
PAUSE_GOAL_S = 0.7
RATIO_GOAL = 10.0
LATER_GOAL_S = 1.0
NODES = ("node-0", "node-1", "node-2")
ENVS = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


class RayNodes:
    """A head without CPUs, and nodes of one CPU that come and go."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.cluster.add_node(node_name="head", num_cpus=0)
        self.nodes: dict[str, Any] = {}
        for name in NODES[:count]:
            self.join(name)

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def join(self, name: str) -> None:
        self.nodes[name] = self.cluster.add_node(node_name=name, num_cpus=1)

    def leave(self, name: str) -> None:
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)


def command_of(folder: Path) -> str:
    """Return the job's command: each replica has a log of its own."""
    return (
        f"exec {sys.executable} {JOB} "
        f"{folder}/steps-$COADAPT_GENERATION-$RANK-$$.jsonl coadapt cpu"
    )


class CoadaptOnRay(Way):
    """The executor itself, ordered about: what a scheduler would order."""

    def __init__(self, folder: Path, ray: RayNodes, src: str = "") -> None:
        """`src`: where replicas find the package, if not where this process does."""
        super().__init__(folder, "cpu")
        self.envs = {
            **ENVS,
            "PYTHONPATH": os.pathsep.join(filter(None, (src, ENVS["PYTHONPATH"]))),
        }
        self.events: list[Event] = []
        self.generation = 0
        connect = prepare_executor("ray", {"address": ray.address, "slots": 1})
        self.executor = connect(Host(state_dir=folder, stop_grace_s=10.0))
        self.executor.announce({}, self.events.append)
        self.thread = threading.Thread(
            target=self.executor.run, args=(self.events.append,)
        )
        self.thread.start()

    def start(self) -> None:
        self._order(Start, 2)

    def change(self, num_replicas: int) -> None:
        self._order(Rescale, num_replicas)

    def _order(self, kind: type[Start] | type[Rescale], num_replicas: int) -> None:
        self.generation += 1
        launch = Launch(
            run=command_of(self.folder),
            workdir=str(self.folder),
            envs=tuple(self.envs.items()),
        )
        spec = JobSpec(name="rescaled", batch=BatchLimits(initial=12), launch=launch)
        share = Allocation(slots=tuple((node, 1) for node in NODES[:num_replicas]))
        order = kind(job="a", generation=self.generation, spec=spec, allocation=share)
        self.executor.execute(order, self.events.append)

    def close(self) -> None:
        import ray

        self.executor.close()
        self.thread.join()
        kill_marked(JobDir.of(self.folder, "a").checkpoints)
        ray.shutdown()


class RayTrain(Way):
    """Ray Train, elastic; nodes come and go."""

    def __init__(self, folder: Path, ray: RayNodes) -> None:
        super().__init__(folder, "cpu")
        self.ray = ray

    def start(self) -> None:
        start_ray_train(self, self.ray, 2, 3)

    def change(self, num_replicas: int) -> None:
        if num_replicas == len(NODES):
            self.ray.join(NODES[-1])
        else:
            self.ray.leave(NODES[-1])

    def close(self) -> None:
        end(self.processes["driver"])


def start_ray_train(way: Way, ray: RayNodes, least: int, most: int) -> None:
    own = [
        sys.executable,
        "-m",
        "benchmarks.engines._ray_train_job",
        ray.address,
        str(way.folder),
        str(least),
        str(most),
    ]
    way.spawn("driver", own, ENVS)


def end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def pauses(
    make: Callable[[Path, RayNodes], Way], num_nodes: int, rounds: int
) -> dict[str, object]:
    """Return what `measure` tells of a run on so many nodes."""
    ray = RayNodes(num_nodes)
    try:
        with folder_of("ray-engine-") as folder:
            return measure(make(folder, ray), rounds)
    finally:
        ray.cluster.shutdown()


def starts(rounds: int) -> dict[str, object]:
    """Return the seconds from a user's command to the first step, turn by turn with
    Coadapt and Ray Train.
    """
    ray = RayNodes(2)
    found = {"coadapt": [], "ray_train": []}
    try:
        with folder_of("ray-starts-") as place:
            options = [
                f"--executor-option=address={ray.address}",
                "--executor-option=slots=1",
            ]
            scheduler = LiveScheduler(place, ["--executor", "ray", *options])
            scheduler.start()
            try:
                for number in range(rounds):
                    found["coadapt"].append(
                        _start_of_ours(scheduler, place / f"ours-{number}")
                    )
                    found["ray_train"].append(
                        _start_of_theirs(ray, place / f"theirs-{number}")
                    )
            finally:
                scheduler.stop()
    finally:
        ray.cluster.shutdown()
    return {
        name: {
            "median_s": statistics.median(each),
            "each_s": [round(one, 2) for one in each],
        }
        for name, each in found.items()
    }


def _start_of_ours(scheduler: LiveScheduler, folder: Path) -> float:
    folder.mkdir()
    body = {
        "name": "start",
        "run": command_of(folder),
        "resources": {"gpus": 2},
        "batch": {"initial": 12},
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps({**body, "envs": ENVS}))  # which is YAML too
    began = time.time()
    job = scheduler.coadapt("submit", str(file)).strip()
    took_s = _first_step(folder) - began
    scheduler.coadapt("cancel", job)
    while scheduler.client().get(f"/v1/jobs/{job}")["state"] != "cancelled":
        time.sleep(0.1)
    return took_s


def _start_of_theirs(ray: RayNodes, folder: Path) -> float:
    folder.mkdir()
    way = Way(folder, "cpu")
    began = time.time()
    start_ray_train(way, ray, 2, 2)
    took_s = _first_step(folder) - began
    end(way.processes["driver"])
    return took_s


def _first_step(folder: Path) -> float:
    """Return when both replicas had done a step."""
    run = Way(folder, "cpu")
    deadline = time.monotonic() + WAIT_MAX_S
    while len({row["rank"] for row in run.rows()}) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no first step within {WAIT_MAX_S:g} s")
        time.sleep(0.02)
    rows = run.rows()
    return max(
        min(float(str(row["at"])) for row in rows if row["rank"] == rank)
        for rank in range(2)
    )


def turns(src: str, count: int, rounds: int) -> dict[str, object]:
    """Return the pauses of replicas with the package that is in `src`, and with this
    one, by turns.
    """

    def before(folder: Path, ray: RayNodes) -> CoadaptOnRay:
        return CoadaptOnRay(folder, ray, src)

    found: dict[str, list[dict[str, object]]] = {"before": [], "after": []}
    for _ in range(count):
        found["before"].append(pauses(before, 3, rounds))
        found["after"].append(pauses(CoadaptOnRay, 3, rounds))
        print(json.dumps(found), file=sys.stderr, flush=True)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "machine": machine,
        "parameters": 25_010_000,
        "load": os.getloadavg()[0],
        **found,
    }


def main() -> None:
    """Measure, print, and keep the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="2 -> 3 -> 2 changes in place"
    )
    parser.add_argument(
        "--restarts", type=int, default=1, help="of the same with Ray Train"
    )
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument(
        "--before",
        help="only compare the pauses with those of the package in this folder",
    )
    parser.add_argument("--turns", type=int, default=2, help="of --before")
    given = parser.parse_args()
    os.environ.update(ENVS, RAY_USAGE_STATS_ENABLED="0")
    if given.before:
        compared = turns(given.before, given.turns, given.rounds)
        store_results(TURNS, compared)
        print(json.dumps(compared, indent=1))
        return
    try:
        import ray.train.torch  # noqa: F401  # else Ray Train's jobs fail one by one, minutes later
    except ImportError as error:
        parser.error(str(error))
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "parameters": 25_010_000,
    }
    result["load"] = os.getloadavg()[0]
    result["steady_steps"] = STEADY_STEPS
    result["coadapt_in_place"] = pauses(CoadaptOnRay, 3, given.rounds)
    print(json.dumps(result), file=sys.stderr, flush=True)
    result["ray_train_elastic"] = pauses(RayTrain, 2, given.restarts)
    print(json.dumps(result), file=sys.stderr, flush=True)
    ours, theirs = (
        float(result[name]["median_s"])
        for name in ("coadapt_in_place", "ray_train_elastic")
    )
    result["times_shorter"] = theirs / ours
    result["submit_to_first_step"] = starts(given.starts)
    medians = {
        name: each["median_s"] for name, each in result["submit_to_first_step"].items()
    }
    result["later_than_ray_train_s"] = medians["coadapt"] - medians["ray_train"]
    result["goals"] = {
        "pause_s": PAUSE_GOAL_S,
        "times_shorter": RATIO_GOAL,
        "later_s": LATER_GOAL_S,
    }
    store_results(RESULTS, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
