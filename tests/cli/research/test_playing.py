"""Nothing but results is written to stdout."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from coadapt.cli.research.playing import progress_bar, stdout_kept
from coadapt.model import Node
from coadapt.sim.applications import Application
from coadapt.sim.sweep import Builtin, Run
from coadapt.sim.workload import Workload


def test_what_a_library_writes_to_stdout_goes_to_stderr(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with stdout_kept():
        os.write(1, b"a solver's line\n")
    os.write(1, b"{}\n")
    assert capfd.readouterr() == ("{}\n", "a solver's line\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLoads(Builtin):
    """Notes the seed of each load."""

    seeds: list[int] = field(default_factory=list, compare=False)

    def load(
        self, seed: int, num_gpus: int
    ) -> tuple[Workload, Mapping[str, Application]]:
        self.seeds.append(seed)
        return Workload(name="none", jobs=()), {}


def test_a_workload_that_many_policies_share_is_loaded_once() -> None:
    source = CountedLoads()
    first = Run(
        trace="t",
        source=source,
        policy="fifo",
        seed=0,
        cluster=(Node(id="a", num_gpus=4),),
    )
    runs = [
        replace(first, seed=seed, policy=policy)
        for seed in (0, 1)
        for policy in ("fifo", "srtf", "las")
    ]
    with progress_bar(runs):
        assert source.seeds == [0, 1]
