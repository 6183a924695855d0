"""Workloads as those of the Pollux artifact (OSDI'21, §5.1), drawn from the log of a
real cluster.

The recipe is that of petuum/adaptdl, branch osdi21-artifact, simulator/workloads. The
random numbers are our own, so a seed gives another workload than there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from coadapt.model import InputError
from coadapt.sim.library.builtin import S_PER_HOUR, sensible_requests
from coadapt.sim.traces.cluster_log import LoggedJob
from coadapt.sim.traces.osdi21 import MeasuredApplication
from coadapt.sim.traces.tuned_jobs import TunedJob

RUN_MIN_S = 60.0
GPU_HOURS_MAX = 1000.0
REPLICAS_MAX = 48  # the largest count that the recipe tries
HOURS_PER_DAY = 24

Requests = Sequence[tuple[int, int]]

# For each size class: the upper bound of a logged job's GPU-hours, and the applications
# that represent it, with equal chances.
SIZES: tuple[tuple[float, tuple[str, ...]], ...] = (
    (1.0, ("cifar10", "ncf")),
    (10.0, ("deepspeech2", "bert")),
    (100.0, ("yolov3",)),
    (GPU_HOURS_MAX, ("imagenet",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Which jobs to draw: `num_jobs` jobs of the log that were submitted within
    `num_hours` hours from `start_hour` on, on any day.

    160 jobs are the artifact's load 1; 80, 240 and 320 jobs are its loads 0.5, 1.5 and
    2.
    """

    num_jobs: int = 160
    seed: int = 0
    start_hour: int = 2
    num_hours: int = 8

    def __post_init__(self) -> None:
        if self.num_jobs < 1 or self.seed < 0:
            raise ValueError(
                f"num_jobs >= 1 and seed >= 0, got {self.num_jobs} and {self.seed}"
            )
        if not (
            0 <= self.start_hour < HOURS_PER_DAY
            and 1 <= self.num_hours <= HOURS_PER_DAY
        ):
            raise ValueError(
                f"hours of a day, got {self.start_hour} and {self.num_hours}"
            )


def requests_of(
    known: Mapping[str, Callable[[], MeasuredApplication]],
) -> dict[str, Requests]:
    """Return for each application that `generate` draws the pairs (GPUs, total batch)
    that users might choose.

    known: the applications of the profiles. Raises InputError if one is missing.
    """
    wanted = [name for _, names in SIZES for name in names]
    if missing := [name for name in wanted if name not in known]:
        raise InputError(
            "--profiles", f"no {', '.join(missing)}", f"profiles of {', '.join(wanted)}"
        )
    return {name: sensible_requests(known[name](), REPLICAS_MAX) for name in wanted}


def generate(
    log: Sequence[LoggedJob], requests: Mapping[str, Requests], recipe: Recipe
) -> list[TunedJob]:
    """Return a workload for `write_jobs`. Arrivals and sizes are those of the log, and
    requests are drawn from `requests`.

    Equal arguments give equal workloads. Raises InputError if the log has fewer
    suitable jobs than the recipe needs.
    """
    pool = [
        job
        for job in log
        if job.run_s >= RUN_MIN_S and job.gpu_s < GPU_HOURS_MAX * S_PER_HOUR
    ]
    at = [_seconds_of_day(job, recipe.start_hour) for job in pool]
    inside = [
        index
        for index, second in enumerate(at)
        if second < recipe.num_hours * S_PER_HOUR
    ]
    if len(inside) < recipe.num_jobs:
        raise InputError(
            "--jobs",
            recipe.num_jobs,
            f"at most {len(inside)}, which came in these hours",
        )
    rng = np.random.default_rng(recipe.seed)
    drawn = rng.choice(inside, size=recipe.num_jobs, replace=False).tolist()
    order = sorted(drawn, key=lambda index: (at[index], index))
    return _tuned([(at[index], pool[index]) for index in order], requests, rng)


def whole(
    log: Sequence[LoggedJob], requests: Mapping[str, Requests], seed: int = 0
) -> list[TunedJob]:
    """Return all jobs of a log at their arrivals, the first at 0 s. Applications and
    requests are drawn as in `generate`.

    Jobs of 1,000 GPU-hours and more are represented by the largest application too.
    Equal arguments give equal workloads.
    """
    began_at = min((job.at for job in log), default=0.0)
    arrivals = sorted(
        ((job.at - began_at, job) for job in log), key=lambda each: each[0]
    )
    return _tuned(arrivals, requests, np.random.default_rng(seed))


def _tuned(
    arrivals: Sequence[tuple[float, LoggedJob]],
    requests: Mapping[str, Requests],
    rng: np.random.Generator,
) -> list[TunedJob]:
    jobs = []
    for number, (at, logged) in enumerate(arrivals):
        hours = logged.gpu_s / S_PER_HOUR
        names = next((names for bound, names in SIZES if hours < bound), SIZES[-1][1])
        name = names[int(rng.integers(len(names)))]
        num_replicas, total = requests[name][int(rng.integers(len(requests[name])))]
        jobs.append(TunedJob(f"{name}-{number}", int(at), name, num_replicas, total))
    return jobs


def _seconds_of_day(job: LoggedJob, start_hour: int) -> float:
    at = datetime.fromtimestamp(job.at, UTC)
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return ((at - midnight).total_seconds() - start_hour * S_PER_HOUR) % (
        HOURS_PER_DAY * S_PER_HOUR
    )
