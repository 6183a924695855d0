"""When replicas talk: seldom where steps are short, and never past a measured step."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.samples import pace
from coadapt.train.samples.pace import (
    MEASURE_PERIOD,
    SYNCED_AT_FIRST,
    WATCH_PERIOD,
    Pace,
    measures,
)


def strides(monkeypatch: pytest.MonkeyPatch, step_s: float) -> list[int]:
    """Return the strides of the syncs in 200 steps of `step_s` seconds."""
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    found = []
    mine = Pace()
    for step in range(200):
        now[0] += step_s
        if mine.syncs(step):
            mine.stride = mine.next(step + 1)
            found.append(mine.stride)
        else:
            assert not measures(step, compares=False)
    return found


@pytest.mark.parametrize(
    ("step_s", "stride"),
    [(0.01, 8), (0.051, 4), (0.15, 2), (0.21, 1), (2.0, 1), (1e-9, MEASURE_PERIOD)],
)
def test_the_stride_follows_the_step_time(
    monkeypatch: pytest.MonkeyPatch, step_s: float, stride: int
) -> None:
    found = strides(monkeypatch, step_s)
    assert found[: SYNCED_AT_FIRST - 1] == [1] * (SYNCED_AT_FIRST - 1)
    assert set(found[SYNCED_AT_FIRST:]) == {stride}


def test_a_run_that_went_back_talks_after_each_step_at_first() -> None:
    mine = Pace()
    mine.next(200)
    assert mine.next(150) == 1


def test_the_time_before_the_first_word_says_nothing_of_the_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that comes back after a million steps, on a machine that has just been
    switched on.
    """
    monkeypatch.setattr(pace.time, "monotonic", lambda: 60.0)
    assert Pace().next(1_000_000) == 1


def test_one_replica_alone_posts_nothing_in_steps_of_which_nobody_has_to_hear() -> None:
    run = ct.init()
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(400, 1)), batch_size=1)
    posted: list[int] = []
    consensus = run._step_loop._consensus
    post = consensus.post

    def counted(*arguments: Any) -> None:
        posted.append(run.progress.step)
        post(*arguments)

    consensus.post = counted  # type: ignore[method-assign]  # to count
    for _ in run.epochs(1):
        for (x,) in loader:  # type: ignore[misc]  # one tensor
            model(x).mean().backward()
            optimizer.step()
    assert run.progress.step == 400
    # Nobody uses the noise: the gradients of two successive steps are looked at in one
    # of 64.
    assert len(posted) <= 2 * 400 / WATCH_PERIOD + 6
    assert run.grad_stats is not None


@pytest.mark.parametrize(("step_s", "pairs"), [(0.0005, 5), (0.02, 25)])
def test_pairs_of_short_steps_are_measured_less_often(
    monkeypatch: pytest.MonkeyPatch, step_s: float, pairs: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(pace, "PAIR_EVERY_CPU_S", 0.02)
    monkeypatch.setattr(pace.time, "thread_time", lambda: now[0])
    mine = Pace()
    found = []
    for step in range(200):
        if mine.measures(step, compares=True):
            found.append(step)
        now[0] += step_s
    assert found[1::2] == [step + 1 for step in found[::2]], (
        "each with the step that it is compared with"
    )
    assert len(found) == 2 * pairs


@pytest.mark.parametrize(("step_s", "share"), [(0.0005, 1 / 7), (0.003, 1.0)])
def test_of_short_steps_few_are_timed_at_each_place_of_a_period(
    monkeypatch: pytest.MonkeyPatch, step_s: float, share: float
) -> None:
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    mine = Pace()
    timed = []
    for step in range(10 * 56):
        if mine.times(step):
            timed.append(step)
        now[0] += step_s
        if mine.syncs(step):
            mine.stride = mine.next(step + 1)
    late = [step for step in timed if step >= 56]
    assert len(late) == round(9 * 56 * share)
    places = [
        sum(step % MEASURE_PERIOD == place for step in late)
        for place in range(MEASURE_PERIOD)
    ]
    assert min(places) == max(places), (
        "steps that are measured count as much as the others"
    )


def test_one_replica_alone_looks_seldom_whether_it_is_to_act_but_measures_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        pace, "SYNC_EVERY_S", 1e9
    )  # no step is long, however busy the machine
    run = ct.init()
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(800, 1)), batch_size=1)
    asked: list[int] = []
    rescaler = run._step_loop._rescaler
    requested = rescaler.requested

    def note() -> bool:
        asked.append(run.progress.step)
        return requested()

    rescaler.requested = note  # type: ignore[method-assign]
    measured: list[bool] = []
    for _ in run.epochs(1):
        for (x,) in loader:
            measured.append(run._step_loop._pace.measuring)
            model(x).mean().backward()
            optimizer.step()
    late = {step for step in asked if step > 56}
    # After every eighth, and after those that are measured and the next, where what
    # they gave is applied.
    owed = {step for step, was in enumerate(measured, 1) if was}
    assert late <= owed | {step + 1 for step in owed} | set(
        range(1, 801, MEASURE_PERIOD)
    ) | {800}
    assert max(b - a for a, b in pairwise(sorted(late))) <= MEASURE_PERIOD


def test_replicas_measure_the_same_steps_whatever_their_clocks() -> None:
    mine = Pace()
    assert [step for step in range(200) if mine.measures(step, compares=False)] == [
        step for step in range(200) if measures(step, compares=False)
    ]
