"""How far the measured gradient noise scale is from the truth, and how often its stated
interval covers it.

`python -m benchmarks.trainer.noise_scale` trains with a learning rate of 0, so that the
truth stays where it is: on a quadratic with known covariance, and on small models whose
truth is found by brute force: the gradient of each sample. Those with normalisation
layers are measured with `noise="norm-layers"` too, against the truth of the whole
model; `layers_over_whole` says what their own parameters alone would give. Each trial
is one run of `coadapt.train` on samples drawn anew; those "by formula" are without a
run, fed with norms from the inner products of all samples' gradients: the same to 7
digits, but 20 times as many trials tell chance from fault. Results go to
benchmarks/results/noise_scale.json.
"""

import argparse
import copy
import json
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from benchmarks.stored import store_results
from benchmarks.trainer._replicas import on_two_replicas
from coadapt.model import GradStats
from coadapt.train.noise.noise_scale import GradNorms, NoiseScale
from coadapt.train.samples import pace
from coadapt.train.samples.pace import measures

RESULTS = Path(__file__).parents[1] / "results" / "noise_scale.json"
BATCH = 32
DIM = 10
POPULATION = 1024
Z_90 = 1.645
FORMULA_TRIALS = 20  # for each trial of a run
BY_FORMULA = ("passes by formula", "norm_layers by formula")
WITH_LAYERS = (
    "norm_layers passes",
    "norm_layers differenced",
    "norm_layers by formula",
)
ESTIMATORS = (
    "passes",
    "passes by formula",
    "differenced",
    "preconditioned",
    *WITH_LAYERS,
)
CONTEXT = 8
VOCABULARY = 16
WIDTH = 16


class Centre(nn.Module):
    """Loss |w - x|^2 / 2 per sample: its gradient is w - x, so its covariance is that
    of the data.
    """

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(DIM))

    def forward(self, x: Tensor, _y: Tensor) -> Tensor:
        return 0.5 * (self.w - x).square().sum(1)


class SmallCNN(nn.Module):
    """Two convolutions on 8 x 8 images, ten classes; loss per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32, 10),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")


class NormalisedCNN(nn.Module):
    """As SmallCNN, each convolution followed by a GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.GroupNorm(2, 8),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32, 10),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y, reduction="none")


class SmallTransformer(nn.Module):
    """Two blocks over eight tokens, next-token prediction; loss per sample."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        block = nn.TransformerEncoderLayer(
            WIDTH, 2, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(
            block, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        out = self.head(
            self.body(self.tokens(x) + self.positions, mask=mask, is_causal=True)
        )
        return nn.functional.cross_entropy(
            out.transpose(1, 2), y, reduction="none"
        ).mean(1)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A model at a fixed point, how to draw samples, and the mean and variances of one
    sample's gradient.

    in_norms: which coordinates are scales and shifts of normalisation layers. each:
    gradients of a population (num_samples, num_parameters).
    """

    model: nn.Module
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    mean: Tensor
    var: Tensor
    in_norms: Tensor | None = None
    each: Tensor | None = None

    def noise_scale(self, estimator: str) -> float:
        """Return the truth of what `estimator` estimates.

        Preconditioned: each coordinate is divided by the root of its second moment.
        """
        mean = self.mean
        var = self.var
        metric = (
            mean.square() + var / BATCH
            if estimator == "preconditioned"
            else torch.ones(())
        )
        return float((var / metric).sum() / (mean.square() / metric).sum())

    @property
    def layers_over_whole(self) -> float:
        """Return the noise scale of the normalisation layers' own parameters over that
        of all.
        """
        assert self.in_norms is not None
        of_layers = (
            self.var[self.in_norms].sum() / self.mean[self.in_norms].square().sum()
        )
        return float(of_layers) / self.noise_scale("")


def quadratic() -> Problem:
    mean = torch.linspace(0.05, 0.5, DIM)
    spread = torch.linspace(1.5, 0.3, DIM)

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return mean + spread * torch.randn(
            count, DIM, generator=generator
        ), torch.zeros(count)

    return Problem(model=Centre(), draw=draw, mean=mean, var=spread.square())


def cnn(kind: type[nn.Module] = SmallCNN) -> Problem:
    """Images of ten noisy prototypes."""
    torch.manual_seed(0)
    y = torch.randint(10, (POPULATION,))
    x = torch.randn(10, 1, 8, 8)[y] + 1.5 * torch.randn(POPULATION, 1, 8, 8)
    return by_brute_force(kind(), x, y)


def normalised_cnn() -> Problem:
    return cnn(NormalisedCNN)


def transformer() -> Problem:
    """Random walks on a ring of tokens."""
    torch.manual_seed(0)
    start = torch.randint(VOCABULARY, (POPULATION, 1))
    walks = (start + torch.randint(3, (POPULATION, CONTEXT + 1)).cumsum(1)) % VOCABULARY
    return by_brute_force(SmallTransformer(), walks[:, :-1], walks[:, 1:])


def by_brute_force(model: nn.Module, x: Tensor, y: Tensor) -> Problem:
    """Take a few steps, so that `model` is at no special point; then the gradient of
    each sample.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(15):
        optimizer.zero_grad()
        model(x, y).mean().backward()
        optimizer.step()
    grads = []
    for index in range(POPULATION):
        model.zero_grad()
        model(x[index : index + 1], y[index : index + 1]).sum().backward()
        grads.append(
            torch.cat(
                [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            )
        )
    each = torch.stack(grads).double()
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.LayerNorm | nn.GroupNorm)
    ]
    norms = {p for layer in layers for p in layer.parameters()}
    in_norms = torch.cat(
        [torch.full((p.numel(),), p in norms) for p in model.parameters()]
    )

    def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(POPULATION, (count,), generator=generator)
        return x[ids], y[ids]

    return Problem(
        model=model,
        draw=draw,
        mean=each.mean(0),
        var=each.var(0, correction=0),
        in_norms=in_norms if norms else None,
        each=each,
    )


PROBLEMS = {
    "quadratic": quadratic,
    "cnn": cnn,
    "normalised cnn": normalised_cnn,
    "transformer": transformer,
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one trial ended with, in samples."""

    noise_scale: float
    stderr: float
    low: float
    high: float


def trial(problem: Problem, estimator: str, num_steps: int, seed: int) -> Measured:
    """Run `num_steps` optimiser steps on fresh samples, as one epoch; return what was
    measured.
    """
    generator = torch.Generator().manual_seed(seed)
    data = problem.draw(num_steps * BATCH, generator)
    run = ct.init()
    kind = torch.optim.Adam if estimator == "preconditioned" else torch.optim.SGD
    noise = "norm-layers" if estimator.startswith("norm_layers") else "gradients"
    # Of its own: a meter stays with the layers that it watches.
    model = copy.deepcopy(problem.model)
    model, optimizer = run.prepare(model, kind(model.parameters(), lr=0.0), noise=noise)
    whole = estimator in ("replicas", "differenced", "norm_layers differenced")
    max_atomic = None if whole else BATCH // 2
    loader = run.loader(TensorDataset(*data), batch_size=BATCH, max_atomic=max_atomic)
    for _ in run.epochs(1):
        _ = run.grad_stats  # asks for it, so that it is measured in full
        for x, y in loader:
            optimizer.zero_grad()
            model(x, y).mean().backward()
            optimizer.step()
    return measured(run.grad_stats, run.noise_scale_interval)


def trials_by_formula(
    problem: Problem, estimator: str, num_trials: int, num_steps: int
) -> list[Measured]:
    """Return what `trial` would with two passes per step, on draws from the
    population.
    """
    assert problem.each is not None
    wholes = problem.each @ problem.each.T
    rows = None
    if estimator in WITH_LAYERS:
        own = problem.each[:, problem.in_norms]
        rows = own @ own.T
    found = []
    for seed in range(num_trials):
        generator = torch.Generator().manual_seed(seed)
        noise = NoiseScale(BATCH)
        for step in range(num_steps):
            ids = torch.randint(POPULATION, (BATCH,), generator=generator)
            if measures(step, compares=False):
                norms = norms_of(wholes[ids][:, ids], BATCH // 2)
                if rows is not None:
                    norms = replace(norms, layers=norms_of(rows[ids][:, ids], 1))
                noise.add(norms, float(BATCH * (step + 1)))
        found.append(measured(noise.stats(), noise.interval()))
    return found


def norms_of(products: Tensor, size: int) -> GradNorms:
    """Return the norms of a step in passes of `size` samples from the inner products of
    their gradients.
    """
    count = BATCH // size
    own = products.view(count, size, count, size).diagonal(dim1=0, dim2=2).sum()
    return GradNorms(
        small_sqr=float(own) / size**2,
        inverse=count / size,
        count=count,
        big_sqr=float(products.sum()) / BATCH**2,
        samples=BATCH,
    )


def measured(stats: GradStats | None, interval: tuple[float, float] | None) -> Measured:
    assert stats is not None
    assert interval is not None
    stderr = (
        float("inf") if stats.noise_scale_stderr is None else stats.noise_scale_stderr
    )
    return Measured(
        noise_scale=stats.noise_scale(BATCH),
        stderr=stderr,
        low=interval[0],
        high=interval[1],
    )


def summary(
    problem: Problem, estimator: str, trials: list[Measured]
) -> dict[str, float]:
    truth = problem.noise_scale(estimator)
    layers = {}
    if estimator in WITH_LAYERS:
        layers["layers_over_whole"] = round(problem.layers_over_whole, 3)
    return layers | {
        "truth": round(truth, 2),
        "mean_over_truth": round(
            statistics.fmean(each.noise_scale for each in trials) / truth, 4
        ),
        "median_over_truth": round(
            statistics.median(each.noise_scale for each in trials) / truth, 4
        ),
        "interval_covers": statistics.fmean(
            each.low <= truth <= each.high for each in trials
        ),
        "stderr_covers": statistics.fmean(
            abs(each.noise_scale - truth) <= Z_90 * each.stderr for each in trials
        ),
        "low_end_holds": statistics.fmean(each.low <= truth for each in trials),
        "num_trials": len(trials),
    }


def run_cases(
    name: str, estimators: tuple[str, ...], num_trials: int, num_steps: int
) -> dict[str, dict[str, float]]:
    """Measure `estimators`, as far as they make sense for that problem."""
    problem = PROBLEMS[name]()
    results = {}
    for estimator in estimators:
        if estimator in WITH_LAYERS and problem.in_norms is None:
            continue
        if estimator in BY_FORMULA:
            if problem.each is None:
                continue
            trials = trials_by_formula(
                problem, estimator, FORMULA_TRIALS * num_trials, num_steps
            )
        else:
            trials = [
                trial(problem, estimator, num_steps, seed) for seed in range(num_trials)
            ]
        results[estimator] = summary(problem, estimator, trials)
    return results


def run_replicas(options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """Be one of two replicas for all trials of all problems."""
    return {
        name: run_cases(name, ("replicas",), options.trials, options.steps)
        for name in PROBLEMS
    }


def main(argv: list[str] | None = None) -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument(
        "--steps", type=int, default=150, help="optimiser steps per trial"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--no-store", action="store_true", help="leave benchmarks/results as it is"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    # Steps here take a millisecond. Of steps of 20 ms and more, every pair is measured.
    pace.PAIR_EVERY_CPU_S = 0.0
    found = {
        name: run_cases(name, ESTIMATORS, options.trials, options.steps)
        for name in PROBLEMS
    }
    for name, cases in on_two_replicas(run_replicas, options).items():
        found[name] |= cases
    result = {
        "batch": BATCH,
        "steps": options.steps,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "estimators": found,
    }
    if not options.no_store:
        store_results(RESULTS, result)
    if options.json:
        print(json.dumps(result))
        return
    for name, cases in found.items():
        for estimator, row in cases.items():
            print(
                f"{name:14} {estimator:23}",
                *(f"{key} {value:g}" for key, value in row.items()),
            )


if __name__ == "__main__":
    main()
