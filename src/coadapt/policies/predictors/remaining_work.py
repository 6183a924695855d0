"""Remaining work of each job: from its reports, its user's word, and how true such
words proved.
"""

# A declared length is a hint. What it is worth is learned: when a job has gone, the
# progress it had made over the hint it came with is one ratio, kept per tenant. A job
# that has done x of its hint H then has
#
#     (median of the ratios above x  -  x) H          left,
#
# the median residual life in the tenant's own record. While that record is short a few
# ratios of 1 are in it. Ratios near 1 count as 1, since the last report of a job comes
# before its end. A job past all ratios is taken to have OVERRUN of what it did before
# it.
#
# Jobs of one application are often alike in length. So what its ended jobs did is a
# second witness: the one that erred by less in the mean, in logarithms, over that
# tenant's hints and that application's jobs, is believed. Without a hint the
# application is, and where none is named, whole lengths in 1-GPU seconds over all jobs.

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median

import numpy as np

from coadapt.model import JobId, JobView
from coadapt.model.tenant import TenantId
from coadapt.policies.predictors.application_models import (
    APPLICATIONS_MAX,
    Key,
    key_of,
)
from coadapt.policies.predictors.declared import declared_samples
from coadapt.policies.solvers.arrays import FloatArray

SEEN_MAX = 400  # lengths that are remembered (1)
RATIOS_MAX = 50  # ratios per tenant (1)
WHOLES_MAX = 25  # lengths per application (1)
TRUST = 3  # ratios of 1 that a tenant starts with (1)
HONEST = (0.8, 1.1)  # ratios that count as 1
OVERRUN = 0.25  # of what a job did that is past all it was to do (0.1 to 1 are alike)
TYPICAL_S = 3_600.0  # 1-GPU seconds of a job while none was seen (1)
NEARLY_DONE = 1e-3  # of a job's length: the least that it is taken to have left


def hinted(job: JobView) -> float | None:
    """Return the progress (samples) at which `job` is to end by its report or its
    user's word.

    None: unknown. Epochs say nothing before the first report says how many samples one
    has.
    """
    reported = job.measured.progress_target
    if reported is not None and reported > 0.0:
        return reported
    return declared_samples(job)


@dataclass(slots=True)
class _Living:
    """A job that is here: its last report, and its progress before that one."""

    tenant: TenantId
    key: Key | None
    progress: float = 0.0
    before: float = 0.0
    alone: float = 0.0
    hint: float = math.inf


@dataclass(slots=True)
class RemainingWork:
    """The record of lengths.

    seen: whole lengths, 1-GPU seconds. ratios: of truth to hint, per tenant. wholes:
    progress of ended jobs, per application; hints: of its jobs that live.
    """

    seen: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    ratios: dict[TenantId, deque[float]] = field(default_factory=dict)
    wholes: dict[Key, deque[float]] = field(default_factory=dict)
    hints: dict[Key, deque[float]] = field(default_factory=dict)
    living: dict[JobId, _Living] = field(default_factory=dict)

    def left(self, jobs: Sequence[JobView], alone_J: FloatArray) -> FloatArray:
        """Return the progress that each job has before it, 0 where its goodput is
        unknown.

        alone_J: goodput on one GPU, 0 where unknown. Takes in which jobs are here, and
        learns from those that have gone.
        """
        here = {job.id for job in jobs}
        for gone in [name for name in self.living if name not in here]:
            self._learn(self.living.pop(gone))
        known = [
            (row, job, alone)
            for row, (job, alone) in enumerate(zip(jobs, alone_J.tolist(), strict=True))
            if alone > 0.0
        ]
        for _, job, alone in known:
            self._take_in(job, alone)
        record = _Record(self)
        left_J = np.zeros(len(jobs))
        for row, job, _ in known:
            left_J[row] = record.left(self.living[job.id])
        return left_J

    def _take_in(self, job: JobView, alone: float) -> None:
        living = self.living.get(job.id)
        if living is None:
            living = self.living[job.id] = _Living(job.spec.tenant, key_of(job))
        progress = job.measured.progress
        hint = hinted(job)
        if progress != living.progress:
            living.before = living.progress
        living.progress = progress
        living.alone = alone
        if hint is not None and living.hint == math.inf:
            self.seen.append(hint / alone)
            if living.key is not None:
                _remember(self.hints, living.key, hint)
        living.hint = math.inf if hint is None else hint

    def _learn(self, gone: _Living) -> None:
        ratio = gone.progress / gone.hint
        honest = HONEST[0] <= ratio <= HONEST[1]
        if gone.key is not None and gone.before > 0.0:
            # The last report comes before the end: by half of a report's time in the
            # mean.
            whole = gone.progress + 0.5 * (gone.progress - gone.before)
            _remember(self.wholes, gone.key, gone.hint if honest else whole)
        if gone.hint == math.inf:
            self.seen.append(gone.progress / gone.alone)
        else:
            ratios = self.ratios.setdefault(gone.tenant, deque(maxlen=RATIOS_MAX))
            ratios.append(1.0 if honest else ratio)

    def unseen_s(self, shows_s: float) -> float:
        """Return the 1-GPU seconds that a job of unknown length counts as; after
        `shows_s` it is known.

        The least mean time to an end, over y, of running it on while it proves no
        longer than y, by the jobs seen (a Gittins index).
        """
        known = sorted(self.seen) or [TYPICAL_S]
        means = (shows_s * len(known) + total for total in accumulate(known))
        return min(mean / count for count, mean in enumerate(means, 1))


class _Record:
    """The record of one round, in order; what several jobs need is worked out once."""

    def __init__(self, work: RemainingWork) -> None:
        self._work = work
        self._seen = sorted(work.seen)
        self._ratios: dict[TenantId, list[float]] = {}
        self._spreads: dict[TenantId | Key, float] = {}

    def left(self, job: _Living) -> float:
        """Return the progress that a job has left."""
        by_application = self._by_application(job)
        if by_application is not None:
            return by_application
        if job.hint == math.inf:
            past_s = job.progress / job.alone
            begin = bisect_right(self._seen, past_s)
            left_s = max(past_s, TYPICAL_S)
            if begin < len(self._seen):
                left_s = _median_from(self._seen, begin) - past_s
            return max(left_s, NEARLY_DONE) * job.alone
        ratios = self._ratios_of(job.tenant)
        begin = sum(1 for ratio in ratios if ratio * job.hint <= job.progress)
        if begin == len(ratios):
            return OVERRUN * job.progress
        whole = _median_from(ratios, begin) * job.hint
        return max(whole - job.progress, NEARLY_DONE * job.hint)

    def _ratios_of(self, tenant: TenantId) -> list[float]:
        if tenant not in self._ratios:
            known = self._work.ratios.get(tenant, ())
            self._ratios[tenant] = sorted((*known, *[1.0] * TRUST))
        return self._ratios[tenant]

    def _by_application(self, job: _Living) -> float | None:
        """Return the progress left by other jobs of the application; None: they say
        nothing.
        """
        if job.key is None:
            return None
        has_hint = job.hint < math.inf
        alike: Sequence[float] = self._work.wholes.get(job.key, ())
        if not alike and not has_hint:
            alike = self._work.hints.get(job.key, ())
        if not alike:
            return None
        if has_hint and (len(alike) < TRUST or not self._errs_less(job, alike)):
            return None
        wholes = sorted(alike)
        begin = bisect_right(wholes, job.progress)
        rest = OVERRUN * job.progress
        if begin < len(wholes):
            rest = _median_from(wholes, begin) - job.progress
        return max(rest, NEARLY_DONE * job.alone)

    def _errs_less(self, job: _Living, alike: Sequence[float]) -> bool:
        """Return whether jobs of the application differ by less than hints from the
        truth.
        """
        assert job.key is not None
        if job.key not in self._spreads:
            self._spreads[job.key] = _spread(alike, median(alike))
        if job.tenant not in self._spreads:
            self._spreads[job.tenant] = _spread(self._ratios_of(job.tenant), 1.0)
        return self._spreads[job.key] < self._spreads[job.tenant]


def _remember(lengths: dict[Key, deque[float]], key: Key, length: float) -> None:
    """Add a length to its application's; the applications longest unseen are
    forgotten.
    """
    same = lengths[key] = lengths.pop(key, deque(maxlen=WHOLES_MAX))
    same.append(length)
    if len(lengths) > APPLICATIONS_MAX:
        del lengths[next(iter(lengths))]


def _median_from(ascending: Sequence[float], begin: int) -> float:
    """Return the median of these from `begin` on."""
    middle = (begin + len(ascending)) // 2
    if (len(ascending) - begin) % 2:
        return ascending[middle]
    return 0.5 * (ascending[middle - 1] + ascending[middle])


def _spread(values: Sequence[float], around: float) -> float:
    """Return by how much `values` differ from `around` in the mean, in logarithms."""
    floor = 1e-9
    return fmean(
        abs(math.log(max(value, floor) / max(around, floor))) for value in values
    )
