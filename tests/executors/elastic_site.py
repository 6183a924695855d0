"""A stage for changes in place under the local executor: one job of a script without
training.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coadapt.core.commands import Rescale, Start
from coadapt.executors.processes.executor import ProcessExecutor
from coadapt.executors.processes.job_processes import kill_marked
from coadapt.model import Allocation
from coadapt.model.rescale import CAPABLE_FILE
from tests.contracts.executor_contract import NODES, Inbox, spec, started, until
from tests.executors.test_local import LocalSite

TRAINER = f"exec {sys.executable} {Path(__file__).parent / 'fake_trainer.py'}"


class Stage(LocalSite):
    """One job of the fake trainer, and who lives in it."""

    def start(self, *counts: int, generation: int = 1) -> tuple[ProcessExecutor, Inbox]:
        executor = self.executor()
        inbox = Inbox()
        executor.execute(Start(**self.terms(generation, counts)), inbox.post)
        inbox.wait(started("a", generation))
        until((self.job().generation(generation).control_dir / CAPABLE_FILE).exists)
        until(lambda: len(self.alive()) == sum(counts))
        return executor, inbox

    def rescale(self, *counts: int, generation: int = 2) -> Rescale:
        return Rescale(**self.terms(generation, counts))

    def terms(self, generation: int, counts: tuple[int, ...]) -> dict[str, object]:
        slots = tuple(
            (node, count) for node, count in zip(NODES, counts, strict=False) if count
        )
        return {
            "job": "a",
            "generation": generation,
            "spec": spec(TRAINER, self.folder),
            "allocation": Allocation(slots=slots),
        }

    def lives(self) -> list[str]:
        path = self.folder / "lives"
        return path.read_text().splitlines() if path.exists() else []

    def alive(self) -> set[str]:
        names = [line[1:].split()[0] for line in self.lives() if line[0] == "+"]
        return {
            name
            for name in names
            if not any(line.startswith(f"-{name} ") for line in self.lives())
        }

    def set(self, flag: str) -> Path:
        path = self.folder / flag
        path.touch()
        return path

    def pid(self, name: str) -> int:
        """Return the process of a replica, by its start."""
        generation, rank = name.split("-")
        for pid in self.pids("replica"):
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if {
                f"COADAPT_GENERATION={generation}".encode(),
                f"RANK={rank}".encode(),
            } <= set(environ):
                return pid
        raise AssertionError(f"{name} does not live")


@contextmanager
def staged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Leave nothing behind."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    site = Stage(folder)
    yield site
    site.close()
    for job in (site.state_dir / "jobs").glob("*"):
        kill_marked(job / "checkpoints")
