"""What castor tells users: what a job gets, when it ends, what more GPUs would save it and cost others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import Allocation, JobId, JobSpec, JobView, TenantId
from coadapt.policies.castor.arrays import FloatArray, IntArray
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
SHORT_S = 90.0  # less is told in seconds
DAY, DAYS_FROM = 1_440, 2_880  # minutes; more is told in days
COUNT_MAX = 1e15  # minutes; more is told as so many


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


def explained(told: Told) -> dict[JobId, str]:
    """Return a sentence for each job that could be moved."""
    now, placed = told.now, told.placed
    given = sorted([now.job_rows.row_of[job] for job in placed])
    left = [row for row, job in enumerate(now.job_rows.row_of) if job not in placed]
    ends_s_3G, starts_s_3L = told.predictions.said(given), told.starts.said(left)
    larger, price_s = (
        _larger(told, given),
        told.sizes.price_T.max(initial=0.0) * S_PER_HOUR,
    )
    seconds = (
        *ends_s_3G,
        larger.saves_s_G,
        larger.costs_s_G,
        *starts_s_3L,
        _earns_s(told, left),
    )
    *words, earns, (price,) = in_words(*seconds, np.array([price_s]))
    ends, more = _ends(ends_s_3G, words[:3]), _more(now, given, larger, words[3:5])
    why: dict[JobId, str] = {}
    for row, end, next_size in zip(given, ends, more, strict=True):
        job = now.jobs[row]
        change = gets(job, placed[job.id], *_types(told, row, job.id))
        why[job.id] = f"{change}{end}; {next_size}"
    starts = _starts(starts_s_3L, words[5:])
    likes = now.known.numbers.like_J[left].tolist()
    needs_of = _needs_of(told, dict(zip(likes, left, strict=True)), price)
    for row, like, start, saves in zip(left, likes, starts, earns, strict=True):
        job, (needs, priced) = now.jobs[row], needs_of[like]
        held = job.grant.allocation
        change = (
            f"gives up its {plural(held.num_replicas, 'GPU')} and waits"
            if held.slots
            else "waits"
        )
        why[job.id] = (
            f"{change}: {needs}, it {saves}{start}"
            if priced
            else f"{change}: {needs}{start}"
        )
    return why


def _types(told: Told, row: int, job: JobId) -> tuple[str, str]:
    """Return the GPU types that a job held and gets, empty where the cluster has one."""
    kinds = told.standing.kinds
    if len(kinds) == 1:
        return "", ""
    of_type, *_, replicas = told.now.sources.steps.held_JX[row].tolist()
    return kinds[of_type].gpu_type if replicas else "", kinds[
        told.sizes.types[job]
    ].gpu_type


def stands(job: JobView, standing: Standing) -> str:
    """Return the sentence of a frozen job that has run before."""
    if job.id in standing.kept:
        return f"{gets(job, job.allocation)}: its contract is frozen"
    held = plural(job.allocation.num_replicas, "GPU")
    return f"gives up its {held} and waits: frozen, and it cannot stay there"


def durations(seconds_X: FloatArray) -> list[str]:
    """Return `45 s`, `12 min`, `2 h 10 min`, `3 days` for each."""
    count_X = np.empty(len(seconds_X), dtype=np.int64)
    _count(seconds_X, count_X)
    return [_WORDS[count] for count in count_X.tolist()]


@compiled_lean
def _count(seconds_X: FloatArray, count_X: IntArray) -> None:
    """Write minutes, whole days from DAYS_FROM on; seconds below 0 where they are short."""
    for x in range(len(seconds_X)):
        seconds = seconds_X[x]
        minutes = np.rint(min(-seconds, 0.0) if seconds < SHORT_S else seconds / 60.0)
        if not minutes < DAYS_FROM:
            minutes = DAY * np.rint(min(minutes, COUNT_MAX) / DAY)
        count_X[x] = int(minutes)


def in_words(*several: FloatArray) -> list[list[str]]:
    """Return what `durations` does of each of these: asking once costs less than each time."""
    words, ends = (
        durations(np.concatenate(several)),
        list(accumulate(map(len, several))),
    )
    return [words[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


class _Words(dict[int, str]):
    """So many minutes in words; below 0: seconds. Several hundred are asked for in each round."""

    def __missing__(self, minutes: int) -> str:
        if minutes <= 0:
            words = f"{-minutes} s"
        elif minutes < 90:
            words = f"{minutes} min"
        elif minutes < DAYS_FROM:
            words = f"{minutes // 60} h {minutes % 60} min"
        else:
            words = f"{minutes // DAY} days"
        self[minutes] = words
        return words


_WORDS = _Words()


def _ends(seconds_3G: FloatArray, words: Sequence[Sequence[str]]) -> list[str]:
    """Return when each job ends, in about, at the least and at the most, where that was foretold."""
    return [
        f"; ends in about {after} (nine of ten: {low} to {high})"
        if after_s < math.inf
        else ""
        for after_s, after, low, high in zip(
            seconds_3G[0].tolist(), *words, strict=True
        )
    ]


def _starts(seconds_3L: FloatArray, words: Sequence[Sequence[str]]) -> list[str]:
    """Return when each job starts, likewise."""
    return [
        f"; starts soon (nine of ten: within {high})"  # it would now, if others' changes cost nothing
        if after_s <= ROUND_S
        else f"; starts in about {after} (nine of ten: {low} to {high})"
        if after_s < math.inf
        else ""
        for after_s, after, low, high in zip(
            seconds_3L[0].tolist(), *words, strict=True
        )
    ]


class _Given(NamedTuple):
    """Jobs that are placed: rows, replicas, and the index of their GPU type."""

    row_G: IntArray
    count_G: IntArray
    type_G: IntArray


class _Worth(NamedTuple):
    """What GPUs are worth now: goodputs, on all sizes and on what each job holds; values; prices."""

    goodput_JC: FloatArray
    here_J: FloatArray
    value_J: FloatArray
    price_T: FloatArray


class _Larger(NamedTuple):
    """The next larger size of jobs that are placed. count_G: replicas now; extra_G: more, 0: there is none.

    saves_s_G: what an hour on it saves the job; costs_s_G: and costs the others, at the price of a GPU.
    """

    count_G: IntArray
    extra_G: IntArray
    saves_s_G: FloatArray
    costs_s_G: FloatArray


def _worth(told: Told) -> _Worth:
    return _Worth(
        told.now.goodput_JC, told.now.here_J, told.outlook.value_J, told.sizes.price_T
    )


def _larger(told: Told, rows: Sequence[int]) -> _Larger:
    names, types = [told.now.jobs[row].id for row in rows], told.sizes.types
    counts = [told.placed[name].num_replicas for name in names]
    given = _Given(
        *np.array(
            (rows, counts, [types.get(name, 0) for name in names]), dtype=np.int64
        )
    )
    larger = _Larger(
        given.count_G, np.empty_like(given.count_G), *np.empty((2, len(rows)))
    )
    _enlarge(_worth(told), told.now.configs, given, larger)
    return larger


def _more(
    now: Situation, rows: list[int], larger: _Larger, words: Sequence[Sequence[str]]
) -> list[str]:
    """Return what the next size would save each of these jobs, and cost the others."""
    numbers = (
        larger.count_G.tolist(),
        now.timed_J[rows].tolist(),
        larger.extra_G.tolist(),
    )
    return [
        "more is decided once its first steps were timed"
        if not timed
        else f"{plural(extra, 'more GPU')} for an hour would save it {saves} and cost the others {costs}"
        if extra
        else f"{count} is the most that it may hold now"
        for count, timed, extra, saves, costs in zip(*numbers, *words, strict=True)
    ]


@compiled_lean
def _enlarge(worth: _Worth, configs: Configs, given: _Given, larger: _Larger) -> None:
    for g in range(len(given.row_G)):
        row, count, of_type = given.row_G[g], given.count_G[g], given.type_G[g]
        goodput, extra, gain = worth.here_J[row], 0, 0.0
        for c in range(len(configs.gpus_C)):  # sizes of a type ascend
            if configs.type_C[c] != of_type or worth.goodput_JC[row, c] <= 0.0:
                continue
            if configs.gpus_C[c] == count:
                goodput = worth.goodput_JC[row, c]
            elif configs.gpus_C[c] > count:
                extra, gain = (
                    configs.gpus_C[c] - count,
                    worth.goodput_JC[row, c] - goodput,
                )
                break
        larger.extra_G[g] = extra
        larger.saves_s_G[g] = worth.value_J[row] * gain * S_PER_HOUR
        larger.costs_s_G[g] = worth.price_T[of_type] * extra * S_PER_HOUR


def _earns_s(told: Told, rows: Sequence[int]) -> FloatArray:
    """Return what an hour of one GPU saves each of these jobs at most, s."""
    earns_s_R = np.empty(len(rows))
    _earn(
        _worth(told), told.now.configs.gpus_C, np.array(rows, dtype=np.int64), earns_s_R
    )
    return earns_s_R


@compiled_lean
def _earn(
    worth: _Worth, gpus_C: IntArray, row_R: IntArray, earns_s_R: FloatArray
) -> None:
    for r in range(len(row_R)):
        most = 0.0
        for c in range(len(gpus_C)):
            most = max(most, worth.goodput_JC[row_R[r], c] / gpus_C[c])
        earns_s_R[r] = worth.value_J[row_R[r]] * most * S_PER_HOUR


def _needs_of(
    told: Told, rows: Mapping[int, int], price: str
) -> dict[int, tuple[str, bool]]:
    """Return what keeps jobs alike waiting, and whether it is what a GPU saves others: `price`.

    rows: one of each.
    """
    now, held = told.now, dict[TenantId, int]()
    for job, allocation in told.placed.items() if told.standing.quota_left else ():
        tenant = now.jobs[now.job_rows.row_of[job]].spec.tenant
        held[tenant] = held.get(tenant, 0) + allocation.num_replicas
    busy = sum([allocation.num_replicas for allocation in told.placed.values()])
    idle = max(sum([kind.num_gpus for kind in told.standing.kinds]) - busy, 0)
    free = f"{idle} {'is' if idle == 1 else 'are'} free; an hour of a GPU saves the others {price}"
    found: dict[int, tuple[str, bool]] = {}
    for like, row in rows.items():
        spec = now.jobs[row].spec
        barred = _barred(told, spec, held.get(spec.tenant, 0))
        needs = (
            f"needs {plural(least(spec), 'GPU')}, {free}" if barred is None else barred
        )
        found[like] = needs, barred is None
    return found


def _barred(told: Told, spec: JobSpec, held: int) -> str | None:
    """Return what keeps a job waiting whatever a GPU saves others. held: GPUs that its tenant has now."""
    need, limits, kinds = least(spec), spec.replicas, told.standing.kinds
    most = max(
        (kind.num_gpus for kind in kinds if limits.allows_type(kind.gpu_type)),
        default=-1,
    )
    if most < 0:
        return f"no live node has GPUs of {limits.types_in_words}"
    wanted = plural(need, "GPU")
    if need > most:
        return f"needs {wanted} of {limits.types_in_words}, and there are {most} to plan with"
    left = told.standing.quota_left.get(spec.tenant, math.inf) - held
    return (
        f"needs {wanted}, tenant {spec.tenant} may hold {max(left, 0):g} more"
        if left < need
        else None
    )
