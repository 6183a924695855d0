"""Sums and means over an epoch; test_elastic.py changes the replicas on the way."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.group.group import Group
from coadapt.train.group.totals import Totals, values_of

pytestmark = pytest.mark.train


def test_sums_and_weighted_means() -> None:
    totals = Totals()
    totals.add("seen", 3, None)
    totals.add("seen", torch.tensor(4), None)
    totals.add("loss", torch.tensor(2.0, requires_grad=True), 3.0)
    totals.add("loss", 4.0, 1.0)
    whole = totals.gather(Group())
    assert whole == {"seen": (7.0, None), "loss": (10.0, 4.0)}
    assert values_of(whole) == {"seen": 7.0, "loss": 2.5}
    assert math.isnan(values_of({"loss": (0.0, 0.0)})["loss"])


def test_what_was_gathered_is_kept_once() -> None:
    whole = {"seen": (7.0, None), "loss": (10.0, 4.0)}
    first = Totals()
    second = Totals()
    first.restore(whole, Group(rank=0, size=1))
    second.restore(whole, Group(rank=1, size=2))
    assert first.gather(Group()) == whole
    assert second.gather(Group()) == {}


def test_a_name_has_one_meaning() -> None:
    totals = Totals()
    totals.add("loss", 1.0, None)
    with pytest.raises(ValueError, match="'loss' is both a sum and a mean"):
        totals.add("loss", 1.0, 2.0)
    totals = Totals()
    totals.add("loss", 1.0, 2.0)
    with pytest.raises(ValueError, match="'loss' is both a sum and a mean"):
        totals.add("loss", 1.0, None)


def test_every_epoch_begins_anew() -> None:
    run = ct.init()
    model = nn.Linear(1, 1)
    run.prepare(model, torch.optim.SGD(model.parameters()))
    loader = run.loader(
        TensorDataset(torch.arange(10.0).reshape(-1, 1)), batch_size=4, max_atomic=3
    )
    found = []
    for _ in run.epochs(2):
        for (x,) in loader:
            run.sum(seen=len(x), total=x.sum())
            run.mean(mean=x.mean())
        run.sum(validated=1)
        found.append(run.totals())
    assert found == [{"seen": 10.0, "total": 45.0, "mean": 4.5, "validated": 1.0}] * 2
    assert run.totals() == {}
