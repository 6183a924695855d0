"""What castor tells users: what a job gets, when it ends, what more GPUs would save it and cost others."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from coadapt.model import Allocation, JobId, JobView
from coadapt.policies.base import Prediction
from coadapt.policies.castor.cluster import Standing
from coadapt.policies.castor.facts import least
from coadapt.policies.castor.fairness import ROUND_S
from coadapt.policies.castor.predictions import Predictions
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
    predictions: Predictions
    starts: Predictions
    at: float


def explained(told: Told) -> dict[JobId, str]:
    """Return a sentence for each job that could be moved."""
    why: dict[JobId, str] = {}
    market, ladders = _market(told), _ladders(told.now.configs)
    for row, job in enumerate(told.now.jobs):
        allocation = told.placed.get(job.id)
        if allocation:
            more = _more(told, row, allocation.num_replicas, ladders)
            change = gets(job, allocation, *_types(told, row, job.id))
            why[job.id] = f"{change}{_ends(told, job)}; {more}"
        else:
            why[job.id] = f"{_waits(told, row, market)}{_starts(told, job)}"
    return why


def _types(told: Told, row: int, job: JobId) -> tuple[str, str]:
    """Return the GPU types that a job held and gets, empty where the cluster has one."""
    kinds = told.standing.kinds
    if len(kinds) == 1:
        return "", ""
    of_type, *_, replicas = told.now.held_JX[row].tolist()
    return kinds[of_type].gpu_type if replicas else "", kinds[told.sizes.types[job]].gpu_type


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
    return _minutes(round(seconds / 60.0))


@lru_cache(maxsize=4096)  # several hundred in each round, mostly the same
def _minutes(minutes: int) -> str:
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 1440:.0f} days"


def _ends(told: Told, job: JobView) -> str:
    said = told.predictions.of(job.id)
    return "" if said is None else f"; ends in about {_in(told, said)}"


def _in(told: Told, said: Prediction) -> str:
    low, high = duration(said.low_at - told.at), duration(said.high_at - told.at)
    return f"{duration(said.end_at - told.at)} (nine of ten: {low} to {high})"


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
    """free: how many GPUs are, and what an hour of one saves others; own_J: and what it saves each job, s.

    held: GPUs by tenant. room: GPUs to plan with on the largest type that a job may have, by its types.
    """

    free: str
    own_J: list[float]
    held: Mapping[str, int]
    room: dict[tuple[str, ...], int]


def _market(told: Told) -> _Market:
    now, value_J = told.now, told.outlook.value_J
    held: dict[str, int] = {}
    for job in now.jobs:
        if job.id in told.placed:
            held[job.spec.tenant] = held.get(job.spec.tenant, 0) + told.placed[job.id].num_replicas
    each_JC = now.goodput_JC / now.configs.gpus_C
    idle = max(sum(kind.num_gpus for kind in told.standing.kinds) - sum(held.values()), 0)
    price = duration(float(told.sizes.price_T.max(initial=0.0)) * S_PER_HOUR)
    own_J = value_J * each_JC.max(axis=1, initial=0.0) * S_PER_HOUR
    free = f"{idle} {'is' if idle == 1 else 'are'} free"
    return _Market(f"{free}; an hour of a GPU saves the others {price}", own_J.tolist(), held, {})


def _waits(told: Told, row: int, market: _Market) -> str:
    job = told.now.jobs[row]
    spec, held, need = job.spec, job.allocation.num_replicas, least(job.spec)
    change = f"gives up its {plural(held, 'GPU')} and waits" if held else "waits"
    most = market.room.get(spec.replicas.gpu_types)
    if most is None:
        kinds = [kind for kind in told.standing.kinds if spec.replicas.allows_type(kind.gpu_type)]
        most = market.room[spec.replicas.gpu_types] = max((kind.num_gpus for kind in kinds), default=-1)
    if most < 0:
        return f"{change}: no live node has GPUs of {spec.replicas.types_in_words}"
    if need > most:
        wanted = f"{plural(need, 'GPU')} of {spec.replicas.types_in_words}"
        return f"{change}: needs {wanted}, and there are {most} to plan with"
    left = told.standing.quota_left.get(spec.tenant, math.inf) - market.held.get(spec.tenant, 0)
    if left < need:
        return f"{change}: needs {plural(need, 'GPU')}, tenant {spec.tenant} may hold {max(left, 0):g} more"
    return f"{change}: needs {plural(need, 'GPU')}, {market.free}, it {duration(market.own_J[row])}"


def _starts(told: Told, job: JobView) -> str:
    said = told.starts.of(job.id)
    if said is None:
        return ""
    if said.end_at - told.at <= ROUND_S:  # it would now, if others' changes cost nothing
        return f"; starts soon (nine of ten: within {duration(said.high_at - told.at)})"
    return f"; starts in about {_in(told, said)}"
