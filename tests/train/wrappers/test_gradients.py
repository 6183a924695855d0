"""The gradient of a step, in one process: passes add up to the whole batch, whatever
the loop does.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from tests.train.noise.quadratic import cloud, noise_scale, true_noise_scale

pytestmark = pytest.mark.train

NUM_SAMPLES = 90
BATCH = 40


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_SAMPLES, 4, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    max_atomic: int | None,
    clip: float | None = None,
    reduction: str = "mean",
    zero: str = "before",
) -> list[Tensor]:
    """Train two epochs through coadapt; return the parameters."""
    run = ct.init()
    model, optimizer = make()
    model, optimizer = run.prepare(model, optimizer, reduction=reduction)
    loader = run.loader(TensorDataset(*data()), batch_size=BATCH, max_atomic=max_atomic)
    bodies = 0
    for _ in run.epochs(2):
        for x, y in loader:
            bodies += 1
            if zero == "before":
                optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y, reduction=reduction)
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if zero == "after":
                model.zero_grad(set_to_none=False)
    run.close()
    largest = max_atomic or BATCH
    assert bodies == 2 * sum(-(-size // largest) for size in (40, 40, 10))
    return [parameter.detach() for parameter in model.parameters()]


def plain(clip: float | None = None, reduction: str = "mean") -> list[Tensor]:
    x, y = data()
    model, optimizer = make()
    for _ in range(2):
        for start in range(0, NUM_SAMPLES, BATCH):
            optimizer.zero_grad()
            part = slice(start, start + BATCH)
            nn.functional.mse_loss(
                model(x[part]), y[part], reduction=reduction
            ).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def assert_equal(got: list[Tensor], wanted: list[Tensor], rtol: float = 1e-12) -> None:
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)


def test_alone_and_whole_it_is_bit_for_bit_the_plain_loop() -> None:
    assert_equal(train(None), plain(), rtol=0.0)


@pytest.mark.parametrize("zero", ["before", "after"])
@pytest.mark.parametrize("max_atomic", [20, 7])
def test_accumulated_passes_are_the_whole_batch(max_atomic: int, zero: str) -> None:
    assert_equal(train(max_atomic, zero=zero), plain())


def test_clipping_sees_the_gradient_of_the_whole_batch() -> None:
    assert_equal(train(7, clip=0.2), plain(clip=0.2))


def test_summed_losses_are_summed_over_the_whole_batch() -> None:
    assert_equal(train(7, clip=0.5, reduction="sum"), plain(clip=0.5, reduction="sum"))


def test_several_outputs_and_nested_ones_are_one_backward() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make()[0]

        def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
            y = self.inner(x)
            return {"outputs": [y, 2.0 * y]}

    def steps(max_atomic: int | None) -> list[Tensor]:
        run = ct.init()
        two = Two()
        model, optimizer = run.prepare(two, torch.optim.SGD(two.parameters(), lr=0.1))
        loader = run.loader(
            TensorDataset(*data()), batch_size=BATCH, max_atomic=max_atomic
        )
        for _ in run.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                first, second = model(x)["outputs"]
                (
                    nn.functional.mse_loss(first, y) + nn.functional.mse_loss(second, y)
                ).backward()
                optimizer.step()
        return [parameter.detach() for parameter in two.parameters()]

    assert_equal(steps(11), steps(None))


def test_a_parameter_without_gradient_in_the_last_pass_keeps_its_share() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(1, dtype=torch.float64))
            self.b = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.a + (x * self.b if x[0, 0] == 0 else 0.0)

    run = ct.init()
    gated = Gated()
    model, optimizer = run.prepare(gated, torch.optim.SGD(gated.parameters(), lr=1.0))
    x = torch.arange(4, dtype=torch.float64).reshape(4, 1)
    loader = run.loader(TensorDataset(x), batch_size=4, max_atomic=2)
    for _ in run.epochs(1):
        for (part,) in loader:
            optimizer.zero_grad()
            model(part).mean().backward()
            optimizer.step()
    assert gated.a.item() == pytest.approx(1.0 - 1.5)
    assert gated.b.item() == pytest.approx(1.0 - 0.25)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("max_atomic", [None, 20, 7])
def test_two_backwards_of_a_pass_add_up(max_atomic: int | None, reduction: str) -> None:
    run = ct.init()
    model, optimizer = run.prepare(*make(), reduction=reduction)
    loader = run.loader(TensorDataset(*data()), batch_size=BATCH, max_atomic=max_atomic)
    for _ in run.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            (0.25 * nn.functional.mse_loss(model(x), y, reduction=reduction)).backward()
            (0.75 * nn.functional.mse_loss(model(x), y, reduction=reduction)).backward()
            optimizer.step()
    assert run.grad_stats is None  # half a gradient says nothing
    wanted = plain(reduction=reduction)
    assert_equal(
        [parameter.detach() for parameter in model.parameters()], wanted, rtol=1e-10
    )


@pytest.mark.parametrize("max_atomic", [None, 16, 9])
def test_noise_scale_of_a_known_covariance(max_atomic: int | None) -> None:
    """Differenced on one replica without accumulation; else from the passes, even (16)
    and uneven (9).
    """
    assert noise_scale(max_atomic) == pytest.approx(true_noise_scale(), rel=0.1)


def test_noise_scale_of_adam_is_in_its_metric() -> None:
    """Adam divides each coordinate by the root of its second moment, here mean^2 +
    variance / batch.
    """
    found = noise_scale(16, lambda model: torch.optim.Adam(model.parameters(), lr=0.0))
    mean = cloud().mean(0)
    var = cloud().var(0)
    second = mean.square() + var / 32
    assert found == pytest.approx(
        float((var / second).sum() / (mean.square() / second).sum()), rel=0.15
    )
    assert abs(found / true_noise_scale() - 1.0) > 0.15


def test_alone_a_step_of_one_pass_that_is_not_measured_is_left_to_autograd() -> None:
    run = ct.init()
    model, optimizer = run.prepare(*make())
    x = torch.randn(720, 4, dtype=torch.float64)
    y = torch.randn(720, 1, dtype=torch.float64)
    loader = run.loader(TensorDataset(x, y), batch_size=2)
    watched = []
    for _ in run.epochs(1):
        for inputs, wanted in loader:  # type: ignore[misc]  # two tensors
            output = model(inputs)
            if output._backward_hooks:
                watched.append(run.progress.step)
            optimizer.zero_grad()
            nn.functional.mse_loss(output, wanted).backward()
            optimizer.step()
    run.close()
    assert watched[:50] == list(
        range(50)
    )  # all are measured, and the script is checked
    assert watched[50:]
    assert all(step % 8 in (0, 1) for step in watched[50:])
