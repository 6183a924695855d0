"""Mixed precision: scaled losses, skipped steps and 16-bit gradients, against a plain
loop.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.noise.norms import NormMeter
from tests.train.noise.quadratic import BATCH, Centre, cloud, true_noise_scale

pytestmark = pytest.mark.train

CLIP = 0.5


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(120, 4, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)


def losses(output: Tensor, y: Tensor, step: int) -> Tensor:
    """The third step's loss is infinite."""
    return nn.functional.mse_loss(output, y) * (math.inf if step == 2 else 1.0)


def plain() -> tuple[list[Tensor], float]:
    x, y = data()
    model, optimizer = make()
    amp = scaler()
    for epoch in range(2):
        for step in range(3):
            part = slice(40 * step, 40 * step + 40)
            optimizer.zero_grad()
            amp.scale(losses(model(x[part]), y[part], step + 3 * epoch)).backward()
            amp.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            amp.step(optimizer)
            amp.update()
    return list(model.parameters()), amp.get_scale()


@pytest.mark.parametrize("max_atomic", [None, 20, 7])
def test_scaled_losses_skips_and_clipping_are_the_plain_loops(
    max_atomic: int | None,
) -> None:
    run = ct.init()
    model, optimizer = run.prepare(*make())
    amp = run.prepare_scaler(scaler())
    loader = run.loader(TensorDataset(*data()), batch_size=40, max_atomic=max_atomic)
    for _ in run.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            amp.scale(losses(model(x), y, run.progress.step)).backward()
            amp.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            amp.step(optimizer)
            amp.update()
    parameters, scale = plain()
    assert amp.get_scale() == scale
    for got, wanted in zip(model.parameters(), parameters, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    stats = run.grad_stats
    assert stats is not None
    assert 0.0 < stats.var < math.inf


@pytest.mark.parametrize("max_atomic", [None, 16])
def test_the_noise_scale_does_not_see_the_loss_scale(max_atomic: int | None) -> None:
    """The loss scale doubles after ten good steps and halves at a bad one, of which
    there are many.
    """
    run = ct.init()
    centre = Centre()
    sgd = torch.optim.SGD(centre.parameters(), lr=0.0)
    model, optimizer = run.prepare(centre, sgd, noise="gradients")
    amp = run.prepare_scaler(
        torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10)
    )
    loader = run.loader(
        TensorDataset(cloud()), batch_size=BATCH, max_atomic=max_atomic, shuffle=True
    )
    largest = 0.0
    for _ in run.epochs(40):
        for (x,) in loader:
            optimizer.zero_grad()
            bad = run.progress.step % 12 == 11
            amp.scale(model(x).mean() * (math.nan if bad else 1.0)).backward()
            amp.step(optimizer)
            amp.update()
            largest = max(largest, amp.get_scale())
    assert largest == 8.0
    stats = run.grad_stats
    assert stats is not None
    assert stats.noise_scale(BATCH) == pytest.approx(true_noise_scale(), rel=0.15)
    assert stats.sqr == pytest.approx(float(cloud().mean(0).square().sum()), rel=0.1)


def test_a_fused_optimiser_is_stepped_through_the_scaler() -> None:
    run = ct.init()
    module = nn.Linear(4, 1)
    nn.init.ones_(
        module.weight
    )  # far from the optimum: both steps go the same way, by the whole rate
    model, optimizer = run.prepare(
        module, torch.optim.Adam(module.parameters(), lr=0.1, fused=True)
    )
    amp = run.prepare_scaler(torch.amp.GradScaler("cpu", init_scale=8.0))
    loader = run.loader(TensorDataset(torch.ones(8, 4)), batch_size=4)
    before = module.weight.detach().clone()
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            amp.scale(model(x).square().mean()).backward()
            amp.step(optimizer)
            amp.update()
    assert (module.weight - before).abs().max().item() == pytest.approx(0.2, abs=0.05)


def test_the_scale_comes_back_with_a_checkpoint(tmp_path: Path) -> None:
    for generation in range(2):
        run = ct.init(checkpoint_dir=tmp_path)
        model, optimizer = run.prepare(*make())
        amp = run.prepare_scaler(scaler())
        loader = run.loader(TensorDataset(*data()), batch_size=40)
        for _ in run.epochs(generation + 1):
            assert amp.get_scale() == (2.0**11 if generation else 2.0**10)
            for x, y in loader:
                optimizer.zero_grad()
                amp.scale(nn.functional.mse_loss(model(x), y)).backward()
                amp.step(optimizer)
                amp.update()
        run.close()


def test_a_scaler_needs_its_optimiser() -> None:
    with pytest.raises(RuntimeError, match=r"prepare\(...\) before"):
        ct.init().prepare_scaler(scaler())


def test_bfloat16_autocast_trains_and_measures() -> None:
    run = ct.init()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = run.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    x, y = (tensor.float() for tensor in data())
    loader = run.loader(TensorDataset(x, y), batch_size=40, max_atomic=20)
    found = []
    for _ in run.epochs(20):
        for part, target in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.mse_loss(model(part).float(), target)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    assert sum(found[-6:]) < sum(found[:6])
    assert run.grad_stats is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_16_bit_gradients_are_taken_in_32(dtype: torch.dtype) -> None:
    """In 16 bits the first would overflow; the differences of such norms would be lost
    in rounding.
    """
    meter = NormMeter(None, sums=False)
    meter.begin_step(measure=True)
    grads = [torch.full((1000,), 2000.0 + step).to(dtype) for step in range(2)]
    for grad in grads:
        meter.add_part((), [grad], 1)
        meter.end_pass(1)
    meter.set_whole((), [grads[0]], 2)
    wanted = sum(float(grad.double().square().sum()) for grad in grads)
    found = meter.take(1, 2)
    assert isinstance(found, GradNorms)
    assert found.small_sqr == pytest.approx(wanted, rel=1e-5)
