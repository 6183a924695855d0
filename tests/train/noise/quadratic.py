"""A quadratic loss whose noise scale is known, measured by a run whose parameters stay
where they are.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

DIM = 10
BATCH = 32


class Centre(nn.Module):
    """Loss |w - x|^2 / 2 per sample: its gradient is w - x, so its covariance is that
    of the data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.w - x).square().sum(1)


def cloud() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    spread = torch.linspace(1.5, 0.3, DIM)
    return torch.linspace(0.05, 0.8, DIM) + spread * torch.randn(
        1280, DIM, generator=generator
    )


def true_noise_scale() -> float:
    x = cloud()
    return float(x.var(0).sum() / x.mean(0).square().sum())


def still(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def noise_scale(
    max_atomic: int | None,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = still,
    num_epochs: int = 40,
) -> float:
    """Return the noise scale in samples, as measured on the replicas that the
    environment names.
    """
    run = ct.init()
    centre = Centre()
    model, optimizer = run.prepare(centre, make_optimizer(centre), noise="gradients")
    loader = run.loader(
        TensorDataset(cloud()), batch_size=BATCH, max_atomic=max_atomic, shuffle=True
    )
    for _ in run.epochs(num_epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    stats = run.grad_stats
    assert stats is not None
    run.close()
    return stats.noise_scale(BATCH)


def measure_noise(folder: str) -> None:
    """Leave what each replica measured in `noise-<rank>`."""
    from coadapt.train.env import read_config

    torch.set_num_threads(1)
    Path(folder, f"noise-{read_config().place.rank}").write_text(
        repr(noise_scale(None, num_epochs=25))
    )
