"""What is left of each job: from its reports, its user's word, and how true such words
proved before.
"""

# A declared length is a hint. What it is worth is learned: when a job has gone, the
# progress it had made over the hint it came with is one ratio, kept per tenant. A job
# that has done x of its hint H then has
#
#     (median of the ratios above x  -  x) H          left,
#
# the median residual life in the tenant's own record. While that record is short a few
# ratios of 1 stand in it. Ratios near 1 count as 1, since the last report of a job
# comes before its end. A job past all ratios is taken to have OVERRUN of what it did
# before it, so it never counts as nearly done for long.
#
# Jobs of one application (kin.py) are often alike in length. So what its ended jobs did
# is a second witness:
# who was wrong by less in the mean, in logarithms, over that tenant's hints and that
# application's jobs, is believed. Without a hint the application is, and where none is
# named, whole lengths in 1-GPU seconds over all jobs.

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import JobId, JobView
from coadapt.model.tenant import TenantId
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray, JobRows
from coadapt.policies.castor.kin import APPLICATIONS_MAX, Key, key_of
from coadapt.policies.predictors.declared import declared_samples

SEEN_MAX = 400  # lengths that are remembered
RATIOS_MAX = 50  # ratios per tenant
WHOLES_MAX = 25  # lengths per application
TRUST = 3  # ratios of 1 that a tenant starts with (1)
HONEST = (0.8, 1.1)  # ratios that count as 1
OVERRUN = 0.25  # of what a job did that is past all it was to do (tried: 0.1-1 alike)
TYPICAL_S = 3_600.0  # 1-GPU seconds of a job while none was seen (1)
NEARLY_DONE = 1e-3  # of a job's length: the least that it is taken to have left


def hinted(job: JobView) -> float | None:
    """Return the progress (samples) at which `job` is to end by its report or its
    user's word; None: unknown.

    Epochs say nothing before the first report: nobody told how many samples an epoch
    has.
    """
    told = job.measured.progress_target
    return told if told is not None and told > 0.0 else declared_samples(job)


class Reported(NamedTuple):
    """What jobs reported: progress and hint (infinity: none) in samples; alone_J:
    goodput on one GPU (0: unknown).
    """

    job_rows: JobRows
    progress_J: FloatArray
    alone_J: FloatArray
    hint_J: FloatArray


class _Whose(NamedTuple):
    tenant: TenantId
    key: Key | None


@dataclass(slots=True)
class Hints:
    """How true hints proved. ratios: of truth to hint, per tenant. told_TR, count_T:
    these and those that a tenant starts with, ascending, by the numbers of tenants; and
    how many.
    """

    ratios: dict[TenantId, deque[float]] = field(default_factory=dict)
    number_of: dict[TenantId, int] = field(default_factory=dict)
    told_TR: FloatArray = field(
        default_factory=lambda: np.empty((1, TRUST + RATIOS_MAX))
    )
    count_T: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def learn(self, tenant: TenantId, ratio: float) -> None:
        """Take in what one hint proved."""
        self.ratios.setdefault(tenant, deque(maxlen=RATIOS_MAX)).append(ratio)
        self._write(self.number(tenant), tenant)

    def number(self, tenant: TenantId) -> int:
        """Return the number of a tenant."""
        number = self.number_of.get(tenant)
        if number is None:
            number = self.number_of[tenant] = len(self.number_of)
            if number == len(self.count_T):
                self.told_TR = np.concatenate(
                    (self.told_TR, np.empty_like(self.told_TR))
                )
                self.count_T = np.concatenate(
                    (self.count_T, np.zeros_like(self.count_T))
                )
            self._write(number, tenant)
        return number

    def of(self, tenant: TenantId) -> Sequence[float]:
        """Return the ratios of a tenant, ascending."""
        number = self.number(tenant)
        ratios: list[float] = self.told_TR[number, : self.count_T[number]].tolist()
        return ratios

    def _write(self, number: int, tenant: TenantId) -> None:
        told = sorted((*self.ratios.get(tenant, ()), *[1.0] * TRUST))
        self.told_TR[number, : len(told)] = told
        self.count_T[number] = len(told)


# What is kept of each job: what it reported last while its goodput was known, and
# progress before that; the number of its tenant; whether it has an application.
PROGRESS, ALONE, HINT, BEFORE, TENANT, KEY, NUM_KEPT = range(7)


@compiled_lean
def _note(
    progress_J: FloatArray,
    alone_J: FloatArray,
    hint_J: FloatArray,
    kept_XJ: FloatArray,
    news_XJ: BoolArray,
) -> None:
    """Write what jobs report; of whom the goodput is known, who is new, has a hint at
    last, or tells anything else than before (others wait, or have not reported since).
    """
    for j in range(len(alone_J)):
        news_XJ[0, j] = alone_J[j] > 0.0
        new = kept_XJ[ALONE, j] <= 0.0
        news_XJ[1, j] = news_XJ[2, j] = news_XJ[3, j] = False
        if alone_J[j] <= 0.0:
            continue
        further = kept_XJ[PROGRESS, j] != progress_J[j]
        news_XJ[1, j] = new
        news_XJ[2, j] = hint_J[j] < np.inf and (new or kept_XJ[HINT, j] == np.inf)
        news_XJ[3, j] = (
            further or kept_XJ[ALONE, j] != alone_J[j] or kept_XJ[HINT, j] != hint_J[j]
        )
        if further:
            kept_XJ[BEFORE, j] = kept_XJ[PROGRESS, j]
        kept_XJ[PROGRESS, j] = progress_J[j]
        kept_XJ[ALONE, j] = alone_J[j]
        kept_XJ[HINT, j] = hint_J[j]


@compiled_lean
def _by_hints(
    kept_XJ: FloatArray, told_TR: FloatArray, count_T: IntArray, left_J: FloatArray
) -> None:
    """Write what each job has left by its hint. kept_XJ: as of Lengths."""
    for j in range(len(left_J)):
        done = kept_XJ[PROGRESS, j]
        hint = kept_XJ[HINT, j]
        tenant = int(kept_XJ[TENANT, j])
        begin = 0
        count = count_T[tenant]
        while begin < count and told_TR[tenant, begin] * hint <= done:
            begin += 1
        if begin == count:
            left_J[j] = OVERRUN * done
            continue
        middle = (begin + count) // 2
        ratio = told_TR[tenant, middle]
        if (count - begin) % 2 == 0:
            ratio = 0.5 * (told_TR[tenant, middle - 1] + ratio)
        left_J[j] = max(ratio * hint - done, NEARLY_DONE * hint)


@dataclass(slots=True)
class Lengths:
    """The record. seen: whole lengths, 1-GPU seconds. wholes: progress of ended jobs,
    per application; told: hints of its jobs. spreads: of these and of ratios, by whose
    they are, until one of them changes. ordered: lengths of an application, ascending,
    likewise. rest: what a job has left by those alike (None: it goes by its hint),
    until it tells more or the record changes. living, kept_XJ: jobs of the last round,
    as above.
    """

    seen: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    hints: Hints = field(default_factory=Hints)
    wholes: dict[Key, deque[float]] = field(default_factory=dict)
    told: dict[Key, deque[float]] = field(default_factory=dict)
    living: dict[JobId, _Whose] = field(default_factory=dict)
    spreads: dict[Key | TenantId, float] = field(default_factory=dict)
    ordered: dict[Key, list[float]] = field(default_factory=dict)
    rest: dict[JobId, float | None] = field(default_factory=dict)
    job_rows: JobRows = field(default_factory=JobRows)
    kept_XJ: FloatArray = field(default_factory=lambda: np.zeros((NUM_KEPT, 0)))

    def left(self, jobs: Sequence[JobView], now: Reported) -> FloatArray:
        """Return the progress that each job has before it, 0 where its goodput is
        unknown.

        Takes in who is there, and learns from who has gone.
        """
        gone = self.living.keys() - now.job_rows.row_of.keys()
        for job in [job for job in self.living if job in gone] if gone else ():
            self._learn(
                self.living.pop(job),
                *self.kept_XJ[:TENANT, self.job_rows.row_of[job]].tolist(),
            )
        known_J = self._take_in(jobs, now)
        kept_XJ = self.kept_XJ
        left_J = np.empty(len(jobs))
        _by_hints(kept_XJ, self.hints.told_TR, self.hints.count_T, left_J)
        for row in np.flatnonzero(known_J & _have_alike(kept_XJ)).tolist():
            name = jobs[row].id
            if name not in self.rest:
                self.rest[name] = self._by_alike(
                    self.living[name], *kept_XJ[:BEFORE, row].tolist()
                )
            rest = self.rest[name]
            if rest is not None:
                left_J[row] = rest
        left_J[~known_J] = 0.0
        return left_J

    def _take_in(self, jobs: Sequence[JobView], now: Reported) -> BoolArray:
        """Take in what jobs report; return of whom the goodput is known."""
        kept_XJ = now.job_rows.kept(self.job_rows, self.kept_XJ, 0.0)
        known_J, new_J, hinted_J, changed_J = news_XJ = np.empty(
            (4, len(jobs)), dtype=np.bool_
        )
        _note(now.progress_J, now.alone_J, now.hint_J, kept_XJ, news_XJ)
        self.job_rows = now.job_rows
        self.kept_XJ = kept_XJ
        for row in np.flatnonzero(new_J).tolist():
            job = jobs[row]
            key = key_of(jobs[row])
            self.living[job.id] = _Whose(job.spec.tenant, key)
            kept_XJ[TENANT, row] = self.hints.number(job.spec.tenant)
            kept_XJ[KEY, row] = key is not None
        for row in np.flatnonzero(hinted_J).tolist():
            _, alone, hint = kept_XJ[:BEFORE, row].tolist()
            self.seen.append(hint / alone)
            self.spreads.clear()
            self.rest.clear()
            key = self.living[jobs[row].id].key
            if key is not None:
                self._remember(self.told, key, hint)
        for row in np.flatnonzero(changed_J & _have_alike(kept_XJ)).tolist():
            self.rest.pop(jobs[row].id, None)
        return known_J

    def _learn(
        self, whose: _Whose, progress: float, alone: float, hint: float, before: float
    ) -> None:
        self.spreads.clear()
        self.rest.clear()
        ratio = progress / hint
        honest = HONEST[0] <= ratio <= HONEST[1]
        if whose.key is not None and before > 0.0:
            # The last report comes before the end: by half of the time between two of
            # them in the mean.
            whole = hint if honest else progress + 0.5 * (progress - before)
            self._remember(self.wholes, whose.key, whole)
        if hint == math.inf:
            self.seen.append(progress / alone)
        else:
            self.hints.learn(whose.tenant, 1.0 if honest else ratio)

    def typical_s(self, past_s: float = 0.0) -> float:
        """Return the 1-GPU seconds that jobs which did `past_s` have left: the median
        of those seen.
        """
        longer = [each for each in self.seen if each > past_s]
        return float(median(longer)) - past_s if longer else max(past_s, TYPICAL_S)

    def unseen_s(self, shows_s: float) -> float:
        """Return the 1-GPU seconds that a job of unknown length counts as; after
        `shows_s` it is known.

        Jobs seen stand for it: the least mean time to an end, over y, of running it on
        while it proves no longer than y.
        """
        known = sorted(self.seen) or [TYPICAL_S]
        means = (shows_s * len(known) + total for total in accumulate(known))
        return min(mean / count for count, mean in enumerate(means, 1))

    def _by_alike(
        self, whose: _Whose, done: float, alone: float, hint: float
    ) -> float | None:
        """Return the progress that a job has left by those alike; None: it goes by its
        hint.
        """
        tenant, key = whose
        if key is not None:
            alike = self.wholes.get(key, ()) or (
                self.told.get(key, ()) if hint == math.inf else ()
            )
            if alike and (
                hint == math.inf
                or (len(alike) >= TRUST and self._truer(key, alike, tenant))
            ):
                wholes = self.ordered.get(key)
                if wholes is None:
                    wholes = self.ordered[key] = sorted(alike)
                begin = bisect_right(wholes, done)
                rest = (
                    _middle(wholes, begin) - done
                    if begin < len(wholes)
                    else OVERRUN * done
                )
                return max(rest, NEARLY_DONE * alone)
        if hint == math.inf:
            return max(self.typical_s(done / alone) * alone, NEARLY_DONE * alone)
        return None

    def _truer(self, key: Key, alike: Sequence[float], tenant: TenantId) -> bool:
        """Return whether jobs alike differ by less than the truth from the hints of a
        tenant.
        """
        if key not in self.spreads:
            self.spreads[key] = _spread(alike)
        if tenant not in self.spreads:
            self.spreads[tenant] = _spread(self.hints.of(tenant), 1.0)
        return self.spreads[key] < self.spreads[tenant]

    def _remember(
        self, lengths: dict[Key, deque[float]], key: Key, length: float
    ) -> None:
        """Add a length to its application's, now the last one seen; the longest unseen
        are forgotten.
        """
        same = lengths[key] = lengths.pop(key, deque(maxlen=WHOLES_MAX))
        same.append(length)
        self.ordered.pop(key, None)
        if len(lengths) > APPLICATIONS_MAX:
            longest_unseen = next(iter(lengths))
            del lengths[longest_unseen]
            self.ordered.pop(longest_unseen, None)


def _have_alike(kept_XJ: FloatArray) -> BoolArray:
    """Return whether each job may go by those alike: it has an application, or no
    hint.
    """
    have_J: BoolArray = (kept_XJ[KEY] > 0.0) | (kept_XJ[HINT] == np.inf)
    return have_J


def _middle(ordered: Sequence[float], begin: int) -> float:
    """Return the median of these from `begin` on, which ascend."""
    middle = (begin + len(ordered)) // 2
    return (
        ordered[middle]
        if (len(ordered) - begin) % 2
        else 0.5 * (ordered[middle - 1] + ordered[middle])
    )


def _spread(values: Sequence[float], around: float | None = None) -> float:
    """Return by how much `values` differ from `around` (their median) in the mean, in
    logarithms.
    """
    middle = median(values) if around is None else around
    return fmean(
        abs(math.log(max(value, 1e-9) / max(middle, 1e-9))) for value in values
    )
