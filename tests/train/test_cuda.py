"""On a GPU: the same run as on the CPU, timed by events, also with others. Skipped
where there is none.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.run import Run
from tests.train.replicas import ON_ONE_GPU
from tests.train.rescale.test_elastic import assert_same_run, live
from tests.train.schedules import few_and_many
from tests.train.toy import Toy

pytestmark = [
    pytest.mark.train,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def train(device: str, max_atomic: int | None) -> tuple[Run, list[Tensor]]:
    torch.manual_seed(0)
    data = TensorDataset(
        torch.randn(256, 4, dtype=torch.float64),
        torch.randn(256, 1, dtype=torch.float64),
    )
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    run = ct.init(device=device)
    elastic, optimizer = run.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    loader = run.loader(data, batch_size=32, max_atomic=max_atomic, shuffle=True)
    for _ in run.epochs(12):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(
                elastic(x.to(run.device)), y.to(run.device)
            ).backward()
            optimizer.step()
    return run, [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("max_atomic", [None, 10])
def test_a_gpu_trains_as_a_cpu_does(max_atomic: int | None) -> None:
    gpu, on_gpu = train("", max_atomic)
    cpu, on_cpu = train("cpu", max_atomic)
    assert gpu.device == torch.device("cuda:0")
    for one, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    stats = gpu.grad_stats
    wanted = cpu.grad_stats
    assert stats is not None
    assert wanted is not None
    assert stats.noise_scale(32) == pytest.approx(wanted.noise_scale(32), rel=1e-3)
    assert (
        gpu._session.profiles.of("cuda").means.keys()
        == cpu._session.profiles.of("cpu").means.keys()
    )


def test_trials_find_what_fits_into_a_gpu() -> None:
    """A sample needs 1 MiB, and torch may have 256."""
    torch.cuda.empty_cache()
    in_all = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(256 * 2**20 / in_all)
    try:
        run = ct.init()
        model = nn.Linear(8, 1)
        elastic, optimizer = run.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=0.01)
        )

        def trial(num_samples: int) -> None:
            held = torch.empty(
                num_samples * 2**20, dtype=torch.uint8, device=run.device
            )
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


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_replicas_that_change_in_place_over_nccl_are_the_undisturbed_run(
    tmp_path: Path, strategy: str
) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=25,
        pace_s=0.03,
        strategy=strategy,
        double=True,
        device="cuda:0",
    )
    few_and_many(toy, **ON_ONE_GPU)


@pytest.mark.processes
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_replicas_on_gpus_go_on_from_their_checkpoints(
    tmp_path: Path, strategy: str
) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=4,
        strategy=strategy,
        optimizer="adamw",
        double=True,
        device="cuda:0",
    )
    live(toy, (2, 3), (1, 7), (3, None), envs=ON_ONE_GPU)
    assert_same_run(toy)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_and_a_compiled_model(dtype: torch.dtype) -> None:
    """Scaled losses, autocast and torch.compile as in any script; it learns what there
    is to learn.
    """
    torch.manual_seed(0)
    x = torch.randn(1024, 16)
    data = TensorDataset(x, x @ torch.randn(16, 1))
    run = ct.init()
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    elastic, optimizer = run.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    compiled = torch.compile(elastic)
    scaler = run.prepare_scaler(
        torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    )
    loader = run.loader(
        data, batch_size=64, shuffle=True, pin_memory=True, num_workers=2
    )
    losses = []
    for _ in run.epochs(10):
        for features, target in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                output = compiled(features.to(run.device, non_blocking=True))
            loss = nn.functional.mse_loss(
                output.float(), target.to(run.device, non_blocking=True)
            )
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
    assert losses[-1] < 0.05 * losses[0]
    assert run.grad_stats is not None
    assert run.grad_stats.noise_scale(64) > 0.0
