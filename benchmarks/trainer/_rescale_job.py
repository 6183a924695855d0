"""The training script of benchmarks/trainer/rescale.py: 25 M parameters; each replica
logs the end of each step.

`python _rescale_job.py LOG plain` is plain DDP that starts from nothing (no checkpoint:
to its advantage); `python _rescale_job.py LOG coadapt` is the same under coadapt.train.
Last comes the device: cpu, cuda.
"""

import dataclasses
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

# 25.0 M parameters
WIDTH = 2236
NUM_LAYERS = 5
BATCH_SIZE = 12
NUM_SAMPLES = 12_000
NUM_EPOCHS = 10_000  # until it is ended


def parts(
    device: torch.device,
) -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return (
        model,
        optimizer,
        TensorDataset(torch.randn(NUM_SAMPLES, 1).expand(-1, WIDTH)),
    )


def done(device: torch.device) -> None:
    """Wait until the GPU has done the step that is logged next."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Log:
    """One JSON line per step and replica."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  # for the life of the process

    def step(self, world: int, rank: int, step: int, pause: object = None) -> None:
        row = {
            "at": time.time(),
            "world": world,
            "rank": rank,
            "step": step,
            "pid": os.getpid(),
            "pause": pause,
        }
        self._file.write(json.dumps(row) + "\n")


def device_of(name: str) -> torch.device:
    """Return this replica's own GPU, or one that it shares where there are too few;
    else the CPU.
    """
    if name == "cpu":
        return torch.device("cpu")
    return torch.device(
        "cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    )


def train_plain(log: Log, device: torch.device) -> None:
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model, optimizer, data = parts(device)
    model = DistributedDataParallel(model)
    size = BATCH_SIZE // dist.get_world_size()
    for step in range(NUM_EPOCHS * NUM_SAMPLES):
        x = data[step * size % (NUM_SAMPLES - size) :][0][:size]
        optimizer.zero_grad()
        model(x.to(device)).square().mean().backward()
        optimizer.step()
        done(device)
        log.step(dist.get_world_size(), dist.get_rank(), step)


def train_elastic(log: Log, device: torch.device) -> None:
    import coadapt.train as ct

    run = ct.init(checkpoint_every_s=1e9, device=str(device))
    model, optimizer, data = parts(device)
    model, optimizer = run.prepare(model, optimizer)
    loader = run.loader(data, batch_size=BATCH_SIZE)
    for _ in run.epochs(NUM_EPOCHS):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x.to(device)).square().mean().backward()
            optimizer.step()
            done(device)
            pause = run.last_pause
            log.step(
                run.num_replicas,
                run.rank,
                run.progress.step,
                None if pause is None else dataclasses.asdict(pause),
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    train = {"plain": train_plain, "coadapt": train_elastic}[sys.argv[2]]
    train(Log(sys.argv[1]), device_of(sys.argv[3]))
