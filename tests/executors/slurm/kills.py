"""Kills at random moments under Slurm: nothing lost, nothing doubled, every job ends.

    python -m tests.executors.slurm.kills --kills 20

Of a replica, a launcher, a node's daemon with all of its steps, the scheduler, the controller; a node is
drained, an allocation is cancelled. Each job holds a lock while it lives and notes its starts, so that a
second life shows. Told are the times until the scheduler knew, and until the job that was hit went on.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from coadapt.cli.client import RefusedError, UnreachableError
from coadapt.executors.processes.job_processes import marked_processes
from coadapt.model.wire import Json
from tests.cli.live_cluster import COUNTER, LiveCluster
from tests.executors.slurm.daemons import HOW_TO_GET, SlurmCluster, missing
from tests.executors.slurm.processes import kill_node

NODES = ("node-0", "node-1", "node-2")
JOBS = 3
SLOTS = 2
LIMIT_S = 120.0
LOOK_S = 0.05
TARGET = 100
FAILURES_MAX = 100
ENGINE = ("--executor", "slurm")
OPTIONS = ("nodes=2", "max_nodes=3", "look_s=1", "time_limit=60")


class Range:
    """What is shot at, and what was hit."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.slurm = SlurmCluster(folder / "slurm", NODES, gpus=SLOTS)
        engine = (*ENGINE, *(part for option in OPTIONS for part in ("--executor-option", option)))
        self.cluster = LiveCluster(folder, engine=engine)
        self.gate = folder / "gate"
        self.jobs: list[str] = []
        self._draw = random.Random(seed)

    def prepare(self) -> None:
        self.slurm.start()
        os.environ["SLURM_CONF"] = str(self.slurm.conf)  # this process is nobody else's
        self.cluster.up(SLOTS)
        self.jobs = [self._submit(f"job-{number}") for number in range(JOBS)]
        self._until(lambda: all(self.starts(job) for job in self.jobs), "all jobs have started")

    def shoot(self, kind: str) -> tuple[float, float]:
        """Return the seconds until it was noticed, and until the job that was hit trained again."""
        job = self._draw.choice(self.jobs)
        node = str(self._nodes_of(job)[0])
        before, known = self.starts(job), self._generation(job)
        began = time.monotonic()
        restore = self._kill(kind, job, node)
        if kind in ("scheduler", "slurmctld"):  # no job is hit: all it takes is that it answers again
            restore()
            assert self.starts(job) == before, "a job was started again without need"
            return time.monotonic() - began, 0.0
        self._until(lambda: self._generation(job) != known, f"{kind}: it is noticed")
        noticed = time.monotonic() - began
        self._until(lambda: self.starts(job) > before, f"{kind}: {job} goes on")
        again = time.monotonic() - began
        restore()
        return noticed, again

    def settle(self) -> None:
        """Wait until nodes that were shot are back, and every job runs."""
        self._until(self._whole, "all nodes are back")
        self._until(self._calm, "all jobs run")

    def verdict(self) -> None:
        """Let all jobs end; raise AssertionError if one is lost, doubled or did not."""
        self.gate.touch()
        for job in self.jobs:
            self._until(lambda job=job: self.cluster.job(job)["state"] == "succeeded", f"{job} ends well")
            trace = self.cluster.trace(job)
            starts = [line for line in trace if " starts at " in line]
            assert not [line for line in trace if "two lives" in line], trace
            assert len(set(starts)) == len(starts), trace
            assert self.cluster.count(job) >= TARGET, trace
        assert len(self.cluster.client.jobs()) == len(self.jobs)

    def close(self) -> None:
        self.cluster.close()
        self.slurm.stop()

    def starts(self, job: str) -> int:
        return sum(" starts at " in line for line in self.cluster.trace(job))

    def _submit(self, name: str) -> str:
        # These jobs report no progress, so each of their ends counts as a failure.
        job = {
            "name": name,
            "run": COUNTER,
            "workdir": str(self.cluster.folder),
            "envs": {"TARGET": TARGET, "GATE": str(self.gate)},
            "batch": {"initial": 8},
            "max_failures": FAILURES_MAX,
        }
        return str(self.cluster.client.post("/v1/jobs", cast(Json, job))["id"])

    def _kill(self, kind: str, job: str, node: str) -> Callable[[], None]:
        """Do it; return what puts right what does not come back by itself."""
        match kind:
            case "replica" | "launcher":
                self.cluster.kill_job(job, launcher=kind == "launcher")
            case "node":
                marked = set(marked_processes(self.cluster.checkpoints(job)))
                kill_node(self.slurm, node, marked)
                return lambda: self.slurm.start_node(node)
            case "scheduler":
                self.cluster.kill()
                return lambda: self.cluster.up(SLOTS)
            case "slurmctld":
                self.slurm.kill("slurmctld")
                return self.slurm.start_controller
            case "drain":
                self.slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
                return lambda: (
                    self.slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME") and None
                )
            case "scancel":
                name = (self.cluster.state / "slurm" / "pool").read_text()
                self.slurm.call("scancel", f"--name={name}", "--state=RUNNING")
        return lambda: None

    def _nodes_of(self, job: str) -> list[str]:
        return [str(node) for node, _ in self.cluster.job(job)["allocation"]]  # type: ignore[union-attr,misc]

    def _generation(self, job: str) -> object:
        try:
            return self.cluster.job(job)["generation"], self.cluster.job(job)["state"]
        except (UnreachableError, RefusedError):
            return None

    def _whole(self) -> bool:
        states = self.slurm.states()
        for node in (node for node, state in states.items() if state.startswith("dr")):
            # A controller that is killed at once forgets what it was last told.
            self.slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return set(states.values()) <= {"idle", "mix", "alloc"}

    def _calm(self) -> bool:
        with suppress(UnreachableError, RefusedError):
            return all(self.cluster.job(job)["state"] == "running" for job in self.jobs)
        return False

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            told = (self.cluster.folder / "up.log").read_text()[-2000:]
            late = time.monotonic() > deadline
            assert not late, f"not within {LIMIT_S:g} s: {what}; {self.slurm.states()}\n{told}"
            time.sleep(LOOK_S)


KINDS = ("replica", "node", "scheduler", "launcher", "drain", "slurmctld", "scancel")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if missing():
        sys.exit(HOW_TO_GET)
    draw = random.Random(given.seed)
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        field = Range(Path(folder), given.seed)
        try:
            field.prepare()
            for number in range(given.kills):
                field.settle()
                time.sleep(draw.uniform(0.0, 2.0))
                kind = KINDS[number % len(KINDS)]
                times.setdefault(kind, []).append(field.shoot(kind))
                print(f"{number + 1} {kind}: {times[kind][-1]}", flush=True)
            field.verdict()
        finally:
            field.close()
    for kind, told in times.items():
        noticed, again = zip(*told, strict=True)
        print(
            f"{kind:10} {len(told)} x; noticed: median {statistics.median(noticed):.1f} s, worst "
            f"{max(noticed):.1f} s; training again: {statistics.median(again):.1f} s, {max(again):.1f} s"
        )
    print(f"{given.kills} kills: nothing lost, nothing doubled, every job ended")


if __name__ == "__main__":
    main()
