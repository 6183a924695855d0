"""How long training takes to a validation accuracy: batch size chosen by `adaptive`,
against every fixed one.

`python -m benchmarks.trainer.adaptive`: the image example (examples/train/classify.py)
on two replicas, CPU and gloo, several seeds. Fixed batches run with the example's
learning rate and with one scaled in proportion to the batch; the best of all is picked
afterwards, which nobody can do beforehand. Arms take turns within a seed. Time is that
of training, without validation. Results go to benchmarks/results/adaptive.json.
"""

import argparse
import importlib.util
import json
import math
import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from benchmarks.stored import store_results
from benchmarks.trainer._replicas import on_two_replicas

RESULTS = Path(__file__).parents[1] / "results" / "adaptive.json"
EXAMPLE = Path(__file__).parents[2] / "examples" / "train" / "classify.py"
INITIAL = 32
LARGEST = 256
RATE = 0.02
MOMENTUM = 0.9
NUM_SAMPLES = 4000
MAX_EPOCHS = 30


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to choose the batch; max_batch: up to where `adaptive` may go, None for a
    fixed batch.
    """

    name: str
    batch: int
    rate: float
    max_batch: int | None = None


def arms() -> list[Arm]:
    found = [Arm(name="adaptive", batch=INITIAL, rate=RATE, max_batch=LARGEST)]
    batch = INITIAL
    while batch <= LARGEST:
        found.append(Arm(name=f"fixed {batch}", batch=batch, rate=RATE))
        if batch > INITIAL:
            found.append(
                Arm(
                    name=f"fixed {batch}, rate scaled",
                    batch=batch,
                    rate=RATE * batch / INITIAL,
                )
            )
        batch *= 2
    return found


def train(arm: Arm, seed: int, target: float, example: ModuleType) -> dict[str, float]:
    """Return seconds and epochs to the target (infinite if it is not met), and the
    batch in the end.
    """
    torch.manual_seed(seed)
    contract = "fixed" if arm.max_batch is None else "adaptive"
    run = ct.init(contract=contract, seed=seed, report_every_s=1.0)
    model = example.make_model()
    model, optimizer = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=arm.rate, momentum=MOMENTUM)
    )
    training = example.draw(NUM_SAMPLES, seed)
    assert isinstance(training, TensorDataset)
    loader = run.loader(
        training, batch_size=arm.batch, max_batch_size=arm.max_batch, shuffle=True
    )
    pictures, labels = example.draw(example.NUM_VALIDATION, 100 + seed).tensors
    spent_s = 0.0
    for epoch in run.epochs(MAX_EPOCHS):
        began = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        spent_s += time.perf_counter() - began
        if example.accuracy(model, pictures, labels) >= target:
            return {"seconds": spent_s, "epochs": epoch + 1, "batch": run.batch.total}
    return {"seconds": math.inf, "epochs": MAX_EPOCHS, "batch": run.batch.total}


def run_arms(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Be one of two replicas in all arms of all seeds."""
    spec = importlib.util.spec_from_file_location("classify", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    train(arms()[1], 0, 0.0, example)  # whatever is loaded or compiled at first
    found: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms()}
    for seed in range(options.seeds):
        for arm in arms():
            found[arm.name].append(train(arm, seed, options.target, example))
            if torch.distributed.get_rank() == 0:
                print(f"seed {seed} {arm.name}: {found[arm.name][-1]}", flush=True)
    return found


def _finite(seconds: float) -> float | None:
    """Return what JSON can hold: None for never."""
    return round(seconds, 2) if math.isfinite(seconds) else None


def main(argv: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--target", type=float, default=0.95, help="validation accuracy"
    )
    parser.add_argument(
        "--no-store", action="store_true", help="leave benchmarks/results as it is"
    )
    options = parser.parse_args(argv)
    found = on_two_replicas(run_arms, options)
    medians = {
        name: statistics.median(each["seconds"] for each in rows)
        for name, rows in found.items()
    }
    fixed = {name: value for name, value in medians.items() if name != "adaptive"}
    best = min(fixed, key=fixed.__getitem__)
    result = {
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        ),
        "torch": torch.__version__,
        "target_accuracy": options.target,
        "arms": {
            name: {
                "median_s": _finite(medians[name]),
                "seconds": [_finite(each["seconds"]) for each in rows],
                "epochs": [each["epochs"] for each in rows],
                "last_batch": [each["batch"] for each in rows],
            }
            for name, rows in found.items()
        },
        "best_fixed": best,
        "adaptive_over_best_fixed": round(medians["adaptive"] / fixed[best], 3),
        "adaptive_over_initial_batch": round(
            medians["adaptive"] / fixed[f"fixed {INITIAL}"], 3
        ),
    }
    if not options.no_store:
        store_results(RESULTS, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
