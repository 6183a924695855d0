"""Noise from normalisation layers alone: each example's gradients against those of the example by itself."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.noise import GradNorms
from coadapt.train.norm_layers import LAYERS, NormLayerMeter
from coadapt.train.preconditioner import AdamPreconditioner

pytestmark = pytest.mark.train


class Shared(nn.Module):
    """One norm at two places, one without a shift, one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.rms = nn.RMSNorm(6)
        self.still = nn.LayerNorm(6).requires_grad_(requires_grad=False)
        self.lin = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.still(self.rms(self.norm(self.lin(self.norm(x)))))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "sequence": Shared,
    "image": lambda: nn.Sequential(nn.Conv2d(5, 6, 1), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten()),
}


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(dim=tuple(range(1, model(x).dim()))).mul(torch.arange(1.0, len(x) + 1))


def measured(meter: NormLayerMeter, model: nn.Module, x: Tensor, *, sums: bool) -> GradNorms | None:
    meter.begin_step(measure=True)
    model.zero_grad()
    loss = loss_of(model, x)
    (loss.sum() if sums else loss.mean()).backward()
    meter.add_alone([], [], len(x))
    return meter.take(1, len(x))


def by_hand(model: nn.Module, x: Tensor, divisors: dict[Tensor, Tensor]) -> tuple[float, float]:
    """Return the sum of the examples' squared norms, and that of the mean's, one backward per example."""
    names = [p for layer in model.modules() if isinstance(layer, LAYERS) for p in layer.parameters()]
    names = [p for p in names if p.requires_grad]
    rows = []
    for index in range(len(x)):
        grads = torch.autograd.grad(loss_of(model, x)[index], names)
        rows.append(
            torch.cat([g / divisors.get(p, torch.ones(())) for p, g in zip(names, grads, strict=True)])
        )
    each = torch.stack(rows)
    return float(each.square().sum()), float(each.mean(0).square().sum())


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_norms_are_those_of_each_example_alone(name: str, *, sums: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    x = torch.randn(4, 5, 6)[..., None] if name == "image" else torch.randn(4, 5, 6)
    found = measured(NormLayerMeter(model, None, sums=sums), model, x, sums=sums)
    small, big = by_hand(model, x, {})
    assert found is not None
    assert (found.small_sqr, found.big_sqr) == pytest.approx((small, big), rel=1e-4)
    assert (found.count, found.inverse, found.samples, found.differenced) == (4.0, 4.0, 4.0, False)


def test_an_adaptive_optimiser_sees_them_in_its_own_metric() -> None:
    torch.manual_seed(0)
    model = Shared()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    x = torch.randn(4, 5, 6)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model, x).mean().backward()
        optimizer.step()
    metric = AdamPreconditioner(optimizer)
    found = measured(NormLayerMeter(model, metric, sums=False), model, x, sums=False)
    small, big = by_hand(model, x, metric._divisors)
    assert found is not None
    assert (found.small_sqr, found.big_sqr) == pytest.approx((small, big), rel=1e-4)


def test_examples_that_cannot_be_told_apart_measure_nothing() -> None:
    model = Shared()
    meter = NormLayerMeter(model, None, sums=False)
    meter.begin_step(measure=True)
    model(torch.randn(8, 6)).square().mean().backward()  # two positions each of four examples, folded
    meter.add_alone([], [], 4)
    assert meter.take(1, 4) is None


def test_a_step_that_is_not_measured_watches_nothing() -> None:
    model = Shared()
    meter = NormLayerMeter(model, None, sums=False)
    meter.begin_step(measure=False)
    model(torch.randn(4, 6)).square().mean().backward()
    assert not meter._rows


def noise_scale(noise: str, max_atomic: int | None) -> tuple[float, bool]:
    """Return the noise scale that one replica measures at a standstill, and whether by difference."""
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 1))
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    model[1].requires_grad_(requires_grad=True)  # so that the whole gradient is that of the norm
    x = torch.randn(640, 6)
    data = TensorDataset(x, x @ torch.linspace(0.2, 1.0, 6))
    run = ct.init()
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0), noise=noise)
    loader = run.loader(data, batch_size=32, max_atomic=max_atomic, shuffle=True)
    for _ in run.epochs(20):
        for a, b in loader:
            optimizer.zero_grad()
            (model(a)[:, 0] - b).square().mean().backward()
            optimizer.step()
    stats = run.grad_stats
    assert stats is not None
    differenced = run._session.data.noise.differenced
    run.close()
    return stats.noise_scale(32), differenced


def test_a_run_measures_what_single_examples_would() -> None:
    one_by_one, _ = noise_scale("gradients", 1)
    assert noise_scale("norm-layers", 8)[0] == pytest.approx(one_by_one, rel=1e-4)
    in_one_pass, differenced = noise_scale("norm-layers", None)
    assert in_one_pass == pytest.approx(one_by_one, rel=0.25)  # it measures more steps
    assert not differenced


def test_a_model_without_such_layers_is_refused() -> None:
    run = ct.init()
    model = nn.Linear(2, 1)
    with pytest.raises(InputError, match="LayerNorm, RMSNorm or GroupNorm"):
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), noise="norm-layers")
    with pytest.raises(InputError, match="gradients or norm-layers"):
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), noise="layers")
    run.close()
