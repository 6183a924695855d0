"""CPU seconds of one replica to a validation loss: an adaptive batch against the batch
that it begins with.

`python -m benchmarks.trainer.growth`: an MLP 24-128-128-10 on 60,000 samples with 30 %
wrong labels, SGD with momentum, a cosine and a constant learning rate, three seeds,
five epochs. Validation does not count. The easy targets are those where a batch that
grows in leaps came later than a fixed one; they are met within a second, so both ways
take turns to the last of them, and medians over turns count. Results go to
benchmarks/results/growth.json.
"""

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import coadapt.train as ct
from benchmarks.stored import store_results

RESULTS = Path(__file__).parents[1] / "results" / "growth.json"
INITIAL = 32
LARGEST = 1024
RATE = 0.005
MOMENTUM = 0.9
NUM_SAMPLES = 60_000
NUM_VALIDATION = 5_000
NUM_EPOCHS = 5
WRONG_SHARE = 0.3
# Validation after so many samples.
EVERY = 5_000
EASY_TARGETS = (1.80, 1.72, 1.66)
TURNS = 5
# `adaptive` may come later than `fixed` at these by that much.
LATER_MAX = 1.05


@dataclass(frozen=True, kw_only=True)
class Point:
    """CPU seconds of training until then, and the validation loss there."""

    cpu_s: float
    samples: int
    loss: float
    batch: int


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Gives whole batches: a data set of rows would cost more than the model."""

    def __init__(self, num_samples: int, *, wrong: float, seed: int) -> None:
        teacher = torch.Generator().manual_seed(99)
        own = torch.Generator().manual_seed(seed)
        first = torch.randn(24, 64, generator=teacher)
        second = torch.randn(64, 10, generator=teacher)
        self.x = torch.randn(num_samples, 24, generator=own)
        right = (torch.tanh(self.x @ first / 24**0.5) @ second).argmax(1)
        drawn = torch.randint(0, 10, (num_samples,), generator=own)
        self.y = torch.where(
            torch.rand(num_samples, generator=own) < wrong, drawn, right
        )

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        return self.x[ids], self.y[ids]


def same(item: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return item


def train(
    contract: str, batch: int, rate: str, seed: int, *, until: float = 0.0
) -> list[Point]:
    """Return the points of one training run, which ends early once a loss of `until` is
    met.
    """
    torch.manual_seed(seed)
    run = ct.init(contract=contract, seed=seed, report_every_s=1.0)
    model: nn.Module = nn.Sequential(
        nn.Linear(24, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    scale = math.sqrt(batch / INITIAL)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=RATE * scale, momentum=MOMENTUM
    )
    model, optimizer = run.prepare(model, optimizer)
    data = Rows(NUM_SAMPLES, wrong=WRONG_SHARE, seed=seed)
    validation = Rows(NUM_VALIDATION, wrong=WRONG_SHARE, seed=seed + 1000)
    largest = LARGEST if contract == "adaptive" else None
    loader = run.loader(
        data, batch_size=batch, max_batch_size=largest, shuffle=True, collate_fn=same
    )
    points = []
    spent = 0.0
    due = EVERY
    began = time.process_time()
    for _ in run.epochs(NUM_EPOCHS):
        for x, y in loader:
            done = run.progress.samples / (NUM_SAMPLES * NUM_EPOCHS)
            share = 0.5 * (1.0 + math.cos(math.pi * done)) if rate == "cosine" else 1.0
            optimizer.param_groups[0]["lr"] = RATE * scale * share
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if run.progress.samples >= due:
                spent += time.process_time() - began
                with torch.no_grad():
                    loss = float(
                        nn.functional.cross_entropy(model(validation.x), validation.y)
                    )
                points.append(
                    Point(
                        cpu_s=spent,
                        samples=run.progress.samples,
                        loss=loss,
                        batch=run.batch.total,
                    )
                )
                due += EVERY
                if loss <= until:
                    run.close()
                    return points
                began = time.process_time()
    run.close()
    return points


def easy(rate: str, seed: int) -> dict[str, list[float | None]]:
    """Return the median CPU seconds to each easy target, with a fixed and with an
    adaptive batch.
    """
    found: dict[str, list[list[Point]]] = {"fixed": [], "adaptive": []}
    for turn in range(TURNS):
        for contract in sorted(found, reverse=bool(turn % 2)):
            found[contract].append(
                train(contract, INITIAL, rate, seed, until=min(EASY_TARGETS))
            )
    return {
        str(target): [
            finite(
                statistics.median(reached(points, target) for points in found[contract])
            )
            for contract in ("fixed", "adaptive")
        ]
        for target in EASY_TARGETS
    }


def reached(points: list[Point], target: float) -> float:
    """Return the CPU seconds to a loss, infinite if it was not met."""
    return next((point.cpu_s for point in points if point.loss <= target), math.inf)


def finite(seconds: float) -> float | None:
    """Return rounded seconds; None where the loss was not met."""
    return round(seconds, 3) if seconds < math.inf else None


def compare(rate: str, seed: int) -> dict[str, object]:
    """Return what came of the three ways to choose the batch, with equal rates and
    data.
    """
    arms = {
        "fixed": train("fixed", INITIAL, rate, seed),
        "adaptive": train("adaptive", INITIAL, rate, seed),
        "largest": train("fixed", LARGEST, rate, seed),
    }
    best = {
        name: min(points, key=lambda point: point.loss) for name, points in arms.items()
    }
    rises = [
        after.loss - before.loss
        for before, after in zip(arms["adaptive"], arms["adaptive"][1:], strict=False)
    ]
    return {
        "rate": rate,
        "seed": seed,
        "best_loss": {name: round(point.loss, 4) for name, point in best.items()},
        "cpu_s_to_fixed_best": {
            name: finite(reached(points, best["fixed"].loss))
            for name, points in arms.items()
        },
        "easy_cpu_s_fixed_adaptive": easy(rate, seed),
        "batches": sorted({point.batch for point in arms["adaptive"]}),
        "largest_rise_of_loss": round(max(rises), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-store", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train("adaptive", INITIAL, "constant", 77)  # what is loaded or compiled once
    rows = []
    for rate in ("cosine", "constant"):
        for seed in range(options.seeds):
            rows.append(compare(rate, seed))
            print(json.dumps(rows[-1]), flush=True)
    ratios = [
        math.inf if adaptive is None else adaptive / fixed
        for row in rows
        for fixed, adaptive in row["easy_cpu_s_fixed_adaptive"].values()  # type: ignore[attr-defined]  # as made above
        if fixed is not None
    ]
    result = {
        "torch": torch.__version__,
        "easy_targets": EASY_TARGETS,
        "later_at_easy_targets": {
            "median": round(statistics.median(ratios), 3),
            "worst": round(max(ratios), 3),
            "allowed": LATER_MAX,
        },
        "runs": rows,
    }
    print(json.dumps(result["later_at_easy_targets"]))
    if not options.no_store:
        store_results(RESULTS, result)


if __name__ == "__main__":
    main()
