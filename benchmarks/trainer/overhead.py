"""Step time of `coadapt.train`, noise scale on, over that of plain
DistributedDataParallel.

`python -m benchmarks.trainer.overhead`: two replicas on the CPU (gloo), a CNN and a
small GPT. `--device cuda`: one GPU, bfloat16, a ResNet-50 and a GPT of 124 million
parameters. Three ways take turns, 16 steps each, in the same processes: plain, coadapt,
and the noise scale by one hook per parameter, as AdaptDL measures it. Results (medians
of each turn's ratio to its plain steps) go to
benchmarks/results/overhead-<device>.json.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import coadapt.train as ct
from benchmarks.stored import store_results
from benchmarks.trainer._replicas import on_two_replicas
from benchmarks.trainer.models import GPT, GPT_124M, GPT_SMALL, ConvNet, ResNet50

RESULTS = Path(__file__).parents[1] / "results"
# Two periods of coadapt's measured steps.
TURN_STEPS = 16
# Past the steps that coadapt measures all of, and the warm-up of allocator and reducer.
WARMUP_TURNS = 4
WAYS = ("plain", "coadapt", "hooks")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and its input. num_classes: labels per sample, or per token where
    `tokens` is not 0.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_classes: int
    batch_per_replica: int
    adam: bool
    tokens: bool = False


CASES = {
    "cpu": (
        Case(
            name="cnn",
            make=ConvNet,
            shape=(3, 32, 32),
            num_classes=10,
            batch_per_replica=32,
            adam=False,
        ),
        Case(
            name="gpt",
            make=lambda: GPT(GPT_SMALL),
            shape=(GPT_SMALL.context,),
            num_classes=GPT_SMALL.vocabulary,
            batch_per_replica=8,
            adam=True,
            tokens=True,
        ),
    ),
    "cuda": (
        Case(
            name="resnet50",
            make=ResNet50,
            shape=(3, 224, 224),
            num_classes=1000,
            batch_per_replica=128,
            adam=False,
        ),
        Case(
            name="gpt-124m",
            make=lambda: GPT(GPT_124M),
            shape=(GPT_124M.context,),
            num_classes=GPT_124M.vocabulary,
            batch_per_replica=8,
            adam=True,
            tokens=True,
        ),
    ),
}


class Made(Dataset[int]):
    """The same few random samples again and again, kept where the model is: loading
    them hides nothing.

    An item is the index of a sample; `batch` returns the samples.
    """

    def __init__(self, case: Case, num_samples: int, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self._num_samples = num_samples
        distinct = 256
        if case.tokens:
            x = torch.randint(
                case.num_classes, (distinct, *case.shape), generator=generator
            )
            y = x.roll(-1, 1)
        else:
            x = torch.randn(distinct, *case.shape, generator=generator)
            y = torch.randint(case.num_classes, (distinct,), generator=generator)
        self._x = x.to(device)
        self._y = y.to(device)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        return index % len(self._x)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        indices = indices.to(self._x.device)
        return self._x[indices], self._y[indices]


class HookedNorms:
    """AdaptDL's way: a hook per parameter takes its local gradient's norm; then those
    of the mean.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = list(model.parameters())
        self._optimizer = optimizer
        self._small: list[Tensor] = []
        for parameter in self._parameters:
            parameter.register_hook(
                lambda grad, of=parameter: self._small.append(self._norm(grad, of))
            )

    def read(self) -> tuple[float, float]:
        """Return the step's norms: of the local gradients and of their mean."""
        small = torch.stack(self._small).sum()
        big = torch.stack(
            [self._norm(p.grad, p) for p in self._parameters if p.grad is not None]
        ).sum()
        self._small = []
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(small)
        return float(small), float(big)

    def _norm(self, grad: Tensor, parameter: Tensor) -> Tensor:
        state = self._optimizer.state.get(parameter, {})
        if "exp_avg_sq" in state:
            grad = grad / (state["exp_avg_sq"].sqrt() + 1e-8)
        return grad.detach().double().square().sum()


def step_of(
    data: Made, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor], None]:
    """Return one step of a plain loop."""

    def step(indices: Tensor) -> None:
        x, y = data.batch(indices)
        optimizer.zero_grad()
        cast = torch.autocast("cuda", torch.bfloat16) if x.is_cuda else nullcontext()
        with cast:
            output = model(x)
            loss = functional.cross_entropy(output.flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()

    return step


def optimizer_for(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    if case.adam:
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def ways_of(case: Case, run: ct.Run, num_steps: int) -> dict[str, Iterator[None]]:
    """Return iterators that make one step each time they are advanced; data loading is
    part of it.
    """
    device = run.device
    total = case.batch_per_replica * run.num_replicas
    data = Made(case, total * (num_steps + 1), device)

    def plain(*, hooks: bool) -> Iterator[None]:
        torch.manual_seed(0)
        model = case.make().to(device)
        optimizer = optimizer_for(case, model)
        norms = HookedNorms(model, optimizer) if hooks else None
        replica = DistributedDataParallel(model) if run.num_replicas > 1 else model
        step = step_of(data, replica, optimizer)
        for indices in DataLoader(data, batch_size=case.batch_per_replica):
            step(indices)
            if norms is not None:
                norms.read()
            yield

    def ours() -> Iterator[None]:
        torch.manual_seed(0)
        model = case.make()
        model, optimizer = run.prepare(model, optimizer_for(case, model.to(device)))
        loader = run.loader(data, batch_size=total)
        step = step_of(data, model, optimizer)
        for _ in run.epochs(1):
            for indices in loader:
                step(indices)
                yield

    return {"plain": plain(hooks=False), "coadapt": ours(), "hooks": plain(hooks=True)}


def measure(case: Case, run: ct.Run, num_turns: int) -> dict[str, object]:
    """Return medians over `num_turns` turns; each turn begins with another way."""
    ways = ways_of(case, run, (WARMUP_TURNS + num_turns) * TURN_STEPS)
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(WARMUP_TURNS + num_turns):
        for offset in range(len(WAYS)):
            way = WAYS[(turn + offset) % len(WAYS)]
            _wait(run)
            wall_at = time.perf_counter()
            cpu_at = time.process_time()
            for _ in range(TURN_STEPS):
                next(ways[way])
            _wait(run)
            if turn >= WARMUP_TURNS:
                wall[way].append(time.perf_counter() - wall_at)
                cpu[way].append(time.process_time() - cpu_at)
    return {
        "plain_ms": round(statistics.median(wall["plain"]) / TURN_STEPS * 1e3, 3),
        "coadapt": _ratios(wall, "coadapt"),
        "hooks": _ratios(wall, "hooks"),
        "coadapt_cpu": round(sum(cpu["coadapt"]) / sum(cpu["plain"]), 4),
        "hooks_cpu": round(sum(cpu["hooks"]) / sum(cpu["plain"]), 4),
        "parameters": sum(p.numel() for p in case.make().parameters()),
    }


def _wait(run: ct.Run) -> None:
    """All replicas begin and end a turn together; the GPU has done its work."""
    if run.device.type == "cuda":
        torch.cuda.synchronize()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def _ratios(seconds: dict[str, list[float]], way: str) -> dict[str, float]:
    """Return the median of the turns' ratios to plain with its 90 % interval, and the
    ratio of medians.
    """
    ratios = sorted(
        one / plain for one, plain in zip(seconds[way], seconds["plain"], strict=True)
    )
    half = round(1.645 * len(ratios) ** 0.5 / 2.0)
    middle = len(ratios) // 2
    return {
        "median": round(statistics.median(ratios), 4),
        "low": round(ratios[max(middle - half, 0)], 4),
        "high": round(ratios[min(middle + half, len(ratios) - 1)], 4),
        "of_medians": round(
            statistics.median(seconds[way]) / statistics.median(seconds["plain"]), 4
        ),
    }


def run_cases(options: argparse.Namespace) -> dict[str, object]:
    cases = [
        case for case in CASES[options.device] if options.case in (None, case.name)
    ]
    return {
        case.name: measure(case, ct.init(device=options.device), options.turns)
        for case in cases
    }


def main(argv: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--case", help="only the model of that name")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--no-store", action="store_true", help="leave benchmarks/results as it is"
    )
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU that torch can use")
    result = {
        "device": torch.cuda.get_device_name()
        if options.device == "cuda"
        else "cpu, 2 replicas, gloo",
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        ),
        "torch": torch.__version__,
        "turns": options.turns,
        "step_time_over_plain": run_cases(options)
        if options.device == "cuda"
        else on_two_replicas(run_cases, options),
    }
    if not options.no_store and options.case is None:
        store_results(RESULTS / f"overhead-{options.device}.json", result)
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
