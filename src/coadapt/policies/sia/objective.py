"""What Sia weighs: the goodput of each job in each configuration of the cluster (Sia,
SOSP 2023, §4).

Axes: J jobs in the order of the view, C configurations.
"""

# A configuration is a GPU type and a number of GPUs: 1, 2, 4, … within a node, then
# whole nodes. There are few of them, and a set of them that fits by count fits by place
# too: parts of nodes are powers of two, and jobs on several nodes have these for
# themselves.
#
# A job runs on one configuration or none. Its value in one is its goodput there over
# that in its weakest one, times the fewest GPUs that it may have. So a value says how
# many times as fast as at its least a job would be, whatever a sample is worth. A power
# p < 0 of it is what the plan pays for the job; a job that gets nothing costs
# queue_cost, which is a little more than any job at its least.
#
# A change costs time, so all other configurations are worth r = (T - N S) / (T + S) of
# their goodput to a job of age T that was rescaled N times at S seconds each.
#
# A job is never given more than twice the GPUs that it was timed on, and starts on its
# fewest. On a type where it was timed on several GPUs its own model speaks. On any
# other it is taken to scale as on the type where it was timed on most, times what one
# GPU does here over what one GPU does there; where not even that is known, as if all
# types were alike.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.table import goodput_table
from coadapt.goodput.throughput import step_time
from coadapt.model import ClusterView, JobView, Node, Placement, RescaleContract
from coadapt.policies.allocation.capacity import gpu_type_held

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# The least that a change may leave of a goodput: a young job that moved often would
# else never move again.
FACTOR_MIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class SiaOptions:
    """What Sia's operator may set. The defaults are those of the paper's evaluation.

    power: p, not 0; below 0 jobs that are slow weigh most. queue_cost: λ, of a job that
    gets nothing.
    growth: the most GPUs that a job is given, over those that it was timed on.
    penalise_start: whether a job that waits pays for its start as for a change, as in
    the authors' code. gap: relative, of the programme.
    """

    power: float = -0.5
    queue_cost: float = 1.1
    growth: float = 2.0
    penalise_start: bool = False
    gap: float = 1e-4

    def __post_init__(self) -> None:
        if not math.isfinite(self.power) or self.power == 0.0:
            raise ValueError(f"power must be finite and not 0, got {self.power}")
        if not (math.isfinite(self.queue_cost) and self.queue_cost > 0.0):
            raise ValueError(
                f"queue_cost must be finite and > 0, got {self.queue_cost}"
            )
        if not self.growth > 1.0:
            raise ValueError(f"growth must be > 1, got {self.growth}")
        if not 0.0 <= self.gap < 1.0:
            raise ValueError(f"gap must be in [0, 1), got {self.gap}")


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """So many GPUs of one type, on as few nodes as possible."""

    gpu_type: str
    num_gpus: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Values:
    """value_JC: goodput over that of the weakest choice, 0 where the job may not run.
    Rescaling not counted.

    guessed: of jobs by index, the GPU types whose speed on several GPUs is borrowed,
    and the type it is from (None: not even one GPU of it was timed).
    """

    value_JC: FloatArray
    guessed: Mapping[tuple[int, str], str | None]


def configurations(
    nodes: Sequence[Node], jobs: Sequence[JobView]
) -> tuple[Configuration, ...]:
    """Return the configurations of the cluster, and those that only some job's fewest
    GPUs demand.
    """
    fewest = {least_gpus(job) for job in jobs}
    found = set()
    for gpu_type in sorted({node.gpu_type for node in nodes}):
        sizes = [node.num_gpus for node in nodes if node.gpu_type == gpu_type]
        largest = max(sizes)
        total = sum(sizes)
        counts = {
            1 << power for power in range(largest.bit_length()) if 1 << power <= largest
        }
        counts |= {largest * number for number in range(1, sizes.count(largest) + 1)}
        counts |= {count for count in fewest if count <= total}
        found |= {
            Configuration(gpu_type, count, -(-count // largest)) for count in counts
        }
    return tuple(sorted(found))


def least_gpus(job: JobView) -> int:
    """Return the fewest GPUs that `job` may have; a frozen job starts with those that
    its user requested.
    """
    frozen = job.spec.contract is RescaleContract.FROZEN
    return job.spec.replicas.requested if frozen else job.spec.replicas.min


def most_gpus(job: JobView, growth: float) -> int:
    """Return the most GPUs that `job` may be given in this round."""
    least = least_gpus(job)
    if job.spec.contract is RescaleContract.FROZEN:
        return least
    limits = limits_in_use(job)
    total = limits.max_total if job.spec.adaptive else limits.requested
    grown = int(growth * job.measured.num_replicas_profiled)
    return max(least, min(grown, job.spec.replicas.max, total // limits.min_atomic))


def values(
    jobs: Sequence[JobView], configs: Sequence[Configuration], options: SiaOptions
) -> Values:
    """Return the worth of each configuration to each job, before any cost of changing
    to it.
    """
    types = sorted({config.gpu_type for config in configs})
    num_gpus_C = np.array([config.num_gpus for config in configs])
    num_nodes_C = np.array([config.num_nodes for config in configs])
    by_model = {
        name: goodput_table(jobs, num_nodes_C, num_gpus_C, gpu_type=name).goodput_JC
        for name in types
    }
    of_type = {
        name: np.array([config.gpu_type == name for config in configs])
        for name in types
    }
    value_JC = np.zeros((len(jobs), len(configs)))
    guessed: dict[tuple[int, str], str | None] = {}
    for row, job in enumerate(jobs):
        least = least_gpus(job)
        most = most_gpus(job, options.growth)
        may_C = (num_gpus_C >= least) & (num_gpus_C <= most)
        source = _best_known(job, types)
        for name in types:
            here_C = of_type[name] & may_C
            if not job.spec.replicas.allows_type(name) or not here_C.any():
                continue
            known = job.measured.by_type.get(name)
            if source is None:
                value_JC[row, here_C] = 1.0
            elif known is not None and (
                known.num_replicas_profiled > 1 or source == name
            ):
                value_JC[row, here_C] = by_model[name][row, here_C]
            else:
                ratio = 1.0 if known is None else alone(job, name) / alone(job, source)
                value_JC[row, here_C] = by_model[source][row, here_C] * ratio
                guessed[row, name] = source if known is not None else None
        _scale(value_JC[row], least)
    return Values(value_JC, guessed)


def rescale_factor(job: JobView, at: float) -> float:
    """Return r in [FACTOR_MIN, 1]: what a change leaves of a goodput (Sia, §4.2)."""
    age_s = max(at - job.submitted_at, 0.0)
    cost_s = job.rescale_s
    if age_s < cost_s or age_s + cost_s <= 0.0:
        return 1.0
    return max((age_s - job.usage.num_rescales * cost_s) / (age_s + cost_s), FACTOR_MIN)


def held(
    job: JobView, view: ClusterView, configs: Sequence[Configuration]
) -> int | None:
    """Return the index of what `job` holds, whole GPUs on live nodes; None if it is no
    configuration.
    """
    gpu_type = gpu_type_held(job, {node.id: node for node in view.nodes})
    if gpu_type is None or job.allocation.shared:
        return None
    for index, config in enumerate(configs):
        if (
            config.gpu_type == gpu_type
            and config.num_gpus == job.allocation.num_replicas
        ):
            return index
    return None


def costs(
    view: ClusterView,
    jobs: Sequence[JobView],
    configs: Sequence[Configuration],
    value_JC: FloatArray,
    options: SiaOptions,
) -> FloatArray:
    """Return what a plan pays for each job in each configuration, less what it saves by
    not queueing it.

    Infinite where the job may not run; above 0 where queueing is better.
    """
    worth_JC = value_JC.copy()
    for row, job in enumerate(jobs):
        if not (job.allocation or options.penalise_start):
            continue
        factor_C = np.full(len(configs), rescale_factor(job, view.at))
        present = held(job, view, configs)
        if present is not None:
            factor_C[present] = 1.0
        worth_JC[row] *= factor_C
    with np.errstate(divide="ignore"):
        paid_JC = -math.copysign(1.0, options.power) * worth_JC**options.power
    return np.where(value_JC > 0.0, paid_JC - options.queue_cost, np.inf)


def _best_known(job: JobView, types: Sequence[str]) -> str | None:
    """Return the type, of those in the cluster, on which most GPUs were timed; the
    first by name on ties.
    """
    known = [name for name in types if name in job.measured.by_type]
    most = {name: job.measured.by_type[name].num_replicas_profiled for name in known}
    return (
        max(known, key=most.__getitem__, default=None)
        if job.usage.started_at is not None
        else None
    )


def alone(job: JobView, gpu_type: str) -> float:
    """Return samples per second on one GPU of `gpu_type`, at the largest batch of one
    pass.
    """
    profile = job.measured.by_type[gpu_type]
    limits = limits_in_use(job, gpu_type)
    atomic = float(min(limits.max_atomic or limits.max_total, limits.max_total))
    return atomic / float(step_time(profile.params, Placement((1,)), atomic))


def _scale(value_C: FloatArray, least: int) -> None:
    """Scale a row so that its least entry above 0 is the job's fewest GPUs."""
    lawful = value_C > 0.0
    if lawful.any():
        value_C *= least / value_C[lawful].min()
