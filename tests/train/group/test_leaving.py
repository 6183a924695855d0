"""A replica that leaves takes gloo's threads with it: one that outlives the interpreter
aborts it.
"""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]


def num_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def join_and_leave(_argument: None) -> None:
    before = num_threads()
    run = ct.init()
    assert num_threads() > before + 1
    run.close()
    # One is of the process, not of a group.
    assert num_threads() <= before + 1
    assert (run.rank, run.num_replicas) in ((0, 2), (1, 2))


def test_closing_ends_the_threads_of_all_groups(tmp_path: Path) -> None:
    assert run_replicas(join_and_leave, [None, None], tmp_path) == [0, 0]


def train_and_leave(shard: bool) -> None:
    run = ct.init()
    train(run, shard=shard)
    assert gloo_threads()
    run.close()
    assert not gloo_threads()


def train(run: ct.Run, *, shard: bool) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1))
    model, optimizer = run.prepare(
        model, torch.optim.Adam(model.parameters()), shard=shard
    )
    loader = run.loader(TensorDataset(torch.ones(32, 2)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def gloo_threads() -> list[str]:
    """Return the threads of groups, by name."""
    names = [
        (task / "comm").read_text().strip()
        for task in Path("/proc/self/task").iterdir()
    ]
    return [name for name in names if name == "pt_gloo_runloop"]


@pytest.mark.parametrize("shard", [False, True])
def test_so_does_a_model_that_was_trained_by_the_group(
    shard: bool, tmp_path: Path
) -> None:
    assert run_replicas(train_and_leave, [shard, shard], tmp_path) == [0, 0]


def leave_early(trains: bool) -> None:
    """The first leaves while the other has yet to answer it, its tensor held by gloo's
    thread alone.
    """
    run = ct.init()
    if trains:
        train(run, shard=False)
    late = run.rank > 0
    time.sleep(late)
    group = dist.group.WORLD if trains else run._session.group.control
    dist.all_reduce(torch.ones(1), group=group, async_op=True)
    del group
    time.sleep(late)
    run.close()


@pytest.mark.parametrize("trains", [False, True])
def test_nobody_waits_for_a_thread_that_waits_for_the_interpreter(
    trains: bool, tmp_path: Path
) -> None:
    assert run_replicas(leave_early, [trains, trains], tmp_path) == [0, 0]
