"""The metric of Adam: each gradient over the root of its bias-corrected second moment,
plus epsilon.
"""

import pytest
import torch
from torch import nn

from coadapt.train.noise.preconditioner import (
    READY_STEPS,
    AdamPreconditioner,
    preconditioner_for,
)

pytestmark = pytest.mark.train


def stepped(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, num_steps: int
) -> None:
    for step in range(num_steps):
        parameter.grad = torch.tensor([1.0, 2.0 + step])
        optimizer.step()


def test_gradients_are_divided_as_adam_divides_them() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    other = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW(
        [parameter, other], lr=0.0, betas=(0.9, 0.99), eps=1e-3
    )
    metric = AdamPreconditioner(optimizer)
    stepped(optimizer, parameter, READY_STEPS - 1)
    assert not metric.refresh()
    stepped(optimizer, parameter, READY_STEPS - 1)
    assert metric.refresh()
    corrected = optimizer.state[parameter]["exp_avg_sq"] / (
        1 - 0.99 ** (2 * READY_STEPS - 2)
    )
    grad = torch.tensor([3.0, 4.0])
    (found,) = metric.apply([parameter], [grad])
    torch.testing.assert_close(found, grad / (corrected.sqrt() + 1e-3))
    assert grad.tolist() == [3.0, 4.0]
    assert metric.apply([other], [grad]) == []


def test_only_optimisers_with_such_a_metric_have_one() -> None:
    parameters = [nn.Parameter(torch.zeros(2))]
    assert preconditioner_for(torch.optim.SGD(parameters)) is None
    assert preconditioner_for(torch.optim.RMSprop(parameters)) is None
    assert preconditioner_for(torch.optim.AdamW(parameters)) is not None
