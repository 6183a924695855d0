"""torch's own all_gather: as it is with equal shares, one line with unequal ones."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.wrappers.raw_gather import check_shares
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train


def contrast(batch: int) -> None:
    torch.manual_seed(0)
    run = ct.init()
    net = nn.Linear(4, 4)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.randn(4 * batch, 4)), batch_size=batch)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            own = model(x)
            parts = [torch.zeros_like(own) for _ in range(run.num_replicas)]
            dist.all_gather(parts, own.detach())
            counts = [torch.zeros(7) for _ in range(run.num_replicas)]
            dist.all_gather(counts, torch.ones(7))  # of seven classes, not of samples
            (own @ torch.cat(parts).T).square().mean().backward()
            optimizer.step()
    run.close()
    assert not hasattr(dist.all_gather, "coadapt_watches")


@pytest.mark.processes
def test_equal_shares_are_gathered(tmp_path: Path) -> None:
    assert run_replicas(contrast, [14] * 2, tmp_path) == [0, 0]


@pytest.mark.processes
def test_unequal_shares_are_one_line(tmp_path: Path) -> None:
    codes = run_replicas(contrast, [13] * 2, tmp_path)
    assert codes[0] == 1, codes
    said = (tmp_path / "output-0.txt").read_text()
    assert (
        "torch.distributed.all_gather of a pass's rows, in a step of 13 samples on 2 "
        "replicas" in said
    )
    assert "run.gather(tensor)" in said


def test_a_size_that_cannot_share_is_refused() -> None:
    check_shares("all_gather", 20, 2)
    check_shares("", 20, 3)
    with pytest.raises(InputError, match="20 samples on 3 replicas"):
        check_shares("all_gather", 20, 3)
