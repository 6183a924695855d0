"""The yardstick of the fit: Pollux's loss written out plainly, scipy's L-BFGS-B on it,
profiles to fit.
"""

import csv
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from coadapt.goodput import fit_kernel
from coadapt.goodput.profile import Profile, ProfileBuilder
from coadapt.goodput.throughput import PARAM_NAMES, step_time
from coadapt.model import Placement, ThroughputParams

FloatArray = NDArray[np.float64]

LOW = 1e-8
START = np.array([0.1, 0.01] * 4 + [1.001])  # Pollux's own
PROFILE_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30, 45)
APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


@dataclass(frozen=True)
class PolluxLoss:
    """Pollux's loss of one profile as a function of the nine parameters; those not
    `free` are pinned.
    """

    profile: Profile

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """0 one replica, 1 one node, 2 several nodes, 3 several racks."""
        profile = self.profile
        wide = np.where(profile.num_racks > 1, 3, np.where(profile.num_nodes > 1, 2, 1))
        return np.where(profile.num_replicas > 1, wide, 0)

    @cached_property
    def free(self) -> NDArray[np.bool_]:
        used = [bool((self.levels == level).any()) for level in (1, 2, 3)]
        grows = bool((self.profile.num_replicas > 2).any())
        links = [flag for link in used for flag in (link, link and grows)]
        return np.array([len(np.unique(self.profile.atomic)) > 1, True, *links, True])

    @cached_property
    def start(self) -> FloatArray:
        """Where Pollux begins, with the parameters that the profile cannot tell at
        their pinned values.
        """
        x = np.where(self.free, START, LOW)
        if not self.free[0]:
            x[0] = self.profile.compute_s.mean() / 2.0
        return x

    def __call__(self, x: FloatArray) -> float:
        """Return the loss at `x`, without the pinned links' constant penalties."""
        profile = self.profile
        gamma = x[8]
        compute_s = x[0] + x[1] * profile.atomic
        alphas = np.array([LOW, *x[2:8:2]])
        betas = np.array([0.0, *x[3:8:2]])
        extra = np.maximum(profile.num_replicas - 2.0, 0.0)
        sync_s = alphas[self.levels] + betas[self.levels] * extra
        log_step = (
            np.logaddexp(gamma * np.log(compute_s), gamma * np.log(sync_s)) / gamma
        )
        errors = (
            np.log(compute_s / profile.compute_s),
            log_step - np.log(profile.step_s),
        )
        ratios = x[3:8:2][self.free[2:8:2]] / x[2:8:2][self.free[2:8:2]]
        rmses = [float(np.sqrt(np.mean(error**2))) for error in errors]
        return float(sum(rmses) + 1e-3 * (gamma - 1.0) ** 2 + 1e-2 * np.sum(ratios**2))

    def of(self, params: ThroughputParams) -> float:
        """Return the loss of fitted parameters; what was pinned while they were fitted
        is pinned here too.
        """
        x = np.array([getattr(params, name) for name in PARAM_NAMES])
        return self(np.where(self.free, x, self.start))


def fit_with_scipy(profile: Profile, *, analytic: bool = True) -> FloatArray:
    """Return what scipy's L-BFGS-B finds from Pollux's start with its default settings,
    an array (9,).

    It gets our compiled loss, so that its time is that of its search and not of slow
    equations.
    """
    problem = fit_kernel.prepare(profile.columns())
    grad = np.empty(9)
    gram = np.empty((9, 9))

    def loss(x: FloatArray) -> float:
        return fit_kernel.evaluate(problem, x, fit_kernel.RMSE_MIN, grad, gram)

    start = PolluxLoss(profile).start
    limits = [(LOW, np.inf)] * 8 + [(1.0, 10.0)]
    bounds = [
        limit if is_free else (x, x)
        for limit, is_free, x in zip(limits, problem.free, start, strict=True)
    ]
    target = (lambda x: (loss(x), grad)) if analytic else loss
    found: FloatArray = scipy.optimize.minimize(
        target, start, jac=analytic, bounds=bounds, method="L-BFGS-B"
    ).x
    return found


def synthetic_profiles(count: int, seed: int) -> Iterator[Profile]:
    """Yield profiles of random parameters, sizes, placements and noise (0.01 % to 30
    %).
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        alphas = 10.0 ** rng.uniform(-3.0, 0.0, 4)
        betas = alphas * 10.0 ** rng.uniform(-2.5, 0.0, 4)
        gamma = rng.choice([1.0, rng.uniform(1.0, 3.0), rng.uniform(1.0, 10.0)])
        values = [*np.column_stack((alphas, betas / [100, 1, 1, 1])).ravel(), gamma]
        params = ThroughputParams(**dict(zip(PARAM_NAMES, values, strict=True)))
        yield _observe(params, rng)


def _observe(params: ThroughputParams, rng: np.random.Generator) -> Profile:
    noise = 10.0 ** rng.uniform(-4.0, -0.5)
    builder = ProfileBuilder()
    num_nodes_max = rng.integers(1, 7)
    one_batch = rng.random() < 0.1
    one_rack = rng.random() < 0.6
    for _ in range(rng.integers(1, 60)):
        num_nodes = int(rng.integers(1, num_nodes_max + 1))
        replicas = tuple(int(count) for count in rng.integers(1, 5, num_nodes))
        placement = Placement(
            replicas, 1 if one_rack or num_nodes == 1 else int(rng.integers(1, 3))
        )
        atomic = (
            32 if one_batch else int(rng.choice([8, 16, 24, 32, 48, 64, 100, 128, 200]))
        )
        compute_s = params.alpha_c + params.beta_c * atomic
        step_s = float(step_time(params, placement, float(atomic)))
        noise_c, noise_t = np.exp(noise * rng.standard_normal(2))
        builder.add(
            placement,
            atomic,
            compute_s * noise_c,
            max(step_s * noise_t, compute_s * noise_c),
        )
    return builder.build()


def measured_profiles(
    folder: Path, count: int, seed: int
) -> Iterator[tuple[str, Profile]]:
    """Yield (application, profile) of steps in `folder`, Pollux's `traces`, as jobs
    that grow would see them.

    Replica counts at most double beyond the largest one seen, as under Pollux's rule of
    growth.
    """
    rng = random.Random(seed)
    tables = {
        application: _placements(folder / application / "placements.csv")
        for application in APPLICATIONS
    }
    for _ in range(count):
        application = rng.choice(APPLICATIONS)
        builder = ProfileBuilder()
        size = rng.choice(PROFILE_SIZES)
        while len(builder.rows) < size:
            most = min(2 * builder.num_replicas_profiled, 16) or 1
            num_replicas = rng.randint(1, most)
            builder.add(*rng.choice(tables[application][num_replicas]))
        yield application, builder.build()


def _placements(path: Path) -> dict[int, list[tuple[Placement, int, float, float]]]:
    steps: dict[int, list[tuple[Placement, int, float, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            placement = Placement(tuple(int(digit) for digit in row["placement"]))
            step_s = float(row["step_time"])
            sync_s = float(row["sync_time"])
            observed = (placement, int(row["local_bsz"]), step_s - sync_s, step_s)
            steps.setdefault(placement.num_replicas, []).append(observed)
    return steps
