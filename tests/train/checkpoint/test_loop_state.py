"""The loop's own variables survive what the run survives."""

import copy
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from tests.train.replicas import Elastic

pytestmark = [pytest.mark.train, pytest.mark.processes]


def count_steps(folder: str) -> None:
    torch.set_num_threads(1)
    fast = Path(folder) / "fast"
    run = ct.init(checkpoint_dir=Path(folder) / "checkpoints")
    net = nn.Linear(2, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.randn(64, 2)), batch_size=8)
    state = run.state(iter_num=0, best=float("inf"), seen=[])
    for epoch in run.epochs(30):
        for (x,) in loader:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            assert state.iter_num == run.progress.step
            state.iter_num += 1
            state.best = min(state.best, epoch)
            time.sleep(0.0 if fast.exists() else 0.01)
        state.seen = [*state.seen, epoch]
    print("counted", state.iter_num, state.best, len(state.seen), flush=True)


def test_they_are_the_same_in_a_replica_that_joins_and_after_a_restart(
    tmp_path: Path,
) -> None:
    run = Elastic(count_steps, str(tmp_path), tmp_path)
    try:
        run.start(1)
        for num_replicas, keep in ((3, [0]), (2, [1])):
            leaving = run.order(num_replicas, keep=keep)
            run.await_done()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        run.end(20.0)
        run.start(2)
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0, 0], run.outputs()
        assert run.outputs().count("counted 240 0 30") == 2, run.outputs()
    finally:
        run.kill()


def test_only_names_and_values_that_a_checkpoint_holds_are_taken() -> None:
    run = ct.init()
    state = run.state(iter_num=0, history=[(1, 0.5)])
    assert run.state(best=1.0) is state
    with pytest.raises(
        AttributeError, match="has iter_num, history, best, no iter_nun"
    ):
        state.iter_nun = 1
    with pytest.raises(AttributeError, match="no gone"):
        print(state.gone)
    for values in ({"iter_num": 1}, {"_hidden": 1}, {"state_dict": 1}):
        with pytest.raises(ct.InputError, match="a name that is not taken"):
            run.state(**values)
    with pytest.raises(ct.InputError, match=r"state\(meter\).*plain|state\(meter\)"):
        run.state(meter=object())
    with pytest.raises(ct.InputError, match=r"state\(history\)"):
        state.history = [object()]
    assert copy.deepcopy(state).iter_num == 0
    assert "iter_num=0" in repr(state)
