"""What castor tells users: what a job gets, when it ends, what more GPUs would save it and cost others."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.model import WAITING, Allocation, JobId, JobView
from coadapt.policies.castor.cluster import Standing, limits
from coadapt.policies.castor.predictions import Prediction
from coadapt.policies.castor.rates import Configs
from coadapt.policies.castor.round import Sizes
from coadapt.policies.castor.situation import Situation
from coadapt.policies.castor.values import Outlook
from coadapt.policies.giving.reasons import gets, plural

S_PER_HOUR = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a round has to tell from: the situation, its outlook, what was chosen, and where it was placed."""

    now: Situation
    outlook: Outlook
    sizes: Sizes
    placed: Mapping[JobId, Allocation]
    standing: Standing
    predictions: Mapping[JobId, Prediction]
    at: float


def explained(told: Told) -> dict[JobId, str]:
    """Return a sentence for each job that could be moved."""
    why: dict[JobId, str] = {}
    market, ladders = _market(told), _ladders(told.now.configs)
    held: dict[str, float] = {}
    for job in told.now.jobs:
        held[job.spec.tenant] = held.get(job.spec.tenant, 0) + told.placed.get(job.id, WAITING).num_replicas
    for row, job in enumerate(told.now.jobs):
        allocation = told.placed.get(job.id)
        if allocation:
            parts = [
                gets(job, allocation),
                _ends(told, job),
                _more(told, row, allocation.num_replicas, ladders),
            ]
        else:
            parts = [_waits(told, row, held[job.spec.tenant], market), _starts(told, row)]
        why[job.id] = "; ".join(part for part in parts if part)
    return why


def stands(job: JobView, standing: Standing) -> str:
    """Return the sentence of a frozen job that has run before."""
    if job.id in standing.kept:
        return f"{gets(job, job.allocation)}: its contract is frozen"
    held = plural(job.allocation.num_replicas, "GPU")
    return f"gives up its {held} and waits: frozen, and it cannot stay there"


def duration(seconds: float) -> str:
    """Return `45 s`, `12 min`, `2 h 10 min`, `3 days`."""
    if seconds < 90.0:
        return f"{max(seconds, 0.0):.0f} s"
    minutes = round(seconds / 60.0)
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 1440:.0f} days"


def _ends(told: Told, job: JobView) -> str:
    said = told.predictions.get(job.id)
    if said is None:
        return ""
    low, high = duration(said.low_at - told.at), duration(said.high_at - told.at)
    return f"ends in about {duration(said.end_at - told.at)} (nine of ten: {low} to {high})"


class _Ladder(NamedTuple):
    """The configurations of one GPU type, by size: columns, and their replicas, ascending."""

    columns: list[int]
    counts: list[int]


def _ladders(configs: Configs) -> dict[int, _Ladder]:
    ladders: dict[int, _Ladder] = {}
    order_C = np.argsort(configs.gpus_C, kind="stable")
    for column in order_C.tolist():
        ladder = ladders.setdefault(int(configs.type_C[column]), _Ladder([], []))
        ladder.columns.append(column)
        ladder.counts.append(int(configs.gpus_C[column]))
    return ladders


def _more(told: Told, row: int, count: int, ladders: Mapping[int, _Ladder]) -> str:
    """Return what the next size would save the job, and cost the others at the price of a GPU."""
    now, job = told.now, told.now.jobs[row]
    of_type = told.sizes.types.get(job.id, 0)
    if not now.timed_J[row]:
        return "more is decided once its first steps were timed"
    columns, counts = ladders[of_type]
    larger = bisect_right(counts, count)
    place = larger - 1
    while larger < len(columns) and now.goodput_JC[row, columns[larger]] <= 0.0:
        larger += 1
    if larger == len(columns):
        return f"{count} is the most that it may hold now"
    goodput = float(now.here_J[row])
    if place >= 0 and counts[place] == count and now.goodput_JC[row, columns[place]] > 0.0:
        goodput = float(now.goodput_JC[row, columns[place]])
    extra = counts[larger] - count
    gained = float(now.goodput_JC[row, columns[larger]]) - goodput
    saves_s = float(told.outlook.value_J[row]) * gained * S_PER_HOUR
    costs_s = float(told.sizes.price_T[of_type]) * extra * S_PER_HOUR
    return (
        f"{plural(extra, 'more GPU')} for an hour would save it "
        f"{duration(saves_s)} and cost the others {duration(costs_s)}"
    )


@dataclass(frozen=True, slots=True)
class _Market:
    """free: how many GPUs are, and what an hour of one saves others; own_J: and what it saves each job, s."""

    free: str
    own_J: list[float]


def _market(told: Told) -> _Market:
    used = sum(allocation.num_replicas for allocation in told.placed.values())
    now, value_J = told.now, told.outlook.value_J
    each_JC = now.goodput_JC / now.configs.gpus_C
    idle = max(sum(kind.num_gpus for kind in told.standing.kinds) - used, 0)
    price = duration(float(told.sizes.price_T.max(initial=0.0)) * S_PER_HOUR)
    own_J = value_J * each_JC.max(axis=1, initial=0.0) * S_PER_HOUR
    free = f"{idle} {'is' if idle == 1 else 'are'} free"
    return _Market(f"{free}; an hour of a GPU saves the others {price}", own_J.tolist())


def _waits(told: Told, row: int, tenant_holds: float, market: _Market) -> str:
    job = told.now.jobs[row]
    held = job.allocation.num_replicas
    change = f"gives up its {plural(held, 'GPU')} and waits" if held else "waits"
    need, _ = limits(job)
    kinds = [kind for kind in told.standing.kinds if job.spec.replicas.allows_type(kind.gpu_type)]
    if not kinds:
        return f"{change}: no live node has GPUs of {job.spec.replicas.types_in_words}"
    most = max(kind.num_gpus for kind in kinds)
    if need > most:
        wanted = f"{plural(need, 'GPU')} of {job.spec.replicas.types_in_words}"
        return f"{change}: needs {wanted}, and there are {most} to plan with"
    left = told.standing.quota_left.get(job.spec.tenant, math.inf) - tenant_holds
    if left < need:
        return (
            f"{change}: needs {plural(need, 'GPU')}, tenant {job.spec.tenant} may hold {max(left, 0):g} more"
        )
    return f"{change}: needs {plural(need, 'GPU')}, {market.free}, it {duration(market.own_J[row])}"


def _starts(told: Told, row: int) -> str:
    in_s = float(told.outlook.course.start_J[row])
    return f"starts in about {duration(in_s)}" if 60.0 < in_s < math.inf else ""
