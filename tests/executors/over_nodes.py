"""Replicas that join and leave in place on two nodes, without a disk by which they
could hear of it.
"""

import os
import sys
from pathlib import Path
from typing import Protocol

import pytest

from coadapt.core.commands import Rescale, Start
from coadapt.core.events import Outcome
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model import Allocation
from coadapt.model.rescale import CAPABLE_FILE
from coadapt.runtime.ports import LiveExecutor
from tests.contracts.executor_contract import NODES, Inbox, exited, spec, started, until
from tests.executors.elastic_site import TRAINER


class Site(Protocol):
    folder: Path
    state_dir: Path

    def executor(self) -> LiveExecutor: ...


def changes_in_place_over_nodes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hear of it over the network, from a launcher that is on neither node."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    executor = site.executor()
    inbox = Inbox()
    here = (1,)
    both = (1, 1)
    there = (0, 1)
    for generation, counts in ((1, here), (2, both), (3, there)):
        slots = tuple(
            (node, count) for node, count in zip(NODES, counts, strict=False) if count
        )
        terms = {
            "job": "a",
            "generation": generation,
            "spec": spec(TRAINER, site.folder),
        }
        kind = Start if generation == 1 else Rescale
        executor.execute(kind(**terms, allocation=Allocation(slots=slots)), inbox.post)
        inbox.wait(started("a", generation))
        lead = JobDir.of(site.state_dir, "a").generation(1)
        until((lead.control_dir / CAPABLE_FILE).exists)
    (site.folder / "finish").touch()
    inbox.wait(exited("a", 3, Outcome.SUCCEEDED))
    lives = (site.folder / "lives").read_text().splitlines()
    assert sorted(lives) == [
        "+1-0",
        "+2-1",
        "-1-0 0",
        "-2-1 0",
        "=1-0 2 0",
        "=2-1 2 1",
        "=2-1 3 0",
    ]
