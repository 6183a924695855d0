"""Counting jobs on an engine, shot at at random moments: nothing lost, nothing doubled,
every job ends.

Each job holds a lock while it lives and notes its starts, so that a second life shows.
Told are the times until the scheduler knew, and until the job that was hit went on.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from coadapt.cli.client import RefusedError, UnreachableError
from coadapt.model.wire import Json
from tests.cli.live_cluster import COUNTER, LiveCluster

NODES = ("node-0", "node-1", "node-2")
JOBS = 3
SLOTS = 2
LIMIT_S = 120.0
LOOK_S = 0.05
TARGET = 100
FAILURES_MAX = 100


class Range(ABC):
    """What is shot at, and what was hit."""

    # What hits no job: all it takes is that it answers again.
    harmless: Sequence[str] = ("scheduler",)

    def __init__(self, folder: Path, seed: int, engine: tuple[str, ...]) -> None:
        """`engine`: what `coadapt up` is told of it."""
        self.cluster = LiveCluster(folder, engine=engine)
        self.gate = folder / "gate"
        self.jobs: list[str] = []
        self._draw = random.Random(seed)

    @abstractmethod
    def kill(self, kind: str, job: str, node: str) -> Callable[[], None]:
        """Do it; return what puts right what does not come back by itself."""

    @abstractmethod
    def whole(self) -> bool:
        """Return whether all that was shot at is back."""

    @abstractmethod
    def told(self) -> str:
        """Return what the engine knows of its nodes, for whoever looks for what went
        wrong.
        """

    @abstractmethod
    def start(self) -> None:
        """Start the engine."""

    @abstractmethod
    def stop(self) -> None:
        """End the engine."""

    def prepare(self) -> None:
        self.start()
        self.cluster.up(SLOTS)
        self.jobs = [self._submit(f"job-{number}") for number in range(JOBS)]
        self._until(
            lambda: all(self.starts(job) for job in self.jobs), "all jobs have started"
        )

    def shoot(self, kind: str) -> tuple[float, float]:
        """Return the seconds until it was noticed, and until the job that was hit
        trained again.
        """
        job = self._draw.choice(self.jobs)
        node = str(self._nodes_of(job)[0])
        before = self.starts(job)
        known = self._generation(job)
        began = time.monotonic()
        restore = self.kill(kind, job, node)
        if kind in self.harmless:
            restore()
            answered = time.monotonic() - began
            count = self.cluster.count(job)
            self._until(
                lambda: self.cluster.count(job) > count, f"{kind}: {job} trains on"
            )
            assert self.starts(job) == before, "a job was started again without need"
            return answered, 0.0
        self._until(lambda: self._generation(job) != known, f"{kind}: it is noticed")
        noticed = time.monotonic() - began
        self._until(lambda: self.starts(job) > before, f"{kind}: {job} goes on")
        again = time.monotonic() - began
        restore()
        return noticed, again

    def settle(self) -> None:
        """Wait until nodes that were shot are back, and every job runs."""
        self._until(self.whole, "all nodes are back")
        self._until(self._calm, "all jobs run")

    def verdict(self) -> None:
        """Let all jobs end; raise AssertionError if one is lost, doubled or did not."""
        self.gate.touch()
        for job in self.jobs:
            self._until(
                lambda job=job: self.cluster.job(job)["state"] == "succeeded",
                f"{job} ends well",
            )
            trace = self.cluster.trace(job)
            starts = [line for line in trace if " starts at " in line]
            assert not [line for line in trace if "two lives" in line], trace
            assert len(set(starts)) == len(starts), trace
            assert self.cluster.count(job) >= TARGET, trace
        assert len(self.cluster.client.jobs()) == len(self.jobs)

    def close(self) -> None:
        self.cluster.close()
        self.stop()

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

    def _nodes_of(self, job: str) -> list[str]:
        return [str(node) for node, _ in self.cluster.job(job)["allocation"]]  # type: ignore[union-attr,misc]

    def _generation(self, job: str) -> object:
        try:
            return self.cluster.job(job)["generation"], self.cluster.job(job)["state"]
        except (UnreachableError, RefusedError):
            return None

    def _calm(self) -> bool:
        with suppress(UnreachableError, RefusedError):
            return all(self._trains(job) for job in self.jobs)
        return False

    def _trains(self, job: str) -> bool:
        """A replica counts as started before its script has begun: shot then, it would
        not be hit.
        """
        picture = self.cluster.job(job)
        begun = f"generation {picture['generation']} starts at "
        return picture["state"] == "running" and any(
            line.startswith(begun) for line in self.cluster.trace(job)
        )

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            up = (self.cluster.folder / "up.log").read_text()[-2000:]
            late = time.monotonic() > deadline
            assert not late, f"not within {LIMIT_S:g} s: {what}; {self.told()}\n{up}"
            time.sleep(LOOK_S)


def shoot_many(
    make: Callable[[Path, int], Range], kinds: Sequence[str], description: str | None
) -> None:
    """Shoot as often as the command line says, each kind in its turn; print what became
    of it.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a JSON file for the result")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        field = make(Path(folder), given.seed)
        try:
            field.prepare()
            for number in range(given.kills):
                field.settle()
                time.sleep(draw.uniform(0.0, 2.0))
                kind = kinds[number % len(kinds)]
                times.setdefault(kind, []).append(field.shoot(kind))
                print(f"{number + 1} {kind}: {times[kind][-1]}", flush=True)
            field.verdict()
        finally:
            field.close()
    outcome = {kind: _told(each) for kind, each in times.items()}
    for kind, row in outcome.items():
        print(f"{kind:10} {row}")
    print(f"{given.kills} kills: nothing lost, nothing doubled, every job ended")
    if given.out is not None:
        result = {
            "kills": given.kills,
            "seed": given.seed,
            "load": os.getloadavg()[0],
            "kinds": outcome,
        }
        given.out.write_text(json.dumps(result, indent=1) + "\n")


def _told(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return median and worst of the seconds until it was noticed, and until training
    again.
    """
    row: dict[str, float] = {"times": len(times)}
    for name, each in zip(("noticed", "again"), zip(*times, strict=True), strict=True):
        row |= {
            f"{name}_median_s": round(statistics.median(each), 2),
            f"{name}_worst_s": round(max(each), 2),
        }
    return row
