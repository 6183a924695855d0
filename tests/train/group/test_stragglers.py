"""A replica is named that is slower than its peers, if it is so all the time."""

import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import Allocation
from coadapt.model.measured import NO_STRAGGLER, RANK, RATIO, straggler
from coadapt.train.group.stragglers import WINDOW, Stragglers
from tests.train.replicas import run_replicas

FOUR = Allocation(slots=(("n0", 2), ("n1", 2)))


class Slow(nn.Linear):
    """Computes for `extra_s` longer than it would."""

    extra_s = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.extra_s)
        return super().forward(x)


def train_with_a_slow_one(out: str) -> None:
    run = ct.init(contract="fixed")
    model = Slow(4, 1)
    model.extra_s = 0.03 if run.rank == 1 else 0.01
    wrapped, optimizer = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01)
    )
    loader = run.loader(TensorDataset(torch.randn(8 * 8 * WINDOW, 4)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            wrapped(x).square().mean().backward()
            optimizer.step()
    if run.is_first:
        metrics = run._session.figures.stragglers.metrics()  # as its reports do
        Path(out).write_text(json.dumps(dict(metrics)))
    run.close()


def after(*steps: tuple[float, ...]) -> Stragglers:
    stragglers = Stragglers()
    for step in steps:
        stragglers.note(step)
    return stragglers


def test_the_slow_one_is_named_with_its_figure_once_it_was_seen_often() -> None:
    slow = (1.0, 1.1, 1.0, 1.7)
    assert after(*[slow] * (WINDOW - 1)).metrics() == {}
    metrics = after(*[slow] * WINDOW).metrics()
    assert metrics[RANK] == 3
    assert (
        straggler(metrics, FOUR)
        == "rank 3 on n1 computes 1.7 times as long as the median of its peers"
    )


def test_a_slow_step_now_and_then_is_nobodys_fault() -> None:
    turns = [
        tuple(3.0 if rank == turn % 4 else 1.0 for rank in range(4))
        for turn in range(5 * WINDOW)
    ]
    assert (
        after(
            *[step if turn % 5 == 0 else (1.0,) * 4 for turn, step in enumerate(turns)]
        ).metrics()[RANK]
        == NO_STRAGGLER
    )


def test_what_makes_all_slower_names_nobody() -> None:
    assert after(*[(seconds, seconds) for seconds in range(1, 50)]).metrics() == {
        RANK: NO_STRAGGLER,
        RATIO: 1.0,
    }


def test_steps_that_not_all_measured_do_not_count_and_a_new_group_begins_anew() -> None:
    stragglers = after(*[(1.0, 2.0)] * WINDOW, *[(1.0, 0.0)] * 100)
    assert stragglers.metrics() == {RANK: 1.0, RATIO: 2.0}
    stragglers.clear()
    assert stragglers.metrics() == {}
    stragglers.note((1.0,))
    stragglers.note(())
    assert stragglers.metrics() == {}


def test_what_was_said_of_more_replicas_is_not_said_of_fewer() -> None:
    metrics = {RANK: 3.0, RATIO: 2.0}
    assert straggler(metrics, Allocation(slots=(("n0", 3),))) == ""
    assert straggler({RANK: 0.0, RATIO: 2.0}, Allocation(slots=(("n0", 1),))) == ""
    assert (
        straggler({RANK: NO_STRAGGLER, RATIO: 1.1}, FOUR) == straggler({}, FOUR) == ""
    )


@pytest.mark.train
@pytest.mark.processes
def test_replicas_find_out_who_of_them_is_slow(tmp_path: Path) -> None:
    """The one computes for 0.03 s and more in each step, the other for 0.01 s, and
    waits.
    """
    out = tmp_path / "metrics.json"
    assert run_replicas(train_with_a_slow_one, [str(out)] * 2, tmp_path) == [0, 0]
    metrics = json.loads(out.read_text())
    assert metrics[RANK] == 1.0
    assert metrics[RATIO] > 1.25
