"""Losses that are means over tokens or boxes: the step's gradient is that of the mean
over all of them.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.group.consensus import StepFlags, _check_alike
from coadapt.train.group.pass_weights import (
    PassWeights,
    UnlikeReplicasError,
    _check_words,
    _Word,
    scale_all,
)
from coadapt.train.samples.order import Pass
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

BATCH = 12
NUM_SAMPLES = 30
CLIP = 0.05


def data() -> tuple[Tensor, Tensor]:
    """Texts of 1 to 9 tokens, padded; of the tokens of others the loss is not taken.
    Sample 3 has none.
    """
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(NUM_SAMPLES, 9, 4, generator=draw, dtype=torch.float64)
    lengths = torch.randint(1, 10, (NUM_SAMPLES,), generator=draw)
    lengths[3] = 0
    lengths[:3] = 9
    return x, torch.arange(9) < lengths.unsqueeze(1)


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def loss_of(model: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    return (
        (model(x).squeeze(2) - x.sum(2).sin()).square() * counts
    ).sum() / counts.sum()


def plain(clip: float | None) -> tuple[list[Tensor], float]:
    """Return the parameters, and the mean of the loss over all tokens of the last
    epoch.
    """
    model, optimizer = make()
    for _ in range(2):
        total = 0.0
        tokens = 0
        for x, counts in zip(*(item.split(BATCH) for item in data()), strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, x, counts)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            total += float(loss.detach()) * int(counts.sum())
            tokens += int(counts.sum())
    return [parameter.detach() for parameter in model.parameters()], total / tokens


def elastic(how: dict[str, Any]) -> tuple[list[Tensor], dict[str, float]]:
    torch.set_num_threads(1)
    run = ct.init()
    model, optimizer = run.prepare(*make(), shard=how.get("shard", False))
    scaler = None
    if how.get("scaler"):
        scaler = run.prepare_scaler(torch.amp.GradScaler("cpu", init_scale=1024.0))
    loader = run.loader(
        TensorDataset(*data()), batch_size=BATCH, max_atomic=how.get("max_atomic")
    )
    figures = {}
    for _ in run.epochs(2):
        for x, counts in loader:
            optimizer.zero_grad()
            loss = loss_of(model, x, counts)
            run.weight(counts.sum())
            run.mean(loss=loss)
            run.sum(samples=len(x))
            (loss if scaler is None else scaler.scale(loss)).backward()
            if how.get("clip"):
                if scaler is not None:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), how["clip"])
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        figures = run.totals()
    state = model.full_state_dict()  # type: ignore[operator]  # an ElasticModel's
    if "folder" in how and run.is_first:
        torch.save((state, figures), Path(how["folder"]) / "end.pt")
    run.close()
    return list(state.values()), figures


def assert_plain(
    found: list[Tensor], figures: dict[str, float], clip: float | None = None
) -> None:
    wanted, loss = plain(clip)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    assert figures["loss"] == pytest.approx(loss, rel=1e-6)
    assert figures["samples"] == NUM_SAMPLES


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("max_atomic", [None, 5, 1])
def test_passes_weigh_their_tokens(max_atomic: int | None, clip: float | None) -> None:
    """With passes of one sample, one of them has no token: its mean is not a number,
    and is left out.
    """
    assert_plain(*elastic({"max_atomic": max_atomic, "clip": clip}), clip)


def test_a_loss_scaler_changes_nothing() -> None:
    assert_plain(*elastic({"max_atomic": 5, "clip": CLIP, "scaler": True}), CLIP)


@pytest.mark.parametrize(
    "how", [{}, {"max_atomic": 2}, {"shard": True, "max_atomic": 2}]
)
def test_replicas_and_passes_weigh_their_tokens(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """Three replicas; the last step has six samples, so stand-ins run where passes have
    two.
    """
    how = {**how, "clip": CLIP, "folder": str(tmp_path)}
    assert run_replicas(elastic, [how] * 3, tmp_path) == [0] * 3
    state, figures = torch.load(tmp_path / "end.pt", weights_only=True)
    assert_plain(list(state.values()), figures, CLIP)


def body(run: ct.Run, model: nn.Module, x: Tensor, weight: Any, *, late: bool) -> None:
    if weight is not None and not late:
        run.weight(weight)
    model(x).mean().backward()
    if weight is not None and late:
        run.weight(weight)


def weigh_with(weights: list[Any], *, late: bool) -> None:
    run = ct.init()
    net = nn.Linear(4, 1)
    model, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.ones(16, 4)), batch_size=8)
    for _ in run.epochs(1):
        for index, (x,) in enumerate(loader):
            body(run, model, x, weights[index], late=late)


@pytest.mark.parametrize(
    ("weights", "late", "message"),
    [
        ([-1.0], False, "got -1.0; allowed: a finite number, at least 0"),
        ([float("nan")], False, "got nan"),
        ([float("inf")], False, "got inf"),
        (["many"], False, "got 'many'; allowed: a number"),
        ([4, None], False, "no call in a pass, though there was one before"),
        ([None, 4], False, "a call in step 2, none before"),
        ([4], True, "a call after the pass's backward"),
    ],
)
def test_what_is_no_weight_is_told(
    weights: list[Any], late: bool, message: str
) -> None:
    with pytest.raises(InputError, match=r"run\.weight\(n\): ") as error:
        weigh_with(weights, late=late)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_belong_into_the_loop_once_per_pass_and_not_to_sums() -> None:
    run = ct.init()
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model, _ = run.prepare(net, optimizer, reduction="sum")
    loader = run.loader(TensorDataset(torch.ones(16, 4)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            with pytest.raises(InputError, match="sums over items add up"):
                body(run, model, x, 3, late=False)
    run = ct.init()
    model, _ = run.prepare(net, optimizer)
    with pytest.raises(InputError, match="a call outside of the loop"):
        run.weight(3)
    loader = run.loader(TensorDataset(torch.ones(16, 4)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            body(run, model, x, 3, late=False)
            with pytest.raises(InputError, match="a second call in a pass"):
                run.weight(3)


def test_a_pass_of_weight_zero_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    weights = PassWeights()
    current = Pass(start=0, stop=4, step_samples=4)
    for step in range(2):
        weights.begin_pass(current)
        weights.give(0, current, step)
    assert caplog.messages == [
        "step 1: run.weight(0): the gradient of this pass is left out"
    ]
    grads = [torch.tensor([float("nan"), 1.0])]
    scale_all(grads, 0.0)
    assert grads[0].tolist() == [0.0, 0.0]


def validate(run: ct.Run, loader: Any, *, without: tuple[int, ...]) -> None:
    for index, (x, n) in enumerate(loader):
        if index not in without:
            run.weight(n.sum())
        run.mean(loss=x.mean())


def test_means_of_validation_weigh_by_what_was_said() -> None:
    run = ct.init()
    values = torch.tensor([1.0, 1.0, 4.0, 4.0])
    tokens = torch.tensor([3.0, 3.0, 1.0, 1.0])
    loader = run.validation_loader(TensorDataset(values, tokens), batch_size=2)
    validate(run, loader, without=())
    assert loader.totals() == {"loss": pytest.approx((6 * 1.0 + 2 * 4.0) / 8)}
    with pytest.raises(InputError, match="no call in some passes"):
        validate(run, loader, without=(0,))


def weigh_on_some(folder: str) -> None:
    """One replica says its weight, the other does not: the training script's
    mistake.
    """
    run = ct.init()
    net = nn.Linear(4, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader = run.loader(TensorDataset(torch.ones(16, 4)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            body(run, model, x, 5 if run.is_first else None, late=False)
            optimizer.step()


def test_a_weight_on_some_replicas_only_ends_the_run_with_a_line(
    tmp_path: Path,
) -> None:
    assert 0 not in run_replicas(weigh_on_some, [""] * 2, tmp_path)
    text = (tmp_path / "output-0.txt").read_text()
    assert "was called on some replicas only, not on replica 1" in text


def test_replicas_in_different_backwards_are_told() -> None:
    words = [
        _Word(step=9, number=3, weighs=False, weight=0.0),
        _Word(step=10, number=1, weighs=False, weight=0.0),
    ]
    with pytest.raises(UnlikeReplicasError) as error:
        _check_words(words)
    message = (
        "replica 0 is in backward 3 of step 10, replica 1 is in backward 1 of step 11"
    )
    assert message in str(error.value)
    assert "gradients accumulated by hand" in str(error.value)


def test_as_many_backwards_are_told_with_the_consensus() -> None:
    own = StepFlags(step=8.0, backwards=8.0)
    agreed = StepFlags(step=16.0, backwards=12.0)
    with pytest.raises(
        UnlikeReplicasError, match=r"8 here since .*, 12 on all 2, up to"
    ):
        _check_alike(own, agreed, 2)
    _check_alike(own, replace(agreed, backwards=16.0), 2)


def test_a_new_group_counts_steps_without_a_backward_from_its_first_step() -> None:
    """A GAN's generator steps in one step of five: a replica that joins knows nothing
    of those before.
    """
    run = ct.init()
    net = nn.Linear(4, 1)
    run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    trained = run._step_loop.trained
    for pair in trained:
        pair.gradients.skipped.end_step()
    run._session.weights.exchanged = 3
    trained.enter()
    assert trained.take_skipped() == 0
    assert run._session.weights.take_exchanged() == 0
