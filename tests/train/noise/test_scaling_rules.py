"""Scaling rules, and the learning rate that the optimiser sees during a step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import BatchLimits, GradStats, InputError, JobSpec
from coadapt.train.env import Job, TrainConfig
from coadapt.train.noise.scaling_rules import (
    BatchScale,
    adam,
    adascale,
    batch_scale,
    linear,
    resolve_rule,
    square_root,
)
from coadapt.train.run import Run
from coadapt.train.wrappers.optimizer import _scale

pytestmark = pytest.mark.train


@given(
    scale=st.floats(1.0, 1000.0),
    sqr=st.floats(1e-6, 1e6),
    var=st.floats(1e-6, 1e6),
    initial=st.just(64),
)
def test_the_gain_is_adascales(
    scale: float, sqr: float, var: float, initial: int
) -> None:
    at = batch_scale(round(scale * initial), initial, GradStats(sqr=sqr, var=var))
    assert at.scale == pytest.approx(round(scale * initial) / initial)
    assert at.gain == pytest.approx((var + sqr) / (var / at.scale + sqr))
    assert at.gain * (1 + 1e-9) >= 1.0
    assert at.gain <= at.scale * (1 + 1e-9)


def test_a_small_last_batch_and_an_unknown_noise_change_nothing() -> None:
    stats = GradStats(sqr=1.0, var=1.0)
    assert batch_scale(10, 64, stats) == BatchScale(scale=1.0, gain=1.0)
    assert batch_scale(640, 64, None) == BatchScale(scale=10.0, gain=1.0)


def test_rules() -> None:
    at = BatchScale(scale=4.0, gain=3.0)
    assert [rule(at) for rule in (adascale, square_root, linear)] == [3.0, 2.0, 4.0]


def test_the_default_follows_the_optimiser() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    for kind, rule in (
        (torch.optim.SGD, adascale),
        (torch.optim.Adam, square_root),
        (torch.optim.AdamW, square_root),
        (torch.optim.RMSprop, square_root),
    ):
        assert resolve_rule("auto", kind(parameters, lr=0.1)) is rule
    own = resolve_rule(lambda at: 7.0 * at.scale, torch.optim.SGD(parameters))
    assert own(BatchScale(scale=2.0, gain=2.0)) == 14.0
    with pytest.raises(
        InputError, match="prepare\\(scaling\\): got 'cubic'; allowed: auto, adascale"
    ):
        resolve_rule("cubic", torch.optim.SGD(parameters))
    with pytest.raises(
        InputError, match="got 'adam'; allowed: an optimiser with betas; SGD has none"
    ):
        resolve_rule("adam", torch.optim.SGD(parameters))


@given(scale=st.integers(1, 64), base=st.floats(0.01, 2.0), at=st.floats(0.0, 3.0))
def test_legw_is_the_papers(scale: int, base: float, at: float) -> None:
    """You et al. 2019: k times the batch, √k times the rate, k times the warm-up
    epochs.
    """
    rule = ct.legw(base)
    found = rule(BatchScale(scale=scale, gain=1.0, epochs=at * base * scale))
    assert found == pytest.approx(scale**0.5 * min(at, 1.0), rel=1e-6)
    assert rule(BatchScale(scale=1.0, gain=1.0)) == 1.0


def test_legw_without_warm_up_is_the_square_root() -> None:
    at = BatchScale(scale=9.0, gain=2.0, epochs=0.0)
    assert ct.legw(0.0)(at) == square_root(at) == 3.0
    with pytest.raises(InputError, match="legw\\(warmup_epochs\\): got -1"):
        ct.legw(-1.0)


def test_legw_warms_up_over_epochs_of_the_run() -> None:
    run = ct.init(contract="adaptive")
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    during: list[float] = []
    inner.register_step_pre_hook(
        lambda opt, *_: during.append(opt.param_groups[0]["lr"])
    )
    elastic, optimizer = run.prepare(model, inner, scaling=ct.legw(1.0))
    loader = run.loader(TensorDataset(torch.randn(8, 2)), batch_size=4)
    for _ in run.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            elastic(x).mean().backward()
            optimizer.step()
    assert during == [0.5, 1.0, 1.0, 1.0]


def test_adam_scales_rate_betas_and_epsilon_for_the_step_only() -> None:
    """Malladi et al. 2022: η √κ, 1 - κ (1 - β), ε / √κ."""
    run = ct.init(contract="adaptive")
    model = nn.Linear(2, 1)
    inner = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.99), eps=1e-6)
    during: list[tuple[float, tuple[float, float], float]] = []
    inner.register_step_pre_hook(
        lambda opt, *_: during.extend(
            (g["lr"], g["betas"], g["eps"]) for g in opt.param_groups
        )
    )
    elastic, optimizer = run.prepare(model, inner, scaling="adam")
    loader = run.loader(
        TensorDataset(torch.randn(8, 2)), batch_size=2, max_batch_size=8
    )
    for _ in run.epochs(1):
        for (x,) in loader:
            run._session.data.batch = ct.BatchConfig(total=4, atomic=4)
            optimizer.zero_grad()
            elastic(x).mean().backward()
            optimizer.step()
    assert during[0] == (1.0, (0.9, 0.99), 1e-6)
    assert during[1][0] == pytest.approx(2**0.5)
    assert during[1][1] == pytest.approx((0.8, 0.98))
    assert during[1][2] == pytest.approx(1e-6 / 2**0.5)
    assert (inner.param_groups[0]["lr"], inner.param_groups[0]["betas"]) == (
        1.0,
        (0.9, 0.99),
    )


def test_adam_forgets_at_most_all() -> None:
    assert adam(BatchScale(scale=16.0, gain=1.0)) == ct.Scaled(
        rate=4.0, forgetting=16.0
    )
    group = {"lr": 1.0, "betas": (0.9, 0.999), "eps": 1e-8}
    _scale(group, ct.Scaled(rate=4.0, forgetting=16.0))
    assert group["betas"] == pytest.approx((0.0, 0.984))


def test_the_rate_is_scaled_for_the_step_only_and_the_scheduler_sees_the_users() -> (
    None
):
    run = ct.init(contract="adaptive")
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(
        [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=1.0
    )
    during: list[list[float]] = []
    inner.register_step_pre_hook(
        lambda opt, *_: during.append([g["lr"] for g in opt.param_groups])
    )
    elastic, optimizer = run.prepare(model, inner, scaling=lambda at: 10.0 * at.scale)
    scheduler = run.prepare_scheduler(
        torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    )
    loader = run.loader(
        TensorDataset(torch.randn(8, 2)), batch_size=4, max_batch_size=8
    )
    after = []
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            elastic(x).mean().backward()
            optimizer.step()
            after.append([group["lr"] for group in optimizer.param_groups])
            scheduler.step()
    run.close()
    assert during == [[10.0, 5.0], [5.0, 2.5]]
    assert after == [
        [1.0, 0.5],
        [1.0, 0.5],
        [0.5, 0.25],
    ]  # the first step takes two passes


def test_a_fixed_job_keeps_its_rate_whatever_its_batch() -> None:
    spec = JobSpec(name="job", batch=BatchLimits(initial=4, requested=8))
    run = Run(TrainConfig(job=Job(spec=spec)))
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    during: list[float] = []
    inner.register_step_pre_hook(
        lambda opt, *_: during.append(opt.param_groups[0]["lr"])
    )
    elastic, optimizer = run.prepare(model, inner, scaling="linear")
    loader = run.loader(TensorDataset(torch.randn(16, 2)))
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            elastic(x).mean().backward()
            optimizer.step()
    assert during == [1.0, 1.0]
    assert run.progress.progress == run.progress.samples == 16
