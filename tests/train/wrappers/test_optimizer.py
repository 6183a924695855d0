"""The optimiser in the user's hands: a step with a closure is a step like any other."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import GradStats

pytestmark = pytest.mark.train


class Opaque:
    """An output in which nobody finds tensors, so no hook tells when its backward is
    over.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Opaque:
        return Opaque(x * self.weight)


def trained(*, with_closure: bool) -> tuple[float, GradStats | None]:
    """Return the weight after two steps of 6 samples, and what was measured of the
    gradients' noise.
    """
    run = ct.init()
    net = Net()
    model, optimizer = run.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.5), scaling="none"
    )
    data = TensorDataset(torch.arange(12, dtype=torch.float32))
    loader = run.loader(data, batch_size=6)
    for _ in run.epochs(1):
        for (x,) in loader:  # type: ignore[misc]  # one tensor

            def closure(x: Tensor = x) -> float:
                optimizer.zero_grad()
                loss = model(x).value.mean()
                loss.backward()
                return float(loss.detach())

            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
    return net.weight.item(), run.grad_stats


def test_a_step_with_a_closure_does_what_a_step_does() -> None:
    weight, stats = trained(with_closure=True)
    # Means of 0..5 and of 6..11.
    assert weight == pytest.approx(1.0 - 0.5 * (2.5 + 8.5))
    assert stats is not None
    assert (weight, stats) == trained(with_closure=False)
