"""Means, intervals and ratios over the runs of a comparison."""

# A ratio compares two runs of the same cell (trace, cluster and seed), so that
# differences between cells cancel out. Ratios are averaged as logarithms, because half
# and twice must balance.
#
# Intervals are Student's t at 95 % over independent runs. Different cells are not
# always independent: the same trace on two clusters, two mixes drawn by the same seed,
# and one trace with several seeds of a policy have most in common. So the cells of one
# draw are averaged first, and the interval is over the draws: over traces, or over the
# seeds of built-in workloads.
#
# There is one exception. If all cells are of one trace and a policy draws random
# numbers, the interval is over that policy's seeds. It then shows how much the seeds
# matter on this trace, and nothing about other traces. One draw has no interval.

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coadapt.sim.metrics import JobOutcome

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with its 95 % confidence interval over independent runs. The bounds are
    None if there is only one run.

    num_values: the number of independent values. of: what these are, such as "traces",
    or "" if that is not known.
    """

    mean: float
    low: float | None
    high: float | None
    num_values: int
    of: str = ""


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the arithmetic mean of `values`. Raises ValueError for none."""
    if not values:
        raise ValueError("there are no values")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean=mean, low=None, high=None, num_values=1)
    half = _half_width(values)
    return Estimate(
        mean=mean, low=mean - half, high=mean + half, num_values=len(values)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A value and the baseline's value in the same cell. draw: see `Case.draw`.

    place: trace and cluster. copies: True if all seeds of this place gave the same run.
    """

    draw: str
    place: tuple[str, str]
    seed: int
    value: float
    base: float
    copies: bool = False


def ratio_of(pairs: Sequence[Pair]) -> Estimate | None:
    """Return the geometric mean of value / baseline over draws. Pairs that are not
    positive are left out; if no pair is left, the result is None.
    """
    logs = [
        (pair, math.log(pair.value / pair.base))
        for pair in pairs
        if pair.value > 0.0 and pair.base > 0.0
    ]
    if not logs:
        return None
    draws = {pair.draw for pair, _ in logs}
    if len(draws) > 1:
        values = _means_by(logs, lambda pair: pair.draw)
        of = _kind(draws)
    elif next(iter(draws)).startswith(SEED) or all(pair.copies for pair, _ in logs):
        values = [_mean_of_places(logs)]
        of = _kind(draws)
    else:
        values = _means_by(logs, lambda pair: pair.seed)
        of = "seeds of one trace" if len(values) > 1 else "traces"
    found = mean_of(values)
    return Estimate(
        mean=math.exp(found.mean),
        low=None if found.low is None else math.exp(found.low),
        high=None if found.high is None else math.exp(found.high),
        num_values=found.num_values,
        of=of,
    )


# First characters of the name of a draw that is given by a seed.
SEED = "seed "

_Logs = Sequence[tuple[Pair, float]]


def _means_by(logs: _Logs, key: Callable[[Pair], object]) -> list[float]:
    """Return the mean of each group that has the same key."""
    groups: dict[object, list[tuple[Pair, float]]] = defaultdict(list)
    for pair, log in logs:
        groups[key(pair)].append((pair, log))
    return [_mean_of_places(group) for group in groups.values()]


def _mean_of_places(logs: _Logs) -> float:
    """Return the mean over places of the means over seeds. So a place with more seeds
    does not count more.
    """
    places: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair, log in logs:
        places[pair.place].append(log)
    return float(np.mean([np.mean(each) for each in places.values()]))


def _kind(draws: Iterable[str]) -> str:
    """Return the name for these draws: "seeds", "traces" or "traces and seeds"."""
    by_seed = {draw.startswith(SEED) for draw in draws}
    if by_seed == {True}:
        return "seeds"
    return "traces" if by_seed == {False} else "traces and seeds"


def _half_width(values: Sequence[float]) -> float:
    from scipy.stats import t as student_t  # an extra, and slow to import

    spread = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(student_t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1)) * spread


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPick:
    """A job under a policy and under the baseline, same trace and cluster. Times in
    seconds.

    seed: None if the job is the same in all seeds. Then the times are geometric means
    over the seeds.
    """

    trace: str
    cluster: str
    seed: int | None
    job: str
    application: str
    num_gpus: int
    jct_s: float
    baseline_jct_s: float

    @property
    def ratio(self) -> float:
        return self.jct_s / self.baseline_jct_s


def picks(
    cell: tuple[str, str, int],
    jobs: Sequence[JobOutcome],
    baseline: Sequence[JobOutcome],
) -> list[JobPick]:
    """Return the jobs that both runs of a cell finished."""
    base_jct_s = {job.id: job.jct_s for job in baseline}
    return [
        JobPick(
            trace=cell[0],
            cluster=cell[1],
            seed=cell[2],
            job=job.id,
            application=job.application,
            num_gpus=job.num_gpus,
            jct_s=job.jct_s,
            baseline_jct_s=base_jct_s[job.id],
        )
        for job in jobs
        if job.id in base_jct_s
    ]


def merged(of_seeds: Sequence[Sequence[JobPick]]) -> list[JobPick]:
    """Return each job of a file once. of_seeds: the picks of each seed, which all have
    the same jobs.
    """
    by_job: dict[str, list[JobPick]] = defaultdict(list)
    for found in of_seeds:
        for pick in found:
            by_job[pick.job].append(pick)
    return [
        replace(
            alike[0],
            seed=None,
            jct_s=_geometric([pick.jct_s for pick in alike]),
            baseline_jct_s=_geometric([pick.baseline_jct_s for pick in alike]),
        )
        for alike in by_job.values()
    ]


def _geometric(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))
