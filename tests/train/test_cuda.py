"""On a GPU: the same run as on the CPU, timed by events. Skipped where there is none."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.run import Run

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def train(device: str, max_atomic: int | None) -> tuple[Run, list[Tensor]]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 4, dtype=torch.float64), torch.randn(256, 1, dtype=torch.float64))
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    run = ct.init(device=device)
    elastic, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = run.loader(data, batch_size=32, max_atomic=max_atomic, shuffle=True)
    for _ in run.epochs(12):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(elastic(x.to(run.device)), y.to(run.device)).backward()
            optimizer.step()
    return run, [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("max_atomic", [None, 10])
def test_a_gpu_trains_as_a_cpu_does(max_atomic: int | None) -> None:
    gpu, on_gpu = train("", max_atomic)
    cpu, on_cpu = train("cpu", max_atomic)
    assert gpu.device == torch.device("cuda:0")
    for one, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    stats, wanted = gpu.grad_stats, cpu.grad_stats
    assert stats is not None
    assert wanted is not None
    assert stats.noise_scale(32) == pytest.approx(wanted.noise_scale(32), rel=1e-3)
    assert (
        gpu._session.profiles.builder("cuda").rows.keys() == cpu._session.profiles.builder("cpu").rows.keys()
    )


def test_trials_find_what_fits_into_a_gpu() -> None:
    """A sample needs 1 MiB, and torch may have 256."""
    torch.cuda.empty_cache()
    in_all = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(256 * 2**20 / in_all)
    try:
        run = ct.init()
        model = nn.Linear(8, 1)
        elastic, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))

        def trial(num_samples: int) -> None:
            held = torch.empty(num_samples * 2**20, dtype=torch.uint8, device=run.device)
            elastic(torch.ones(num_samples, 8, device=run.device)).sum().backward()
            optimizer.step()
            del held

        found = run.find_max_atomic(trial, largest=4096)
        assert 100 <= found <= 256
        trial(found)
        with pytest.raises(torch.OutOfMemoryError):
            trial(2 * found)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
