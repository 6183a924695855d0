"""A last step of few samples trains with batch normalisation, and a stand-in leaves no
trace.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.samples.order import Pass
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train


def normalising() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


@pytest.mark.parametrize("compiles", [False, True])
def test_a_stand_in_moves_no_running_means(compiles: bool) -> None:
    run = ct.init()
    net: nn.Module = normalising()
    if compiles:
        net = torch.compile(net, backend="eager")  # type: ignore[assignment]  # a module too
    model, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    before = {name: value.clone() for name, value in model.named_buffers()}
    run._session.current = Pass(start=3, stop=3, step_samples=3, synchronising=False)
    model(torch.randn(2, 4)).mean().backward()
    assert all(
        torch.equal(value, before[name]) for name, value in model.named_buffers()
    )
    run._session.current = Pass(start=0, stop=3, step_samples=3, first=False)
    model(torch.randn(3, 4)).mean().backward()
    assert not any(
        torch.equal(value, before[name]) for name, value in model.named_buffers()
    )
    run._session.current = None
    run.close()


def train(case: tuple[str, int, int]) -> None:
    folder, num_samples, batch_size = case
    torch.set_num_threads(1)
    run = ct.init()
    net = normalising()
    model, optimizer = run.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.05),
        ddp={"broadcast_buffers": False},
    )
    data = TensorDataset(torch.randn(num_samples, 4), torch.randn(num_samples, 1))
    loader = run.loader(data, batch_size=batch_size)
    sizes = []
    for _ in run.epochs(2):
        for x, y in loader:  # type: ignore[misc]  # a pair
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            sizes.append(len(loader.sample_ids))
    tracked = int(net[1].num_batches_tracked)  # type: ignore[arg-type]  # a number
    Path(folder, f"{run.rank}.json").write_text(json.dumps([sizes, tracked]))
    run.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_samples", "batch_size", "sizes"),
    [
        (27, 12, [[6, 6, 3], [6, 6, 0]]),
        (10, 4, [[2, 2, 2], [2, 2, 0]]),
        (8, 2, [[2] * 4, [0] * 4]),  # one each would be refused
    ],
)
def test_batch_normalisation_trains_with_a_small_rest(
    tmp_path: Path, num_samples: int, batch_size: int, sizes: list[list[int]]
) -> None:
    case = (str(tmp_path), num_samples, batch_size)
    assert run_replicas(train, [case] * 2, tmp_path) == [0, 0]
    for rank, own in enumerate(sizes):
        seen, tracked = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen == own * 2
        assert tracked == 2 * sum(size > 0 for size in own)
