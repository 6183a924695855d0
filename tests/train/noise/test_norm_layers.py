"""Normalisation layers: the gradients of each example against those by itself, and what
runs make of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.train.noise.noise_scale import GradNorms
from coadapt.train.noise.norm_layers import LAYERS, LayerRows
from coadapt.train.noise.norms import NormMeter
from coadapt.train.noise.preconditioner import AdamPreconditioner, Preconditioner
from tests.train.replicas import run_replicas

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
    "image": lambda: nn.Sequential(
        nn.Conv2d(5, 6, 1), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten()
    ),
}


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (
        model(x)
        .square()
        .sum(dim=tuple(range(1, model(x).dim())))
        .mul(torch.arange(1.0, len(x) + 1))
    )


def meter_of(
    model: nn.Module, metric: Preconditioner | None = None, *, sums: bool = False
) -> NormMeter:
    return NormMeter(metric, sums=sums, layers=LayerRows(model, metric))


def measured(
    meter: NormMeter, model: nn.Module, x: Tensor, *, sums: bool
) -> GradNorms | None:
    """Return what one step on one replica gives of the layers."""
    meter.begin_step(measure=True)
    model.zero_grad()
    loss = loss_of(model, x)
    (loss.sum() if sums else loss.mean()).backward()
    return layers_of(meter, model, len(x))


def layers_of(meter: NormMeter, model: nn.Module, num_samples: int) -> GradNorms | None:
    parameters = [
        parameter for parameter in model.parameters() if parameter.grad is not None
    ]
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    meter.add_alone(parameters, grads, num_samples)
    norms = meter.take(1, num_samples)
    return None if norms is None else norms.layers


def by_hand(
    model: nn.Module, x: Tensor, divisors: dict[Tensor, Tensor]
) -> tuple[float, float]:
    """Return the sum of the examples' squared norms, and that of the mean's, one
    backward per example.
    """
    names = [
        p
        for layer in model.modules()
        if isinstance(layer, LAYERS)
        for p in layer.parameters()
    ]
    names = [p for p in names if p.requires_grad]
    rows = []
    for index in range(len(x)):
        grads = torch.autograd.grad(loss_of(model, x)[index], names)
        rows.append(
            torch.cat(
                [
                    g / divisors.get(p, torch.ones(()))
                    for p, g in zip(names, grads, strict=True)
                ]
            )
        )
    each = torch.stack(rows)
    return float(each.square().sum()), float(each.mean(0).square().sum())


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_norms_are_those_of_each_example_alone(name: str, *, sums: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    x = torch.randn(4, 5, 6)[..., None] if name == "image" else torch.randn(4, 5, 6)
    found = measured(meter_of(model, sums=sums), model, x, sums=sums)
    small, big = by_hand(model, x, {})
    assert found is not None
    assert (found.small_sqr, found.big_sqr) == pytest.approx((small, big), rel=1e-4)
    assert (found.count, found.inverse, found.samples, found.differenced) == (
        4.0,
        4.0,
        4.0,
        False,
    )


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
    found = measured(meter_of(model, metric), model, x, sums=False)
    small, big = by_hand(model, x, metric._divisors)
    assert found is not None
    assert (found.small_sqr, found.big_sqr) == pytest.approx((small, big), rel=1e-4)


def test_examples_that_cannot_be_told_apart_measure_nothing() -> None:
    model = Shared()
    meter = meter_of(model)
    meter.begin_step(measure=True)
    model(
        torch.randn(8, 6)
    ).square().mean().backward()  # two positions each of four examples, folded
    assert layers_of(meter, model, 4) is None


def test_a_step_that_is_not_measured_watches_nothing() -> None:
    model = Shared()
    rows = LayerRows(model, None)
    rows.begin_step(active=False)
    model(torch.randn(4, 6)).square().mean().backward()
    assert not rows._rows


# -- a run
# --------------------------------------------------------------------------------------

BATCH = 32
NUM_SAMPLES = 640


def regression() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1))
    x = torch.randn(NUM_SAMPLES, 5)
    return model, TensorDataset(
        x, x @ torch.linspace(0.2, 1.0, 5) + 0.5 * torch.randn(NUM_SAMPLES)
    )


def truth() -> tuple[float, float]:
    """Return the noise scale by brute force, one backward per sample; and that over the
    layers' own.
    """
    model, data = regression()
    rows = []
    for a, b in zip(*data.tensors, strict=True):
        grads = torch.autograd.grad(
            (model(a[None])[0, 0] - b).square(), list(model.parameters())
        )
        rows.append([grad.flatten() for grad in grads])
    scales = []
    for which in (slice(0, 6), slice(2, 4)):
        each = torch.stack([torch.cat(row[which]) for row in rows]).double()
        scales.append(
            float(each.var(0, correction=0).sum() / each.mean(0).square().sum())
        )
    return scales[0], scales[0] / scales[1]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A run that learns nothing, so that the truth stays where it is; leaves what it
    measured in `folder`.
    """

    folder: str
    optimizer: str = "SGD"
    shard: bool = False
    max_atomic: int | None = None
    epochs: int = 100


def stand(how: Standing) -> None:
    torch.set_num_threads(1)
    run = ct.init(device="cpu")
    model, data = regression()
    plain = getattr(torch.optim, how.optimizer)(model.parameters(), lr=0.0)
    model, optimizer = run.prepare(model, plain, noise="norm-layers", shard=how.shard)
    loader = run.loader(data, batch_size=BATCH, max_atomic=how.max_atomic, shuffle=True)
    for _ in run.epochs(how.epochs):
        for a, b in loader:
            optimizer.zero_grad()
            (model(a)[:, 0] - b).square().mean().backward()
            optimizer.step()
    stats = run.grad_stats
    interval = run.noise_scale_interval
    assert stats is not None
    assert interval is not None
    found = [stats.noise_scale(BATCH), *interval, run.noise_calibration]
    if run.is_first:
        torch.save(found, Path(how.folder) / "found.pt")
    run.close()


def found_by(how: Standing, num_replicas: int = 1) -> tuple[float, float, float, float]:
    """Return the noise scale, its interval, and the calibration."""
    folder = Path(how.folder)
    if num_replicas == 1:
        stand(how)
    else:
        codes = run_replicas(stand, [how] * num_replicas, folder)
        assert codes == [0] * num_replicas, (folder / "output-0.txt").read_text()
    scale, low, high, calibration = torch.load(folder / "found.pt")
    return scale, low, high, calibration


@pytest.mark.parametrize("max_atomic", [None, 16])
def test_the_whole_is_estimated_from_the_layers(
    tmp_path: Path, max_atomic: int | None
) -> None:
    """By comparison with successive steps, or with accumulated passes."""
    wanted, ratio = truth()
    scale, low, high, calibration = found_by(
        Standing(folder=str(tmp_path), max_atomic=max_atomic)
    )
    assert ratio < 0.6  # the layers alone would promise too much
    assert calibration == pytest.approx(ratio, rel=0.25)
    assert scale == pytest.approx(wanted, rel=0.25)
    assert 0.5 * wanted < low < scale < high < 2.0 * wanted


@pytest.mark.processes
@pytest.mark.parametrize(("optimizer", "max_atomic"), [("SGD", None), ("AdamW", 8)])
def test_cut_over_replicas_they_are_what_they_are_whole(
    tmp_path: Path, optimizer: str, max_atomic: int | None
) -> None:
    """Scales of five numbers are not cut evenly over two replicas; AdamW's norms are in
    its own metric.
    """
    how = Standing(
        folder=str(tmp_path), optimizer=optimizer, max_atomic=max_atomic, epochs=15
    )
    whole = found_by(how, 2)
    assert whole[3] is not None
    assert found_by(replace(how, shard=True), 2) == pytest.approx(whole, rel=1e-3)
    if optimizer == "SGD":
        assert found_by(replace(how, max_atomic=16)) == pytest.approx(whole, rel=1e-3)


def test_a_model_without_such_layers_is_refused() -> None:
    run = ct.init()
    model = nn.Linear(2, 1)
    with pytest.raises(InputError, match="LayerNorm, RMSNorm or GroupNorm"):
        run.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), noise="norm-layers"
        )
    with pytest.raises(InputError, match="gradients or norm-layers"):
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), noise="layers")
    run.close()
