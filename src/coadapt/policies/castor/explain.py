"""What castor tells users: what a job gets or needs, when it starts or ends, what more
GPUs would bring.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import Allocation, JobId, JobSpec, JobView, TenantId
from coadapt.policies.allocation.reasons import gets, plural
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.castor.cluster import Standing
from coadapt.policies.castor.facts import least
from coadapt.policies.castor.fairness import ROUND_S
from coadapt.policies.castor.predictions import Predictions
from coadapt.policies.castor.rates import Configs
from coadapt.policies.castor.round import Sizes
from coadapt.policies.castor.situation import Situation

SHORT_S = 90.0  # less is told in seconds
# minutes; more is told in days
DAY = 1_440
DAYS_FROM = 2_880
COUNT_MAX = 1e15  # minutes; more is told as so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a round has to tell from: the situation, what was chosen, and where it was
    placed.
    """

    now: Situation
    sizes: Sizes
    placed: Mapping[JobId, Allocation]
    standing: Standing
    predictions: Predictions
    starts: Predictions


def explained(told: Told) -> dict[JobId, str]:
    """Return a sentence for each job that could be moved."""
    now = told.now
    rows_of = now.job_rows.row_of
    placed = sorted(rows_of[job] for job in told.placed)
    waiting = [row for job, row in rows_of.items() if job not in told.placed]
    why: dict[JobId, str] = {}
    sizes = _next_sizes(told, placed)
    ends = _ends(told, placed, sizes)
    for row, end, next_size in zip(placed, ends, _larger(sizes), strict=True):
        job = now.jobs[row]
        change = gets(job, told.placed[job.id], *_types(told, row, job.id))
        why[job.id] = f"{change}{end}; {next_size}"
    needs_of = _needs_of(told, waiting)
    starts = _starts(told, waiting)
    likes = now.known.numbers.like_J[waiting].tolist()
    for row, like, start in zip(waiting, likes, starts, strict=True):
        job = now.jobs[row]
        held = plural(job.grant.allocation.num_replicas, "GPU")
        gives_up = f"gives up its {held} and " if job.grant.allocation.slots else ""
        needs, can_start = needs_of[like]
        why[job.id] = f"{gives_up}waits: {needs}{start if can_start else ''}"
    return why


def _types(told: Told, row: int, job: JobId) -> tuple[str, str]:
    """Return the GPU types that a job held and gets, empty where the cluster has
    one.
    """
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
    """Write minutes, whole days from DAYS_FROM on; seconds below 0 where they are
    short.
    """
    for x in range(len(seconds_X)):
        seconds = seconds_X[x]
        minutes = np.rint(min(-seconds, 0.0) if seconds < SHORT_S else seconds / 60.0)
        if not minutes < DAYS_FROM:
            minutes = DAY * np.rint(min(minutes, COUNT_MAX) / DAY)
        count_X[x] = int(minutes)


class _Words(dict[int, str]):
    """So many minutes in words; below 0: seconds. Several hundred are asked for in each
    round.
    """

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


def _ends(told: Told, rows: Sequence[int], sizes: "_NextSizes") -> list[str]:
    """Return when each placed job ends: foreseen, or by its speed while nothing was
    learned of how wrong predictions are.
    """
    after_3G = told.predictions.said(rows)
    if told.predictions.has_past:
        words = zip(*(durations(after_G) for after_G in after_3G), strict=True)
        return [
            f"; ends in about {after} (90 %: {low} to {high})" if known else ""
            for known, (after, low, high) in zip(
                np.isfinite(after_3G[0]).tolist(), words, strict=True
            )
        ]
    known_G = told.now.timed_J[np.array(rows, dtype=np.int64)]
    known_G &= np.isfinite(sizes.left_s_G)
    return [
        f"; about {left} left at its measured speed" if known else ""
        for known, left in zip(known_G.tolist(), durations(sizes.left_s_G), strict=True)
    ]


def _starts(told: Told, rows: Sequence[int]) -> list[str]:
    """Return when each waiting job starts; nothing where no past bears it out.

    A job that did not start within the interval that was given gets no other one.
    """
    if not told.starts.has_past:
        return [""] * len(rows)
    after_3L = told.starts.said(rows)
    words = zip(*(durations(after_L) for after_L in after_3L), strict=True)
    texts = []
    for row, after_s, high_s, (after, low, high) in zip(
        rows, after_3L[0].tolist(), after_3L[2].tolist(), words, strict=True
    ):
        if after_s == math.inf or told.starts.missed(told.now.jobs[row].id, high_s):
            texts.append("")
        elif after_s <= ROUND_S:
            texts.append(f"; starts soon (90 %: within {high})")
        else:
            texts.append(f"; starts in about {after} (90 %: {low} to {high})")
    return texts


class _Given(NamedTuple):
    """Placed jobs: rows, replicas, and the index of their GPU type."""

    row_G: IntArray
    count_G: IntArray
    type_G: IntArray


class _NextSizes(NamedTuple):
    """The next larger size of each placed job.

    extra_G: GPUs more than count_G, 0 where there is no larger size. speedup_G: goodput
    there over goodput now. left_s_G, then_s_G: seconds to its end at the goodput of
    now, and there with the change; infinity where its length or goodput is unknown.
    """

    timed_G: BoolArray
    count_G: IntArray
    extra_G: IntArray
    speedup_G: FloatArray
    left_s_G: FloatArray
    then_s_G: FloatArray


def _next_sizes(told: Told, rows: Sequence[int]) -> _NextSizes:
    now = told.now
    names = [now.jobs[row].id for row in rows]
    given = _Given(
        np.array(rows, dtype=np.int64),
        np.array([told.placed[job].num_replicas for job in names], dtype=np.int64),
        np.array([told.sizes.types.get(job, 0) for job in names], dtype=np.int64),
    )
    extra_G = np.zeros_like(given.count_G)
    here_G = np.zeros(len(rows))
    next_G = np.zeros(len(rows))
    _enlarge(now.goodput_JC, now.here_J, now.configs, given, (extra_G, here_G, next_G))
    left_G = now.left_J[given.row_G]
    with np.errstate(divide="ignore", invalid="ignore"):
        left_s_G = left_G / here_G
        then_s_G = left_G / next_G
        speedup_G = next_G / here_G
    return _NextSizes(
        now.timed_J[given.row_G],
        given.count_G,
        extra_G,
        speedup_G,
        left_s_G,
        then_s_G + now.rescale_s_J[given.row_G],
    )


def _larger(sizes: _NextSizes) -> list[str]:
    """Return what the next size would bring each placed job."""
    texts = []
    lefts = durations(sizes.left_s_G)
    thens = durations(sizes.then_s_G)
    columns = [column_G.tolist() for column_G in sizes]
    for timed, count, extra, speedup, left_s, then_s, left, then in zip(
        *columns, lefts, thens, strict=True
    ):
        more = plural(extra, "more GPU")
        if not timed:
            text = "its size is decided once it reports a step"
        elif not extra:
            text = f"{count} is the most that it may hold now"
        elif not math.isfinite(left_s) and math.isfinite(speedup):
            text = f"{more} would make it {speedup:.1f} times as fast"
        elif not math.isfinite(left_s):
            text = f"{more} would make it train"
        elif left_s - then_s < SHORT_S:
            text = f"{more} would not end it sooner"
        else:
            text = f"{more} would end it in about {then} instead of {left}"
        texts.append(text)
    return texts


@compiled_lean
def _enlarge(
    goodput_JC: FloatArray,
    here_J: FloatArray,
    configs: Configs,
    given: _Given,
    out_3G: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    """Write the GPUs that the next size adds, and the goodputs now and there."""
    extra_G, here_G, next_G = out_3G
    for g in range(len(given.row_G)):
        row = given.row_G[g]
        count = given.count_G[g]
        here_G[g] = here_J[row]
        for c in range(len(configs.gpus_C)):  # sizes of a type ascend
            if configs.type_C[c] != given.type_G[g] or goodput_JC[row, c] <= 0.0:
                continue
            if configs.gpus_C[c] == count:
                here_G[g] = goodput_JC[row, c]
            elif configs.gpus_C[c] > count:
                extra_G[g] = configs.gpus_C[c] - count
                next_G[g] = goodput_JC[row, c]
                break


def _needs_of(told: Told, rows: Sequence[int]) -> dict[int, tuple[str, bool]]:
    """Return, by kind of job, what waiting jobs need, and whether they can start when
    other jobs let go of GPUs.
    """
    now = told.now
    held: dict[TenantId, int] = {}
    for job, allocation in told.placed.items() if told.standing.quota_left else ():
        tenant = now.jobs[now.job_rows.row_of[job]].spec.tenant
        held[tenant] = held.get(tenant, 0) + allocation.num_replicas
    busy = sum(allocation.num_replicas for allocation in told.placed.values())
    idle = max(sum(kind.num_gpus for kind in told.standing.kinds) - busy, 0)
    free = f"{idle} {'is' if idle == 1 else 'are'} free"
    found: dict[int, tuple[str, bool]] = {}
    one_of_each = dict(zip(now.known.numbers.like_J[rows].tolist(), rows, strict=True))
    for like, row in one_of_each.items():
        spec = now.jobs[row].spec
        barred = _barred(told, spec, held.get(spec.tenant, 0))
        needs = barred or f"needs {plural(least(spec), 'GPU')}, {free}"
        found[like] = needs, barred is None
    return found


def _barred(told: Told, spec: JobSpec, held: int) -> str | None:
    """Return what bars a job from GPUs that are free. held: GPUs that its tenant has
    now.
    """
    need = least(spec)
    limits = spec.replicas
    kinds = told.standing.kinds
    most = max(
        (kind.num_gpus for kind in kinds if limits.allows_type(kind.gpu_type)),
        default=-1,
    )
    if most < 0:
        return f"no live node has GPUs of {limits.types_in_words}"
    wanted = plural(need, "GPU")
    if need > most:
        return (
            f"needs {wanted} of {limits.types_in_words}, and there are {most} to "
            f"plan with"
        )
    left = told.standing.quota_left.get(spec.tenant, math.inf) - held
    return (
        f"needs {wanted}, tenant {spec.tenant} may hold {max(left, 0):g} more"
        if left < need
        else None
    )
