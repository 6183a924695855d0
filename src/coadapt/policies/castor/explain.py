"""What castor tells users: what a job gets, when it ends, what more GPUs would save it and cost others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    at: float


def explained(told: Told) -> dict[JobId, str]:
    """Return a sentence for each job that could be moved."""
    now, placed = told.now, told.placed
    given = sorted([now.job_rows.row_of[job] for job in placed])
    left = [row for row, job in enumerate(now.job_rows.row_of) if job not in placed]
    why: dict[JobId, str] = {}
    for row, ends, more in zip(given, _ends(told, given), _more(told, given), strict=True):
        job = now.jobs[row]
        change = gets(job, placed[job.id], *_types(told, row, job.id))
        why[job.id] = f"{change}{ends}; {more}"
    likes = now.known.like_J[left].tolist()
    needs_of = _needs_of(told, dict(zip(likes, left, strict=True)))
    waiting = zip(left, likes, _earns(told, left), _starts(told, left), strict=True)
    for row, like, earns, starts in waiting:
        job, (needs, priced) = now.jobs[row], needs_of[like]
        held = job.grant.allocation
        change = f"gives up its {plural(held.num_replicas, 'GPU')} and waits" if held.slots else "waits"
        why[job.id] = f"{change}: {needs}, it {earns}{starts}" if priced else f"{change}: {needs}{starts}"
    return why


def _types(told: Told, row: int, job: JobId) -> tuple[str, str]:
    """Return the GPU types that a job held and gets, empty where the cluster has one."""
    kinds = told.standing.kinds
    if len(kinds) == 1:
        return "", ""
    of_type, *_, replicas = told.now.sources.steps.held_JX[row].tolist()
    return kinds[of_type].gpu_type if replicas else "", kinds[told.sizes.types[job]].gpu_type


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


def duration(seconds: float) -> str:
    """Return the same for one."""
    (words,) = durations(np.array([seconds]))
    return words


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


def _ends(told: Told, rows: Sequence[int]) -> list[str]:
    """Return when each of these jobs ends, where that was foretold."""
    said_3R = told.predictions.said(rows) - told.at
    words = zip(said_3R[0].tolist(), *_in_rows(said_3R), strict=True)
    return [
        f"; ends in about {after} (nine of ten: {low} to {high})" if after_s < math.inf else ""
        for after_s, after, low, high in words
    ]


def _starts(told: Told, rows: Sequence[int]) -> list[str]:
    """Return when each of these jobs starts, likewise."""
    said_3R = told.starts.said(rows) - told.at
    words = zip(said_3R[0].tolist(), *_in_rows(said_3R), strict=True)
    return [
        f"; starts soon (nine of ten: within {high})"  # it would now, if others' changes cost nothing
        if after_s <= ROUND_S
        else f"; starts in about {after} (nine of ten: {low} to {high})"
        if after_s < math.inf
        else ""
        for after_s, after, low, high in words
    ]


def _in_rows(seconds_XJ: FloatArray) -> list[list[str]]:
    """Return what `durations` does of each row."""
    words, length = durations(seconds_XJ.ravel()), seconds_XJ.shape[1]
    return [words[row * length : (row + 1) * length] for row in range(len(seconds_XJ))]


class _Given(NamedTuple):
    """Jobs that are placed: rows, replicas, and the index of their GPU type."""

    row_R: IntArray
    count_R: IntArray
    type_R: IntArray


class _Larger(NamedTuple):
    """The next larger size of jobs that are placed: replicas more, 0 if there is none, and goodput more."""

    extra_R: IntArray
    gain_R: FloatArray


def _more(told: Told, rows: Sequence[int]) -> list[str]:
    """Return what the next size would save each of these jobs, and cost the others at the price of a GPU."""
    names = [told.now.jobs[row].id for row in rows]
    counts = [told.placed[name].num_replicas for name in names]
    types = [told.sizes.types.get(name, 0) for name in names]
    given = _Given(*np.array((rows, counts, types), dtype=np.int64))
    larger = _Larger(np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows)))
    _enlarge(told.now.goodput_JC, told.now.here_J, told.now.configs, given, larger)
    saves_R = told.outlook.value_J[given.row_R] * larger.gain_R
    costs_R = told.sizes.price_T[given.type_R] * larger.extra_R
    numbers = counts, told.now.timed_J[given.row_R].tolist(), larger.extra_R.tolist()
    words = zip(*numbers, *_in_rows(np.array((saves_R, costs_R)) * S_PER_HOUR), strict=True)
    return [
        "more is decided once its first steps were timed"
        if not timed
        else f"{plural(extra, 'more GPU')} for an hour would save it {saves} and cost the others {costs}"
        if extra
        else f"{count} is the most that it may hold now"
        for count, timed, extra, saves, costs in words
    ]


@compiled_lean
def _enlarge(
    goodput_JC: FloatArray, here_J: FloatArray, configs: Configs, given: _Given, larger: _Larger
) -> None:
    for r in range(len(given.row_R)):
        row, count, of_type = given.row_R[r], given.count_R[r], given.type_R[r]
        goodput = here_J[row]
        for c in range(len(configs.gpus_C)):  # sizes of a type ascend
            if configs.type_C[c] != of_type or goodput_JC[row, c] <= 0.0:
                continue
            if configs.gpus_C[c] == count:
                goodput = goodput_JC[row, c]
            elif configs.gpus_C[c] > count:
                larger.extra_R[r] = configs.gpus_C[c] - count
                larger.gain_R[r] = goodput_JC[row, c] - goodput
                break


def _earns(told: Told, rows: Sequence[int]) -> list[str]:
    """Return what an hour of one GPU saves each of these jobs at most."""
    now, value_J = told.now, told.outlook.value_J
    each_RC = now.goodput_JC[rows] / now.configs.gpus_C
    return durations(value_J[rows] * each_RC.max(axis=1, initial=0.0) * S_PER_HOUR)


def _needs_of(told: Told, rows: Mapping[int, int]) -> dict[int, tuple[str, bool]]:
    """Return what keeps jobs alike waiting, and whether it is what a GPU saves others. rows: one of each."""
    now, held = told.now, dict[TenantId, int]()
    for job, allocation in told.placed.items() if told.standing.quota_left else ():
        tenant = now.jobs[now.job_rows.row_of[job]].spec.tenant
        held[tenant] = held.get(tenant, 0) + allocation.num_replicas
    busy = sum([allocation.num_replicas for allocation in told.placed.values()])
    idle = max(sum([kind.num_gpus for kind in told.standing.kinds]) - busy, 0)
    price = duration(float(told.sizes.price_T.max(initial=0.0)) * S_PER_HOUR)
    free = f"{idle} {'is' if idle == 1 else 'are'} free; an hour of a GPU saves the others {price}"
    found: dict[int, tuple[str, bool]] = {}
    for like, row in rows.items():
        spec = now.jobs[row].spec
        barred = _barred(told, spec, held.get(spec.tenant, 0))
        needs = f"needs {plural(least(spec), 'GPU')}, {free}" if barred is None else barred
        found[like] = needs, barred is None
    return found


def _barred(told: Told, spec: JobSpec, held: int) -> str | None:
    """Return what keeps a job waiting whatever a GPU saves others. held: GPUs that its tenant has now."""
    need, limits, kinds = least(spec), spec.replicas, told.standing.kinds
    most = max((kind.num_gpus for kind in kinds if limits.allows_type(kind.gpu_type)), default=-1)
    if most < 0:
        return f"no live node has GPUs of {limits.types_in_words}"
    wanted = plural(need, "GPU")
    if need > most:
        return f"needs {wanted} of {limits.types_in_words}, and there are {most} to plan with"
    left = told.standing.quota_left.get(spec.tenant, math.inf) - held
    return f"needs {wanted}, tenant {spec.tenant} may hold {max(left, 0):g} more" if left < need else None
