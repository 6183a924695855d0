"""Mistakes that would show nowhere get one line; what only looks like one gets none."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model.measured import NOT_FINITE as NOT_FINITE_STEP
from coadapt.train.batch.tuning import fit, take_snapshot
from coadapt.train.wrappers.script_check import BesideCheck, FiniteCheck
from tests.train.bugs import train

pytestmark = pytest.mark.train

NO_STEP = "50 steps with a backward but without optimizer.step(): nothing is learnt"
UNWRAPPED = (
    "50 steps in which another optimizer than that of run.prepare changed the "
    "parameters: use what prepare "
    "returned, model and optimizer"
)
# Where nobody uses the noise scale, two steps in 64 are looked at.
NOT_FINITE = (
    "step 12: gradients are infinite or not a number (NaN): look at the data and the loss, lower the learning "
    "rate, or clip; training continues"
)
NO_BACKWARD = "50 steps without a backward through the model of run.prepare: "


@pytest.mark.parametrize(
    ("bug", "warned"),
    [
        ("no step", NO_STEP),
        ("unwrapped", UNWRAPPED),
        ("no backward", f"{NO_BACKWARD}loss.backward() is missing"),
        ("bare model", f"{NO_BACKWARD}use it, not the model that prepare was given"),
        ("nan", NOT_FINITE),
        ("none", None),
    ],
)
def test_a_mistake_is_told_once(
    bug: str, warned: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    train(bug)
    assert caplog.messages == [warned] * (warned is not None)


def loop(num_steps: int, body: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Train `num_steps` steps in a way that is not a mistake; return what was said.

    Losses have a least, as else gradients of most initial parameters grow without end,
    which would be said.
    """
    caplog.set_level(logging.WARNING)
    run = ct.init()
    net = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    critic = nn.Linear(1, 1)
    if body == "frozen":
        net[0].requires_grad_(False)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    other = torch.optim.SGD(critic.parameters(), lr=0.01)
    loader = run.loader(TensorDataset(torch.ones(8 * num_steps, 1)), batch_size=8)
    for _ in run.epochs(1):
        for index, (x,) in enumerate(loader):
            if body == "calibration" and index < 60:
                model(x)  # its output is looked at only: no gradient is wanted yet
                continue
            if body == "no use yet" and index < 60:
                continue
            if body == "critic first" and index < 60:
                critic(model(x)).tanh().mean().backward()
                other.step()
                continue
            if body == "critic often" and index % 5:
                critic(model(x)).tanh().mean().backward()
                other.step()
                continue
            model(x).tanh().mean().backward()
            if body == "skips" and index < 20:
                continue
            optimizer.step()
            optimizer.zero_grad()
    return caplog.messages


@pytest.mark.parametrize(
    "body",
    [
        "plain",
        "frozen",
        "calibration",
        "no use yet",
        "critic first",
        "critic often",
        "skips",
    ],
)
def test_what_is_meant_is_not_told(body: str, caplog: pytest.LogCaptureFixture) -> None:
    assert loop(130, body, caplog) == []


def test_a_short_training_without_a_step_is_told_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = ct.init()
    net = nn.Linear(1, 1)
    model, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(24, 1)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x)
    assert caplog.messages == [
        "training ended after 3 steps without one optimizer.step()"
    ]


@pytest.mark.parametrize("how", ["log", "mean"])
def test_a_loss_that_is_not_finite_is_told_with_its_step_and_reported(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = ct.init()
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(80, 1)), batch_size=8)
    for _ in run.epochs(1):
        for index, (x,) in enumerate(loader):
            loss = model(x).mean() * (float("nan") if index == 6 else 1.0)
            (run.log if how == "log" else run.mean)(loss=loss)
            if index != 6:
                loss.backward()
                optimizer.step()
    assert caplog.messages == [
        (
            "step 7: loss is nan: look at the data and the loss, lower the learning "
            "rate, or clip; training continues"
        )
    ]
    report = fit(take_snapshot(run._session, 1, None)).report
    assert report.metrics[NOT_FINITE_STEP] == 7.0


def test_steps_that_a_loss_scaler_skips_are_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It begins at a scale at which the gradients are infinite."""
    run = ct.init()
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    scaler = run.prepare_scaler(torch.amp.GradScaler("cpu", init_scale=2.0**127))
    loader = run.loader(TensorDataset(torch.ones(320, 1)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            scaler.scale(1e3 * model(x).square().mean()).backward()  # type: ignore[attr-defined]
            scaler.step(optimizer)  # type: ignore[arg-type]
            scaler.update()
    assert caplog.messages == []


def test_gradients_that_recover_are_not_told() -> None:
    """Where a loss scaler is in use."""
    check = FiniteCheck()
    warned = [check.began(step, unusable=step % 40 != 0) for step in range(200)]
    assert warned == [None] * 200
    # From then on none is finite; said once, with the first step of it.
    warned = [check.began(step, unusable=True) for step in range(200, 300, 8)]
    assert [item for item in warned if item is not None] == [161]


def beside(caplog: pytest.LogCaptureFixture, *, distributed: bool, again: bool) -> str:
    """Return what is said where a second optimiser steps 12 times. again: a new one in
    each step.
    """
    session: Any = SimpleNamespace(
        current=object(),
        progress=SimpleNamespace(step=0),
        group=SimpleNamespace(distributed=distributed, rank=0),
    )
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    check = BesideCheck(session)
    check.know(weights[:1])
    # Another hook of torch's comes after it, as in a run.
    after = register_optimizer_step_post_hook(lambda *_: None)
    own, other = (torch.optim.SGD([item], lr=0.1) for item in weights)
    for step in range(12):
        session.progress.step = step
        own.step()
        other = torch.optim.SGD(weights[1:], lr=0.1) if again else other
        other.step()
    check.close()
    after.remove()
    return "".join(caplog.messages)


def test_an_optimizer_beside_the_run_is_told_on_several_replicas(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert beside(caplog, distributed=False, again=False) == ""
    assert beside(caplog, distributed=True, again=True) == ""
    said = beside(caplog, distributed=True, again=False)
    assert said.startswith("step 9: an optimizer that run.prepare(...) was not given")
