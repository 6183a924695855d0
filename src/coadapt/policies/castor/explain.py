"""Explanations for users: what a job gets, when it starts or ends, and what more GPUs
would bring.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.model import Allocation, JobId, JobSpec, JobView, TenantId
from coadapt.policies.allocation.reasons import gets, plural
from coadapt.policies.base import Prediction
from coadapt.policies.castor.round import Sizes
from coadapt.policies.castor.situation import ROUND_S, Situation, least
from coadapt.policies.castor.topology import Topology
from coadapt.policies.predictors.prediction_intervals import (
    NO_PREDICTION,
    Predictions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decided round, which is to be explained: the situation, the chosen sizes, the
    allocations, the predictions of ends and starts, and the starts that may be shown.
    """

    now: Situation
    sizes: Sizes
    placed: Mapping[JobId, Allocation]
    predictions: Predictions
    starts: Predictions
    shown: Mapping[JobId, Prediction]


def explained(decided: Decided) -> dict[JobId, str]:
    """Return a sentence for each job that the round could move."""
    sentences = _of_placed(decided)
    for job in decided.now.jobs:
        if job.id not in decided.placed:
            within = decided.shown.get(job.id, NO_PREDICTION)
            sentences[job.id] = _start(decided.starts, job.id, within)
    return sentences


def shown_starts(
    now: Situation, placed: Mapping[JobId, Allocation], starts: Predictions
) -> dict[JobId, Prediction]:
    """Return when waiting jobs start, in seconds from now, as it may be shown.

    A job is left out if its start is not predicted, or if the cluster's size or its
    quota forbids it. There are none until enough predictions were checked.
    """
    if not starts.has_past:
        return {}
    held_by: Counter[TenantId] = Counter()
    waiting = []
    for job in now.jobs:
        if job.id in placed:
            held_by[job.spec.tenant] += placed[job.id].num_replicas
        else:
            waiting.append(job)
    able = [
        job.id
        for job in waiting
        if not _barred(now.topology, job.spec, held_by[job.spec.tenant])
    ]
    ranges = zip(able, starts.ranges(able), strict=True)
    return {job: within for job, within in ranges if within.end_at < math.inf}


def fixed_reasons(jobs: Iterable[JobView], topology: Topology) -> dict[JobId, str]:
    """Return the sentences of frozen jobs that have run before."""
    found = {}
    for job in jobs:
        if job.id in topology.kept:
            found[job.id] = f"{gets(job, job.allocation)}: its contract is frozen"
        elif job.id in topology.stranded:
            found[job.id] = "its contract is frozen, and it cannot stay there"
    return found


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min`, `2 h 10 min`, `3 days`."""
    if seconds < 90.0:
        return f"{round(max(seconds, 0.0))} s"
    minutes = round(min(seconds / 60.0, 1e15))
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{round(minutes / (24 * 60))} days"


def _of_placed(decided: Decided) -> dict[JobId, str]:
    """Return sentences of jobs with GPUs: their GPUs, their end, and the next size."""
    now = decided.now
    rows = [row for row, job in enumerate(now.jobs) if job.id in decided.placed]
    ranges = [NO_PREDICTION] * len(rows)
    if decided.predictions.has_past:
        ranges = decided.predictions.ranges([now.jobs[row].id for row in rows])
    return {
        now.jobs[row].id: _of_one(decided, row, within)
        for row, within in zip(rows, ranges, strict=True)
    }


def _of_one(decided: Decided, row: int, within: Prediction) -> str:
    job = decided.now.jobs[row]
    placed = decided.placed[job.id]
    change = gets(job, placed, *_type_names(decided, row))
    larger = _next_size(decided, row)
    brings = "its size is decided once it reports a step"
    if decided.now.timed[row]:
        brings = _brings(placed.num_replicas, larger)
    return f"{change}{_end(decided, row, within, larger.left_s)}; {brings}"


def _end(decided: Decided, row: int, within: Prediction, left_s: float) -> str:
    """Return when a job ends, "" if that is unknown. left_s: at its present goodput."""
    if within.end_at < math.inf:
        end, low, high = (duration(each) for each in within)
        return f"; ends in about {end} (90 %: {low} to {high})"
    is_measured = decided.now.timed[row] and not decided.predictions.has_past
    if is_measured and left_s < math.inf:
        return f"; about {duration(left_s)} left at its measured speed"
    return ""


def _type_names(decided: Decided, row: int) -> tuple[str, str]:
    """Return the GPU types that a job held and gets; empty names if the cluster has
    only one type.
    """
    names = decided.now.topology.names
    if len(names) == 1:
        return "", ""
    of_type, *_, replicas = decided.now.sources.steps.held_JX[row].tolist()
    got = names[decided.sizes.types[decided.now.jobs[row].id]]
    return names[of_type] if replicas else "", got


class _NextSize(NamedTuple):
    """The next larger size of a job. extra: additional GPUs, 0 if there is no such
    size.

    speedup: goodput on the next size over the present goodput. left_s: seconds to the
    job's end at its present goodput. then_s: seconds to its end on the next size,
    rescale included. Infinity: unknown.
    """

    extra: int
    speedup: float
    left_s: float
    then_s: float


def _next_size(decided: Decided, row: int) -> _NextSize:
    now = decided.now
    job = now.jobs[row].id
    count = decided.placed[job].num_replicas
    of_type = decided.sizes.types.get(job, 0)
    can_C = (now.configs.type_C == of_type) & (now.goodput_JC[row] > 0.0)
    gpus = now.configs.gpus_C[can_C]  # ascending
    goodputs = now.goodput_JC[row, can_C]
    place = int(np.searchsorted(gpus, count))
    here = float(now.here[row])
    if place < len(gpus) and gpus[place] == count:
        here = float(goodputs[place])
        place += 1
    left = float(now.left[row])
    left_s = left / here if here > 0.0 else math.inf
    if place == len(gpus):
        return _NextSize(0, 0.0, left_s, math.inf)
    there = float(goodputs[place])
    return _NextSize(
        int(gpus[place]) - count,
        there / here if here > 0.0 else math.inf,
        left_s,
        left / there + float(now.rescale_s[row]),
    )


def _brings(count: int, larger: _NextSize) -> str:
    """Return what the next larger size would bring to a job of `count` GPUs."""
    if not larger.extra:
        return f"{count} is the most that it may hold now"
    more = plural(larger.extra, "more GPU")
    if not math.isfinite(larger.left_s):
        if math.isfinite(larger.speedup):
            return f"{more} would make it {larger.speedup:.1f} times as fast"
        return f"{more} would make it train"
    saved_s = larger.left_s - larger.then_s
    if saved_s < 1.0:
        return f"{more} would not end it sooner"
    then = duration(larger.then_s)
    left = duration(larger.left_s)
    if then == left:
        return f"{more} would end it {duration(saved_s)} sooner"
    return f"{more} would end it in about {then} instead of {left}"


def _start(starts: Predictions, job: JobId, within: Prediction) -> str:
    """Return when a waiting job starts, by the interval in seconds from now; "" if
    that is not predicted.

    A job that did not start within its first interval gets no further one.
    """
    if within.end_at == math.inf or starts.missed(job):
        return ""
    after, low, high = (duration(each) for each in within)
    if within.end_at <= ROUND_S:
        return f"starts soon (90 %: within {high})"
    return f"starts in about {after} (90 %: {low} to {high})"


def _barred(topology: Topology, spec: JobSpec, held: int) -> bool:
    """Return whether the job cannot start because of the cluster's size or its quota.

    held: GPUs that the plan gives to the job's tenant.
    """
    need = least(spec)
    allowed = [
        each.num_gpus
        for each in topology.gpu_types
        if spec.replicas.allows_type(each.name)
    ]
    left = topology.quota_left.get(spec.tenant, math.inf) - held
    return need > max(allowed, default=0) or left < need
