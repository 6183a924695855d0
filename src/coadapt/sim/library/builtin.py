"""Built-in workloads: arrivals and requests drawn from simple formulas over the
built-in applications.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from coadapt.goodput.batch import split_total
from coadapt.model import (
    BatchLimits,
    InputError,
    JobSpec,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.applications import Application, packed, step_s
from coadapt.sim.library.profiles import BUILTIN_APPLICATIONS, ParametricApplication
from coadapt.sim.workload import TraceJob, Workload

S_PER_HOUR = 3600.0

# Replica counts that a user would type, and the bounds of a sensible request. A
# sensible request does not scale so well that more GPUs would be better, and not so
# badly that GPUs are wasted. It ends within half a day. The rule and its bounds are
# those of the workloads of Pollux (OSDI'21, §5.1).
REPLICA_COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SCALING_EFFICIENCY_MIN = 0.5
SCALING_EFFICIENCY_MAX = 0.8
IDEAL_JCT_MAX_S = 12 * S_PER_HOUR
GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """jobs_per_hour: mean rate of arrivals. shares: application -> share of the jobs,
    summing to 1.
    """

    jobs_per_hour: float
    shares: Mapping[str, float]


# Shares by size are those of OSDI'21, table 1: small 72 %, medium 20 %, large 6 %,
# extra large 2 %. A share is halved if two models represent one size. That paper's load
# is 160 jobs in 8 hours; `busy` doubles it.
_POLLUX_SHARES = {
    "resnet18-cifar10": 0.36,
    "neumf-movielens": 0.36,
    "deepspeech2-arctic": 0.10,
    "bert-squad": 0.10,
    "yolov3-voc": 0.06,
    "resnet50-imagenet": 0.02,
}
MIXES: Mapping[str, Mix] = {
    "default": Mix(jobs_per_hour=20.0, shares=_POLLUX_SHARES),
    "busy": Mix(jobs_per_hour=40.0, shares=_POLLUX_SHARES),
}


def builtin_workload(
    name: str = "default", num_jobs: int = 160, seed: int = 0, *, num_gpus: int = 64
) -> tuple[Workload, dict[str, Application]]:
    """Return a workload of `num_jobs` adaptive jobs and the applications that they
    train.

    No job requests more than `num_gpus`, so that policies which never rescale can run
    all of them. Equal arguments give equal workloads. Raises InputError for an unknown
    name or counts below 1.
    """
    if name not in MIXES:
        raise InputError("builtin workload", name, ", ".join(MIXES))
    if num_jobs < 1:
        raise InputError("builtin workload, number of jobs", num_jobs, ">= 1")
    if num_gpus < 1:
        raise InputError("builtin workload, number of GPUs", num_gpus, ">= 1")
    mix = MIXES[name]
    rng = np.random.default_rng(seed)
    instants = arrivals(num_jobs, num_jobs / mix.jobs_per_hour * S_PER_HOUR, rng)
    names = rng.choice(list(mix.shares), size=num_jobs, p=list(mix.shares.values()))
    width = len(str(num_jobs - 1))
    jobs = []
    for index, (at, chosen) in enumerate(zip(instants, names, strict=True)):
        application = BUILTIN_APPLICATIONS[str(chosen)]
        requests = sensible_requests(application, num_gpus)
        num_replicas, total = requests[int(rng.integers(len(requests)))]
        job_id = f"{index:0{width}d}-{application.name}"
        spec = _spec(job_id, application, num_replicas, total, num_gpus)
        jobs.append(
            TraceJob(id=job_id, at=float(at), application=application.name, spec=spec)
        )
    label = f"builtin:{num_jobs}" if name == "default" else f"builtin:{name}:{num_jobs}"
    return Workload(name=label, jobs=tuple(jobs)), {**BUILTIN_APPLICATIONS}


def arrivals(num_jobs: int, duration_s: float, rng: np.random.Generator) -> list[int]:
    """Return whole seconds in [0, duration_s), ascending, with density 1 + 2 sin²(π t /
    duration).

    The formula models a working day: the rate in its middle is three times the rate at
    its edges, like the peak of the hourly rate in the trace that Pollux sampled
    (OSDI'21, §5.1).
    """
    share = np.linspace(0.0, 1.0, 2049)
    cumulative = 2.0 * share - np.sin(2.0 * np.pi * share) / (2.0 * np.pi)
    drawn = np.interp(rng.random(num_jobs) * cumulative[-1], cumulative, share)
    return sorted(int(value) for value in drawn * duration_s)


@lru_cache(maxsize=256)
def sensible_requests(
    application: Application, num_gpus: int
) -> tuple[tuple[int, int], ...]:
    """Return the pairs (replicas, total batch) that an experienced user might request.
    There is at least one.
    """
    limits = application.limits
    counts = [
        n
        for n in REPLICA_COUNTS
        if n <= num_gpus and n * limits.min_atomic <= limits.max_total
    ]
    best = {n: _best_request(application, n) for n in counts}
    scaling = {n: best[1][0] / (n * jct_s) for n, (jct_s, _) in best.items()}
    useful = [n for n in counts if scaling[n] > SCALING_EFFICIENCY_MIN]
    fair = [n for n in useful if scaling[n] < SCALING_EFFICIENCY_MAX]
    quick = [n for n in fair if best[n][0] < IDEAL_JCT_MAX_S]
    # If the cluster is too small for a job, its user requests all that the cluster has,
    # and the job takes longer.
    return tuple((n, best[n][1]) for n in quick or fair or useful[-1:])


def _best_request(application: Application, num_replicas: int) -> tuple[float, int]:
    """Return the job's shortest time alone (s), and the total batch that gives it. The
    batches are doublings of the initial batch.
    """
    limits = application.limits
    setting = packed(num_replicas, GPUS_PER_NODE)
    doublings = int(math.log2(limits.max_total / limits.initial))
    totals = [limits.initial * 2**power for power in range(doublings + 1)]
    best = (math.inf, limits.initial)
    for total in (
        total for total in totals if total >= num_replicas * limits.min_atomic
    ):
        batch = split_total(total, num_replicas, limits)
        jct_s = application.steps(total, application.num_epochs) * step_s(
            application, setting, batch
        )
        best = min(best, (jct_s, total))
    return best


def _spec(
    name: str,
    application: ParametricApplication,
    num_replicas: int,
    total: int,
    num_gpus: int,
) -> JobSpec:
    limits = application.limits
    most = max(min(limits.max_total // limits.min_atomic, num_gpus), num_replicas)
    return JobSpec(
        name=name,
        application=application.name,
        batch=BatchLimits(
            initial=limits.initial,
            requested=total,
            max_total=limits.max_total,
            min_atomic=limits.min_atomic,
            max_atomic=limits.max_atomic,
        ),
        replicas=ReplicaLimits(min=1, max=most, requested=num_replicas),
        contract=RescaleContract.ADAPTIVE,
    )
