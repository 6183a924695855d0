"""A replica that leaves takes gloo's threads with it: one that outlives the interpreter aborts it."""

import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

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


def leave_early(_argument: None) -> None:
    """The first leaves while the other has yet to answer it, its tensor held by gloo's thread alone."""
    run = ct.init()
    late = run.rank > 0
    time.sleep(late)
    control = run._session.group.control
    dist.all_reduce(torch.ones(1), group=control, async_op=True)
    del control
    time.sleep(late)
    run.close()


def test_nobody_waits_for_a_thread_that_waits_for_the_interpreter(tmp_path: Path) -> None:
    assert run_replicas(leave_early, [None, None], tmp_path) == [0, 0]
