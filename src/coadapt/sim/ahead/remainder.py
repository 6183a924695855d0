"""What is left of a live job, with its uncertainty, and its speed on an allocation."""

# What is left is known in one of several ways, the first that applies. Each has a
# relative error of its own, the standard deviation of the logarithm.
#
# 1. The job reports its progress and its end (`progress_target`), and was timed.
# 2. It reports how many seconds are left (the trainer status protocol).
# 3. It reports its progress and its end, and was not timed: its mean speed so far.
# 4. Nothing of this: it is taken to need as many GPU-seconds as one of the jobs that
#    ended, drawn from those of its application or else of all, that needed more than it
#    has used.
# 5. No such job: as many GPU-seconds again as it has used, at least ten minutes of one
#    GPU. By a factor of e more or less: a guess.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from coadapt.core.accounting import job_view, num_gpus_held
from coadapt.core.state import JobRecord
from coadapt.goodput.table import goodput_table
from coadapt.model import Allocation, JobView, Node, NodeId
from coadapt.model.measured import PERCENT_DONE, REMAINING_S

GUESS_MIN_GPU_S = 600.0
# Progress and noise change over a job's life; a mean speed hides starts and rescales.
SPREAD_TIMED = 0.10
SPREAD_TOLD = 0.15
SPREAD_MEAN_SPEED = 0.25
SPREAD_LIKE_OTHERS = 0.10
SPREAD_GUESS = 1.0
# Of the variance of a guess, the part that all jobs share.
COMMON = 0.5


class Source(StrEnum):
    """How what is left of a job is known."""

    TIMED = "timed"
    REPORTED = "reported"
    MEAN_SPEED = "mean speed"
    LIKE_OTHERS = "like jobs that ended"
    GUESS = "guess"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWork:
    """GPU-seconds of jobs that succeeded, by application; "" has those of all."""

    gpu_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def resampled(self, random: np.random.Generator) -> "EndedWork":
        """Return as many of them, drawn with replacement: how long jobs are in general
        is known from few.
        """
        return EndedWork(
            gpu_s={
                name: random.choice(known, len(known)).tolist()
                for name, known in sorted(self.gpu_s.items())
                if len(known)
            }
        )

    def longer_than(self, application: str, gpu_s: float) -> list[float]:
        """Return what jobs of the application needed, of those that needed more."""
        for name in (application, ""):
            longer = [each for each in self.gpu_s.get(name, ()) if each > gpu_s]
            if longer:
                return longer
        return []


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """What is left of one job, in units of its own.

    draws: what may be left, one of them is drawn; each with a relative error `spread`.
    """

    view: JobView
    source: Source
    draws: tuple[float, ...]
    spread: float

    def draw(self, random: np.random.Generator, common: float) -> float:
        """Return what is left, drawn. common: a standard normal draw for all jobs: who
        guesses one of them wrong guesses the others wrong alike.
        """
        chosen = self.draws[int(random.integers(len(self.draws)))]
        part = COMMON if self.source is Source.GUESS else 0.0
        own = float(random.standard_normal())
        error = math.sqrt(part) * common + math.sqrt(1.0 - part) * own
        return chosen * math.exp(self.spread * error)

    def rate(self, allocation: Allocation, nodes: Mapping[NodeId, Node]) -> float:
        """Return units per second on an allocation, a share of a GPU as its part."""
        there = [nodes[node] for node, _ in allocation.slots if node in nodes]
        if not there:
            return 0.0
        racks = len({node.rack for node in there})
        key = (
            len(there),
            allocation.num_replicas,
            there[0].gpu_type,
            racks,
        )
        if key not in self._rates:
            table = goodput_table(
                [self.view],
                [key[0]],
                [key[1]],
                gpu_type=key[2],
                num_racks_C=[key[3]],
            )
            goodput = float(table.goodput_JC[0, 0])
            # The limits of the batch may rule this size out: the job trains on it all
            # the same, at its mean speed so far.
            self._rates[key] = goodput or key[1] * self._mean_rate
        return self._rates[key] * allocation.gpu_share

    @property
    def _mean_rate(self) -> float:
        """Return units per second and GPU so far, 1 before the job has trained."""
        used = self.view.usage.attained_service_gpu_s
        progress = self.view.measured.progress
        return progress / used if progress > 0.0 and used > 0.0 else 1.0

    @cached_property
    def _rates(self) -> dict[tuple[int, int, str, int], float]:
        return {}


def remainder_of(
    job: JobRecord, nodes: Mapping[NodeId, Node], at: float, ended: EndedWork
) -> Remainder:
    """Return what is left of a live job at `at` (s), as its last report shows."""
    view = job_view(job, 0.0)
    measured = job.measured
    gpu_s = _service_gpu_s(job, at)
    timed = bool(measured.by_type)
    left: float | None = None
    if measured.progress_target is not None:
        left = max(measured.progress_target - measured.progress, 0.0)
    if left is not None and timed:
        return Remainder(
            view=view, source=Source.TIMED, draws=(left,), spread=SPREAD_TIMED
        )
    remaining_s = measured.metrics.get(REMAINING_S)
    if remaining_s is not None and job.trains_on and not timed:
        units = remaining_s * job.trains_on.num_replicas
        return Remainder(
            view=view, source=Source.REPORTED, draws=(units,), spread=SPREAD_TOLD
        )
    share = _share_done(job, left)
    if share is not None and gpu_s > 0.0 and not timed:
        units = gpu_s * (1.0 - share) / share
        return Remainder(
            view=view,
            source=Source.MEAN_SPEED,
            draws=(units,),
            spread=SPREAD_MEAN_SPEED,
        )
    return _of_unknown_length(
        job, view, nodes, ended.longer_than(job.spec.application, gpu_s), gpu_s
    )


def _share_done(job: JobRecord, left: float | None) -> float | None:
    """Return the part of the job that is done, in (0, 1); None if it is not known."""
    percent = job.measured.metrics.get(PERCENT_DONE)
    if left is not None and job.measured.progress > 0.0:
        share = job.measured.progress / (job.measured.progress + left)
    elif percent is not None:
        share = percent / 100.0
    else:
        return None
    return share if 0.0 < share < 1.0 else None


def _service_gpu_s(job: JobRecord, at: float) -> float:
    """Return the GPU-seconds that a job has used up to `at` (s)."""
    until = max(at, job.usage.accounted_at)
    return job.usage.upto(until, num_gpus_held(job)).attained_service_gpu_s


def _of_unknown_length(
    job: JobRecord,
    view: JobView,
    nodes: Mapping[NodeId, Node],
    longer: Sequence[float],
    used: float,
) -> Remainder:
    """Return what is left of a job that has used `used` GPU-seconds.

    longer: what jobs like it needed that needed more.
    """
    found = [each - used for each in longer] or [max(used, GUESS_MIN_GPU_S)]
    remainder = Remainder(
        view=view,
        source=Source.LIKE_OTHERS if longer else Source.GUESS,
        draws=(1.0,),
        spread=SPREAD_LIKE_OTHERS if longer else SPREAD_GUESS,
    )
    # GPU-seconds in units of the job: at the rate per GPU of what it holds, or of what
    # it asks for on one node.
    allocation = job.trains_on or _asked_for(job, nodes)
    rate = remainder.rate(allocation, nodes) if allocation else 0.0
    per_gpu = rate / allocation.num_gpus if rate > 0.0 else 1.0
    return Remainder(
        view=view,
        source=remainder.source,
        draws=tuple(each * per_gpu for each in found),
        spread=remainder.spread,
    )


def _asked_for(job: JobRecord, nodes: Mapping[NodeId, Node]) -> Allocation:
    count = job.spec.replicas.requested
    for node in sorted(nodes.values(), key=lambda node: (-node.num_gpus, node.id)):
        if job.spec.replicas.allows_type(node.gpu_type):
            return Allocation(slots=((node.id, max(min(count, node.num_gpus), 1)),))
    return Allocation()
