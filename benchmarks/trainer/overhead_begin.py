"""Step time of a new group under `coadapt.train` over that of plain
DistributedDataParallel.

`python -m benchmarks.trainer.overhead_begin`: two new replicas on the CPU (gloo) per
round. Both ways train fresh models in the same processes and take turns of ten steps,
so each turn has the same neighbours. For each window of steps since the group began:
the median over rounds of the ratio of times. Also the time that looking for gradients
that are not finite takes, over that of a plain step. Results go to
benchmarks/results/overhead_begin.json.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import coadapt.train as ct
from benchmarks.stored import load_results, store_results
from benchmarks.trainer import overhead
from benchmarks.trainer._replicas import on_two_replicas
from benchmarks.trainer.overhead import Case, ways_of
from coadapt.train.wrappers.finite import FiniteLook

RESULTS = Path(__file__).parents[1] / "results" / "overhead_begin.json"
WINDOW_STEPS = 10
WINDOWS = 9
WAYS = ("plain", "coadapt")
LOOK = "look"


class Wide(nn.Module):
    """Ten million parameters, most of a step is their exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(3072, 2560), nn.ReLU(), nn.Linear(2560, 1000)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


CASES = (
    *overhead.CASES["cpu"],
    Case(
        name="wide",
        make=Wide,
        shape=(3, 32, 32),
        num_classes=1000,
        batch_per_replica=16,
        adam=False,
    ),
)


class TimedLook:
    """Adds up the seconds in which the optimiser looks for gradients that are not
    finite, in this process.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        look = FiniteLook.look

        def timed(self_: FiniteLook, step: int) -> None:
            began_s = time.perf_counter()
            look(self_, step)
            self.seconds += time.perf_counter() - began_s

        FiniteLook.look = timed  # type: ignore[method-assign]  # to measure it


def turns(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the seconds of each window of steps, for each way, and as "look" those of
    looking for gradients that are not finite.
    """
    (case,) = (case for case in CASES if case.name == options.case)
    run = ct.init(device="cpu", contract="fixed")
    ways = ways_of(case, run, WINDOWS * WINDOW_STEPS)
    look = TimedLook()
    seconds: dict[str, list[float]] = {way: [] for way in (*WAYS, LOOK)}
    for window in range(WINDOWS):
        order = WAYS if (window + options.round) % 2 else tuple(reversed(WAYS))
        for way in order:
            torch.distributed.barrier()
            began_s = time.perf_counter()
            for _ in range(WINDOW_STEPS):
                next(ways[way])
            torch.distributed.barrier()
            seconds[way].append(time.perf_counter() - began_s)
        seconds[LOOK].append(look.seconds)
        look.seconds = 0.0
    return seconds


def measure(case: Case, num_rounds: int) -> dict[str, object]:
    """Return the ratios of a case."""
    rounds = []
    for number in range(num_rounds):
        options = argparse.Namespace(case=case.name, round=number)
        rounds.append(on_two_replicas(turns, options))
    ratios = [
        statistics.median(
            found["coadapt"][window] / found["plain"][window] for found in rounds
        )
        for window in range(WINDOWS)
    ]
    # Without the first window, in which allocator and reducer warm up.
    first_50 = statistics.median(
        sum(found["coadapt"][1:5]) / sum(found["plain"][1:5]) for found in rounds
    )
    later = statistics.median(
        sum(found["coadapt"][5:]) / sum(found["plain"][5:]) for found in rounds
    )
    look = statistics.median(
        sum(found[LOOK][1:]) / sum(found["plain"][1:]) for found in rounds
    )
    plain_s = statistics.median(
        found["plain"][window] / WINDOW_STEPS
        for found in rounds
        for window in range(1, WINDOWS)
    )
    return {
        "parameters": sum(item.numel() for item in case.make().parameters()),
        "plain_ms": round(plain_s * 1e3, 2),
        "over_plain_by_window": [round(ratio, 3) for ratio in ratios],
        "steps_11_to_50": round(first_50, 3),
        "steps_51_to_90": round(later, 3),
        "finite_look": round(look, 5),
    }


def main(argv: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", choices=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--no-store", action="store_true", help="leave benchmarks/results as it is"
    )
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    before = load_results(RESULTS).get("cases", {})
    about = {
        "rounds": options.rounds,
        "load": round(load, 1),
        "torch": torch.__version__,
    }
    cases = {
        case.name: {**about, **measure(case, options.rounds)}
        for case in CASES
        if options.case in (None, case.name)
    }
    result = {
        "device": "cpu, 2 replicas, gloo",
        "window_steps": WINDOW_STEPS,
        "cases": {**before, **cases},
    }
    if not options.no_store:
        store_results(RESULTS, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
