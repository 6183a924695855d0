"""Dropout, augmentation and diffusion noise over random schedules of changes, in place
and by restarts.

`python -m tests.train.draws.random_schedules --schedules 20 --out FILE` measures how
far parameters end from those of one replica alone with `random="per-sample"`, and looks
for streams that are repeated without it.
"""

import argparse
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import coadapt.train as ct
from tests.train.replicas import Elastic, run_replicas

REPLICAS_MAX = 4
NUM_SAMPLES = 180
BATCH = 24
WIDTH = 6


@dataclass(frozen=True, kw_only=True)
class Task:
    """What each replica trains. mode: as of `init(random=...)`. stops: steps after
    which it stops.
    """

    folder: str
    mode: str
    num_epochs: int = 24
    max_atomic: int | None = None
    fetchers: int = 0
    pace_s: float = 0.0
    stops: list[int] = field(default_factory=list)


class Augmented(Dataset[tuple[Tensor, int]]):
    """Points that are moved at random each time, by all three libraries."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(1)
        self.points = torch.randn(
            NUM_SAMPLES, WIDTH, generator=draws, dtype=torch.float64
        )

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        moved = 0.1 * torch.randn(WIDTH, dtype=torch.float64)
        legacy = np.random.rand()  # noqa: NPY002  # as augmentations do
        return self.points[index] * (
            1.0 + random.gauss(0.0, 0.1)
        ) + moved + legacy, index


def train(task: Task) -> None:
    """Train a denoiser with dropout; leave what was drawn, by step and rank, and the
    end in the folder.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = Path(task.folder)
    run = ct.init(
        random=task.mode,
        device="cpu",
        checkpoint_dir=folder / "checkpoints",
        checkpoint_every_s=1000.0,
    )
    model = nn.Sequential(
        nn.Linear(WIDTH + 1, 32), nn.Dropout(0.3), nn.Tanh(), nn.Linear(32, WIDTH)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)
    loader = run.loader(
        Augmented(),
        batch_size=BATCH,
        shuffle=True,
        max_atomic=task.max_atomic,
        num_workers=task.fetchers,
        multiprocessing_context="fork" if task.fetchers else None,
    )
    with open(folder / f"drawn-{os.getpid()}.jsonl", "a") as log:
        for _ in run.epochs(task.num_epochs):
            for x, _ids in loader:
                times = torch.randint(0, 1000, (len(x), 1)) / 1000.0
                noise = torch.randn_like(x)
                noisy = x * (1.0 - times) + noise * times
                loss = (model(torch.cat([noisy, times], 1)) - noise).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                row = [run.progress.step, run.rank, noise.flatten()[:2].tolist()]
                print(json.dumps(row), file=log, flush=True)
                time.sleep(0.0 if (folder / "fast").exists() else task.pace_s)
    if run.is_first:
        torch.save(model.state_dict(), folder / "final.pt")
    run.close()


def run_schedule(task: Task, seed: int) -> list[str]:
    """Train under random changes in place and restarts; return them."""
    draw = random.Random(seed)
    folder = Path(task.folder)
    run = Elastic(train, task, folder)
    done = []
    try:
        run.start(draw.randint(1, REPLICAS_MAX))
        done.append(f"{len(run.members)}")
        for _ in range(3):
            time.sleep(draw.uniform(0.05, 0.3))
            num_replicas = draw.randint(1, REPLICAS_MAX)
            if draw.random() < 0.3:
                while not (run.control_dir / "capable").exists():
                    time.sleep(0.01)
                run.end(60.0)
                (run.control_dir / "capable").unlink()
                run.start(num_replicas)
                done.append(f"restart {num_replicas}")
                continue
            present = len(run.members)
            kept = draw.sample(
                range(present), draw.randint(0, min(num_replicas, present))
            )
            leaving = run.order(num_replicas, keep=kept)
            run.await_done()
            assert run.done(), run.outputs()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
            done.append(f"in place {num_replicas} keeping {kept}")
        (folder / "fast").touch()
        assert run.join(run.members) == [0] * len(run.members), run.outputs()
    finally:
        run.kill()
    return done


def alone(task: Task) -> dict[str, Tensor]:
    """Return the parameters that one replica comes to."""
    folder = Path(task.folder)
    assert run_replicas(train, [task], folder) == [0], (
        folder / "output-0.txt"
    ).read_text()
    return final(task)


def final(task: Task) -> dict[str, Tensor]:
    found: dict[str, Tensor] = torch.load(Path(task.folder) / "final.pt")
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the norm of the difference over the norm."""
    moved = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return float(
        (moved / sum(float(item.square().sum()) for item in one.values())) ** 0.5
    )


def repeated_draws(folder: Path) -> int:
    """Return how many passes drew what another pass of the run had drawn."""
    rows: list[Any] = [
        json.loads(line)
        for path in folder.glob("drawn-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return len(rows) - len({tuple(drawn) for _, _, drawn in rows})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reference = alone(Task(folder=folder, mode="per-sample"))
    results = []
    for seed in range(options.schedules):
        draw = random.Random(1000 + seed)
        # As of one replica alone, a schedule of its own stream has another size: no
        # reference for it.
        mode = "per-sample" if seed % 4 else "per-replica"
        with tempfile.TemporaryDirectory() as folder:
            task = Task(
                folder=folder,
                mode=mode,
                max_atomic=draw.choice([None, 5, 8]),
                fetchers=draw.choice([0, 0, 2]),
                pace_s=0.01,
            )
            changes = run_schedule(task, seed)
            row = {
                "seed": seed,
                "mode": mode,
                "max_atomic": task.max_atomic,
                "fetchers": task.fetchers,
                "changes": changes,
                "distance": distance(reference, final(task)),
                "repeated": repeated_draws(Path(folder)),
            }
        results.append(row)
        print(json.dumps(row), flush=True)
    result = {
        "schedules": results,
        "worst_per_sample": max(
            row["distance"] for row in results if row["mode"] == "per-sample"
        ),
        "repeated_per_replica": sum(
            row["repeated"] for row in results if row["mode"] == "per-replica"
        ),
    }
    print(json.dumps({key: result[key] for key in list(result)[1:]}))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
