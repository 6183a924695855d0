"""Step time of `coadapt.train` on one replica over that of plain PyTorch, for a tiny
model and a small one.

`python -m benchmarks.trainer.overhead_alone`: a step of the tiny model takes well below
a millisecond, so whatever the library does by itself shows. Plain and coadapt take
turns of 64 steps in one process; the result is the median over turns of the ratio of
CPU seconds (which other load changes little), with quartiles. Results go to
benchmarks/results/overhead_alone.json.
"""

import argparse
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import coadapt.train as ct
from benchmarks.stored import store_results

RESULTS = Path(__file__).parents[1] / "results" / "overhead_alone.json"
TURN_STEPS = 64
# Past the steps of which all are measured.
WARMUP_TURNS = 3
BATCH = 32


def tiny() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10)), torch.randn(
        BATCH, 20
    )


def small() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(18432, 10),
    )
    return net, torch.randn(BATCH, 1, 28, 28)


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "tiny": tiny,
    "small": small,
}


def data_of(x: Tensor, num_steps: int) -> TensorDataset:
    y = torch.randint(10, (BATCH,))
    return TensorDataset(x.repeat(num_steps, *[1] * (x.dim() - 1)), y.repeat(num_steps))


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def plain(make: Callable[[], tuple[nn.Module, Tensor]]) -> Iterator[None]:
    """Train for ever, a step at a time."""
    model, x = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data_of(x, TURN_STEPS), batch_size=BATCH)
    while True:
        for bx, by in loader:
            step(model, optimizer, bx, by)
            yield


def ours(make: Callable[[], tuple[nn.Module, Tensor]]) -> Iterator[None]:
    """The same loop with the documented lines."""
    run = ct.init()
    net, x = make()
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(data_of(x, TURN_STEPS), batch_size=BATCH)
    for _ in run.epochs(10**9):
        for bx, by in loader:
            step(model, optimizer, bx, by)
            yield


def cpu_s(steps: Iterator[None], num_steps: int) -> float:
    """Return the CPU seconds of the next steps."""
    began = time.process_time()
    for _ in range(num_steps):
        next(steps)
    return time.process_time() - began


def measure(name: str, num_turns: int) -> dict[str, float]:
    """Return the ratio of coadapt's steps to plain ones: median and quartiles over
    turns; ms per step.
    """
    ways = {"plain": plain(CASES[name]), "coadapt": ours(CASES[name])}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(WARMUP_TURNS + num_turns):
        for way in sorted(ways, reverse=bool(turn % 2)):
            took_s = cpu_s(ways[way], TURN_STEPS)
            if turn >= WARMUP_TURNS:
                seconds[way].append(took_s)
    ratios = [
        ours_s / plain_s
        for ours_s, plain_s in zip(seconds["coadapt"], seconds["plain"], strict=True)
    ]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": round(middle, 3),
        "quartile_low": round(low, 3),
        "quartile_high": round(high, 3),
        "plain_ms": round(1e3 * statistics.median(seconds["plain"]) / TURN_STEPS, 4),
        "coadapt_ms": round(
            1e3 * statistics.median(seconds["coadapt"]) / TURN_STEPS, 4
        ),
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument(
        "--no-store", action="store_true", help="leave benchmarks/results as it is"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="where the tiny model's steps go, and no more",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.profile:
        steps = ours(tiny)
        cpu_s(steps, TURN_STEPS)
        with cProfile.Profile() as profile:
            cpu_s(steps, 3000)
        pstats.Stats(profile).sort_stats("tottime").print_stats("coadapt", 40)
        return
    results = {
        "torch": torch.__version__,
        **{name: measure(name, options.turns) for name in CASES},
    }
    print(json.dumps(results, indent=1))
    if not options.no_store:
        store_results(RESULTS, results)


if __name__ == "__main__":
    main()
