"""What several replicas would refuse is found on one, and the run grows all the
same.
"""

import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.wrappers.unused import REFUSAL, explain_refusal
from tests.train.replicas import Elastic, run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]


class TwoHeads(nn.Module):
    """Uses one head or the other, by what the samples are; a third never."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, x: Tensor, head: int) -> Tensor:
        found: Tensor = self.heads[head](torch.tanh(self.body(x)))
        return found


def make() -> tuple[TwoHeads, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = TwoHeads().double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def rows() -> Tensor:
    return torch.randn(
        240, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


def train(folder: str, **options: Any) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    run = ct.init(checkpoint_dir=Path(folder) / "checkpoints")
    model, optimizer = run.prepare(*make(), **options)
    loader = run.loader(TensorDataset(rows()), batch_size=24)
    for epoch in run.epochs(20):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x, epoch % 2).square().mean().backward()
            optimizer.step()
            time.sleep(0.0 if (Path(folder) / "fast").exists() else 0.02)
    if run.is_first:
        torch.save(
            [item.detach() for item in model.parameters()], Path(folder) / "final.pt"
        )
    run.close()


def test_a_run_with_unused_parameters_grows_and_comes_back(tmp_path: Path) -> None:
    run = Elastic(train, str(tmp_path), tmp_path)
    try:
        run.start(1)
        leaving = run.order(2)
        run.await_done()
        assert run.done(), run.outputs()
        assert leaving == []
        run.end(20.0)  # by a checkpoint, too
        run.start(2)
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0, 0], run.outputs()
        assert (
            run.outputs().count(
                "step 1: 4 of 8 parameters had no gradient (heads.1.weight,"
            )
            == 1
        )
    finally:
        run.kill()
    model, optimizer = make()
    for epoch in range(20):
        for x in rows().split(24):
            optimizer.zero_grad()
            model(x, epoch % 2).square().mean().backward()
            optimizer.step()
    for own, wanted in zip(
        torch.load(tmp_path / "final.pt", weights_only=True),
        model.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted.detach(), rtol=1e-9, atol=1e-12)


def test_who_begins_on_several_is_told_what_helps(tmp_path: Path) -> None:
    assert run_replicas(train, [str(tmp_path)] * 2, tmp_path)[0] == 1
    text = (tmp_path / "output-0.txt").read_text()
    assert REFUSAL in text, "torch says it otherwise now"
    told = explain_refusal(RuntimeError(text))
    assert told is not None
    assert 'ddp={"find_unused_parameters": True}' in told
    assert explain_refusal(RuntimeError("another")) is None


def test_no_word_where_all_have_gradients_or_the_user_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for ddp, parts in (
        ({}, (0, 1, 2)),
        ({"find_unused_parameters": True}, (0,)),
        ({"static_graph": True}, (0,)),
    ):
        run = ct.init()
        model, optimizer = run.prepare(*make(), ddp=ddp)
        loader = run.loader(TensorDataset(rows()), batch_size=24, max_atomic=12)
        for _ in run.epochs(1):
            for (x,) in loader:
                optimizer.zero_grad()
                sum(model(x, part).square().mean() for part in parts).backward()
                optimizer.step()
        run.close()
    assert "had no gradient" not in caplog.text


def thaw_later(folder: str) -> None:
    """Train the heads alone for three epochs, then the body, too."""
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=Path(folder) / "checkpoints")
    net, optimizer = make()
    net.body.requires_grad_(False)
    model, optimizer = run.prepare(net, optimizer, ddp={"find_unused_parameters": True})
    loader = run.loader(TensorDataset(rows()), batch_size=24)
    for epoch in run.epochs(20):
        if epoch == 3:
            net.body.requires_grad_(True)
        for number, (x,) in enumerate(loader):
            optimizer.zero_grad()
            model(x, epoch % 2).square().mean().backward()
            optimizer.step()
            if (epoch, number) == (3, 5):
                (Path(folder) / "thawed").touch()
            time.sleep(0.0 if (Path(folder) / "fast").exists() else 0.02)
    if run.is_first:
        torch.save(
            [item.detach() for item in model.parameters()], Path(folder) / "final.pt"
        )
    run.close()


def test_what_is_thawed_on_the_way_is_trained_on_all_replicas_those_that_join_too(
    tmp_path: Path,
) -> None:
    """Its gradients stayed each replica's own, and a change then ended the run."""
    run = Elastic(thaw_later, str(tmp_path), tmp_path)
    try:
        run.start(2)
        while not (tmp_path / "thawed").exists():
            time.sleep(0.01)
        run.order(3)
        run.await_done()
        assert run.done(), run.outputs()
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0, 0, 0], run.outputs()
    finally:
        run.kill()
    model, optimizer = make()
    model.body.requires_grad_(False)
    for epoch in range(20):
        if epoch == 3:
            model.body.requires_grad_(True)
        for x in rows().split(24):
            optimizer.zero_grad()
            model(x, epoch % 2).square().mean().backward()
            optimizer.step()
    for own, wanted in zip(
        torch.load(tmp_path / "final.pt", weights_only=True),
        model.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(own, wanted.detach(), rtol=1e-9, atol=1e-12)


def another(folder: str) -> None:
    """As `train`, but its model has changed once the replicas train."""
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=Path(folder) / "checkpoints")
    wide = (Path(folder) / "changed").exists()
    net = nn.Linear(3, 2 if wide else 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(rows().float()), batch_size=24)
    for _ in run.epochs(20):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(0.0 if (Path(folder) / "fast").exists() else 0.02)


def test_a_replica_that_could_not_load_the_state_fails_before_it_joins(
    tmp_path: Path,
) -> None:
    run = Elastic(another, str(tmp_path), tmp_path)
    try:
        run.start(1)
        while not (run.control_dir / "capable").exists():
            time.sleep(0.01)
        (tmp_path / "changed").touch()
        run.order(2)
        assert run.join(["2-1"]) == [1], run.outputs()
        assert not (run.control_dir / "2.begun").exists()
        assert "model: got 'another one than theirs'" in run.outputs()
        assert "weight (1, 3) torch.float32, here (2, 3) torch.float32" in run.outputs()
        assert run.take_back()
        (tmp_path / "fast").touch()
        assert run.join(["1-0"]) == [0], run.outputs()
    finally:
        run.kill()
