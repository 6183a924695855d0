"""A loss that is not finite is told soon, though nobody measures noise."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.batch.tuning import fit, take_snapshot
from coadapt.train.wrappers.finite import PERIOD, FiniteLook
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

BAD_FROM = 71


def train(folder: str = "", sparse: bool = False) -> ct.Run:
    torch.manual_seed(0)
    run = ct.init(contract="fixed")
    net = nn.Sequential(
        nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(8, 2)
    )
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.randint(0, 9, (800, 2))), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if run.progress.step + 1 >= BAD_FROM:
                loss = loss.log() * 0.0 / 0.0
            loss.backward()
            optimizer.step()
    return run


@pytest.mark.parametrize("sparse", [False, True])
def test_it_is_told_with_its_step(
    sparse: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(sparse=sparse)
    (line,) = [text for text in caplog.messages if "not a number" in text]
    found = re.match(r"step (\d+): gradients are infinite or not a number", line)
    assert found is not None
    assert BAD_FROM <= int(found[1]) < BAD_FROM + PERIOD
    report = fit(take_snapshot(run._session, 1, None)).report
    assert report.metrics["not_finite_step"] == float(found[1])


@pytest.mark.processes
def test_one_of_two_replicas_tells_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert run_replicas(train, [str(tmp_path)] * 2, tmp_path) == [0, 0]
    said = [(tmp_path / f"output-{rank}.txt").read_text() for rank in (0, 1)]
    assert [text.count("infinite or not a number") for text in said] == [1, 0]


def test_a_gradient_that_is_missing_is_replaced_by_another() -> None:
    one, other = torch.ones(1, requires_grad=True), torch.ones(5, requires_grad=True)
    lines: list[int] = []
    look = FiniteLook(lambda: [other, one], lines.append)
    look.look(PERIOD)  # nothing has a gradient yet
    one.grad, other.grad = torch.zeros(1), torch.full((5,), torch.inf)
    look.look(2 * PERIOD)
    assert lines == []
    one.grad = None
    look.look(2 * PERIOD + 1)
    assert lines == []
    look.look(3 * PERIOD)
    assert lines == [3 * PERIOD]
