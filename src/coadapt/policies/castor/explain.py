"""What castor tells users: what a job gets, when it ends, what more GPUs would save it and cost others."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from coadapt.model import Allocation, JobId, JobView
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.cluster import Standing
from coadapt.policies.castor.facts import least
from coadapt.policies.castor.fairness import ROUND_S
from coadapt.policies.castor.predictions import Predictions
from coadapt.policies.castor.round import Sizes
from coadapt.policies.castor.situation import Situation
from coadapt.policies.castor.values import Outlook
from coadapt.policies.giving.reasons import gets, plural

S_PER_HOUR = 3_600.0
SHORT_S = 90.0  # less is told in seconds


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
    market, offers = _market(told), _offers(told)
    names, placed = [job.id for job in told.now.jobs], told.placed
    ends = _ends(told, [name for name in names if placed.get(name)])
    starts = _starts(told, [name for name in names if not placed.get(name)])
    for row, job in enumerate(told.now.jobs):
        allocation = placed.get(job.id)
        if allocation:
            more = _more(told, row, allocation.num_replicas, offers)
            change = gets(job, allocation, *_types(told, row, job.id))
            why[job.id] = f"{change}{ends.get(job.id, '')}; {more}"
        else:
            why[job.id] = f"{_waits(told, row, market)}{starts.get(job.id, '')}"
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


def durations(seconds_X: FloatArray) -> list[str]:
    """Return `45 s`, `12 min`, `2 h 10 min`, `3 days` for each."""
    count_X = np.rint(np.where(seconds_X < SHORT_S, np.minimum(-seconds_X, 0.0), seconds_X / 60.0))
    return list(map(_in_words, count_X.tolist()))


def duration(seconds: float) -> str:
    """Return the same for one."""
    return _in_words(float(round(min(-seconds, 0.0) if seconds < SHORT_S else seconds / 60.0)))


@lru_cache(maxsize=4096)  # several hundred in each round, mostly the same
def _in_words(minutes: float) -> str:
    """Return so many minutes in words; below 0: seconds."""
    if minutes <= 0.0:
        return f"{abs(minutes):.0f} s"
    if minutes < 90:
        return f"{minutes:.0f} min"
    if minutes < 48 * 60:
        return f"{minutes // 60:.0f} h {minutes % 60:.0f} min"
    return f"{minutes / 1440:.0f} days"


def _ends(told: Told, jobs: Sequence[JobId]) -> dict[JobId, str]:
    """Return when each of these jobs ends, where that was foretold."""
    known, said_3J = told.predictions.said(jobs)
    words = zip(known, *map(durations, said_3J - told.at), strict=True)
    return {job: f"; ends in about {after} (nine of ten: {low} to {high})" for job, after, low, high in words}


def _starts(told: Told, jobs: Sequence[JobId]) -> dict[JobId, str]:
    """Return when each of these jobs starts, likewise."""
    known, said_3J = told.starts.said(jobs)
    soon = (said_3J[0] - told.at <= ROUND_S).tolist()  # it would now, if others' changes cost nothing
    words = zip(known, soon, *map(durations, said_3J - told.at), strict=True)
    return {
        job: f"; starts soon (nine of ten: within {high})"
        if is_soon
        else f"; starts in about {after} (nine of ten: {low} to {high})"
        for job, is_soon, after, low, high in words
    }


class _Ladder(NamedTuple):
    """The configurations of one GPU type, by size: columns, and their replicas, ascending."""

    columns: list[int]
    counts: list[int]


class _Offers(NamedTuple):
    """What larger sizes follow from: ladders and the price of a GPU by type; the others by row of a job."""

    ladders: dict[int, _Ladder]
    prices: list[float]
    timed: list[bool]
    here: list[float]
    values: list[float]


def _offers(told: Told) -> _Offers:
    now, configs = told.now, told.now.configs
    ladders: dict[int, _Ladder] = {}
    order_C = np.argsort(configs.gpus_C, kind="stable")
    of_type, gpus = configs.type_C.tolist(), configs.gpus_C.tolist()
    for column in order_C.tolist():
        ladder = ladders.setdefault(of_type[column], _Ladder([], []))
        ladder.columns.append(column)
        ladder.counts.append(gpus[column])
    by_row = (now.timed_J.tolist(), now.here_J.tolist(), told.outlook.value_J.tolist())
    return _Offers(ladders, told.sizes.price_T.tolist(), *by_row)


def _more(told: Told, row: int, count: int, offers: _Offers) -> str:
    """Return what the next size would save the job, and cost the others at the price of a GPU."""
    if not offers.timed[row]:
        return "more is decided once its first steps were timed"
    of_type = told.sizes.types.get(told.now.jobs[row].id, 0)
    goodputs, (columns, counts) = told.now.goodput_JC[row].tolist(), offers.ladders[of_type]
    larger = bisect_right(counts, count)
    place = larger - 1
    while larger < len(columns) and goodputs[columns[larger]] <= 0.0:
        larger += 1
    if larger == len(columns):
        return f"{count} is the most that it may hold now"
    goodput = offers.here[row]
    if place >= 0 and counts[place] == count and goodputs[columns[place]] > 0.0:
        goodput = goodputs[columns[place]]
    extra = counts[larger] - count
    saves_s = offers.values[row] * (goodputs[columns[larger]] - goodput) * S_PER_HOUR
    costs_s = offers.prices[of_type] * extra * S_PER_HOUR
    return (
        f"{plural(extra, 'more GPU')} for an hour would save it "
        f"{duration(saves_s)} and cost the others {duration(costs_s)}"
    )


@dataclass(frozen=True, slots=True)
class _Market:
    """free: how many GPUs are, and what an hour of one saves others; own: and what it saves each job.

    held: GPUs by tenant. room: GPUs to plan with on the largest type that a job may have, by its types.
    """

    free: str
    own: list[str]
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
    return _Market(f"{free}; an hour of a GPU saves the others {price}", durations(own_J), held, {})


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
    return f"{change}: needs {plural(need, 'GPU')}, {market.free}, it {market.own[row]}"
