"""What fetch processes draw: nothing twice, on whatever replica and in whatever
epoch.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import coadapt.train as ct
from coadapt.train.env import STOP_TIMEOUT_S
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_SAMPLES = 8
NUM_EPOCHS = 2


class Augmented(Dataset[Tensor]):
    """Samples that are drawn, as a random crop is."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(1)


class AugmentedStream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return (torch.rand(1) for _ in range(NUM_SAMPLES))


def note_draws(argument: tuple[str, Any]) -> None:
    folder, dataset = argument
    torch.set_num_threads(1)
    run = ct.init()
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(
        dataset,
        batch_size=4,
        num_workers=1,
        multiprocessing_context="fork",
        # all of a sample is drawn: it cannot be told from an order without a seed
        compare=False,
    )
    seen = []
    for _ in run.epochs(NUM_EPOCHS):
        for x in loader:
            seen += x.flatten().tolist()
            model(x).mean().backward()
            optimizer.step()
    Path(folder, f"seen-{run.rank}.json").write_text(json.dumps(seen))
    run.close()


SCRIPT = """
import time

import torch
import coadapt.train as ct

run = ct.init()
net = torch.nn.Linear(1, 1)
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
data = torch.utils.data.TensorDataset(torch.ones(8, 1))
loader = run.loader(data, batch_size=4, num_workers=1, persistent_workers=True)
for _ in run.epochs(2):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
print(time.monotonic(), flush=True)
"""


def test_a_script_with_processes_that_persist_ends() -> None:
    """multiprocessing waits for its children at exit, after a SIGTERM that fetch
    processes outlive.
    """
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, timeout=250.0
    )
    assert time.monotonic() - float(done.stdout) < STOP_TIMEOUT_S


SLEEPS = """
import os, sys, time
import torch

import coadapt.train as ct


class Sleeps(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index:
            os.write(1, b"%9d" % os.getpid())
            time.sleep(1000.0)
        return torch.ones(1)


if __name__ == "__main__":
    run = ct.init()
    net = torch.nn.Linear(1, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(Sleeps(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    for _ in run.epochs(1):
        for x in loader:
            pass
"""


def is_alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_fetch_processes_end_with_a_trainer_that_is_killed(
    tmp_path: Path, method: str
) -> None:
    """Nobody reads what they fetch; without a launcher nobody else would end them."""
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    trainer = subprocess.Popen(
        [sys.executable, str(script), method], stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    try:
        fetchers = [int(trainer.stdout.read(9)) for _ in range(2)]
        assert all(map(is_alive, fetchers))
    finally:
        trainer.kill()
        trainer.wait()
    deadline = time.monotonic() + 60.0
    while left := [pid for pid in fetchers if is_alive(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"{len(left)} fetch processes stay")
        time.sleep(0.05)


@pytest.mark.parametrize("dataset", [Augmented(), AugmentedStream()])
def test_replicas_and_epochs_draw_anew(tmp_path: Path, dataset: object) -> None:
    assert run_replicas(note_draws, [(str(tmp_path), dataset)] * 2, tmp_path) == [0, 0]
    seen = [
        json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)
    ]
    assert len({value for own in seen for value in own}) == NUM_SAMPLES * NUM_EPOCHS


def test_the_same_place_draws_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        assert run_replicas(note_draws, [(str(tmp_path), Augmented())], tmp_path) == [0]
        (tmp_path / "seen-0.json").rename(
            tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}.json"
        )
    first, second = (
        json.loads((tmp_path / f"run-{index}.json").read_text()) for index in range(2)
    )
    assert first == second


class Pids(Dataset[Tensor]):
    """Which process fetched a sample."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, os.getpid()])


def pids_of(loader: ct.ElasticLoader, *, grow_at: int = -1) -> list[set[int]]:
    """Iterate over an epoch; return the fetch processes before and after a change of
    the batch.
    """
    seen: list[set[int]] = [set(), set()]
    ids: list[int] = []
    for number, x in enumerate(loader):
        assert isinstance(x, Tensor)
        seen[bool(len(ids) > 4 * grow_at >= 0)] |= set(x[:, 1].tolist())
        ids += x[:, 0].tolist()
        if number == grow_at:
            loader.set_batch_size(6)
    assert ids == list(range(24))
    return seen


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_fetch_processes_stay_over_a_change_and_end_with_the_epoch(method: str) -> None:
    run = ct.init(contract="self")
    net = nn.Linear(1, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(
        Pids(), batch_size=4, num_workers=1, multiprocessing_context=method
    )
    loader.prepare()
    ready = {child.pid for child in multiprocessing.active_children()}
    found = []
    for _ in run.epochs(2):
        found.append(pids_of(loader, grow_at=1 if not found else -1))
    (before, after), (second, _) = found
    assert len(before) == 1
    assert before <= ready, (
        "a replica that joins fetches with what it started beforehand"
    )
    assert after == before
    assert len(second) == 1
    assert second != before
    run.close()


def test_an_epoch_that_was_left_leaves_no_fetch_processes_to_the_next() -> None:
    run = ct.init()
    net = nn.Linear(1, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(
        Pids(), batch_size=4, num_workers=1, multiprocessing_context="fork"
    )
    found = []
    for _ in run.epochs(2):
        for x in loader:
            assert isinstance(x, Tensor)
            found.append(set(x[:, 1].tolist()))
            break
    first, second = found
    assert first != second
    run.close()
