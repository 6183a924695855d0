"""Remaining work of each job: from its reported or declared length, corrected by how
accurate such lengths were, or from ended jobs of its application.
"""

# A reported or declared length is a hint H, in samples. When a job has gone, the ratio
# (progress made) / H is kept for its tenant. A job with progress p then has
#
#     median of { r H : r a ratio of the tenant, r H > p } - p
#
# left: the median residual life. TRUST ratios of 1 are always in the record. A ratio
# within HONEST counts as 1, because a job's last report comes before its end. A job
# whose progress p is past all recorded lengths is predicted to have OVERRUN x p left.
# No job is predicted to have less than NEARLY_DONE x p left.
#
# Jobs of one application are often alike in length, so the lengths L of its ended jobs
# give a second prediction: median of { L > p } - p. A job with a hint uses it if the
# application has at least TRUST lengths and their mean |log(L / median)| is below the
# mean |log r| of the tenant. A job without a hint uses it if there is any length; if no
# job of its application has ended, the hints of such jobs are taken for L. A job with
# neither uses the lengths of all jobs, in seconds of one GPU; past all of them it has
# at least TYPICAL_S left.

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

# No measurement is recorded for these, except for OVERRUN.
SEEN_MAX = 400  # most lengths kept over all jobs, the latest
RATIOS_MAX = 50  # most ratios kept per tenant, the latest
WHOLES_MAX = 25  # most lengths kept per application, the latest
# Ratios of 1 in each tenant's record, and the lengths that an application needs before
# its prediction may replace a hint.
TRUST = 3
HONEST = (0.8, 1.1)  # ratios in this range count as 1
# Share of its progress that a job has left if it is past all recorded lengths (0.1 to 1
# give about the same).
OVERRUN = 0.25
# Length of a job while none was seen, and the least that a job without hint and
# application has left once it is past all lengths; seconds of one GPU.
TYPICAL_S = 3_600.0
# The least that a job has left, as a share of its progress.
NEARLY_DONE = 1e-3


def hinted(job: JobView) -> float | None:
    """Return the progress (samples) at which `job` ends by its report, or else by its
    declared length.

    None: unknown. A length in epochs is unknown until the job reports how many samples
    an epoch has.
    """
    reported = job.measured.progress_target
    if reported is not None and reported > 0.0:
        return reported
    return declared_samples(job)


@dataclass(slots=True)
class _Living:
    """A present job.

    key: its application. progress: of its last report; before: of the report before
    that; alone: goodput on one GPU; hint: infinity if unknown.
    """

    tenant: TenantId
    key: Key | None
    progress: float = 0.0
    before: float = 0.0
    alone: float = 0.0
    hint: float = math.inf


@dataclass(slots=True)
class RemainingWork:
    """The record of lengths.

    seen: lengths of all jobs, seconds of one GPU: hints when they are first known, and
    the progress of jobs that ended without one. ratios: progress made over hint of jobs
    that have gone, per tenant. wholes: lengths of jobs that have gone, per application,
    samples. hints: first hints of jobs, per application, samples.
    """

    seen: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    ratios: dict[TenantId, deque[float]] = field(default_factory=dict)
    wholes: dict[Key, deque[float]] = field(default_factory=dict)
    hints: dict[Key, deque[float]] = field(default_factory=dict)
    living: dict[JobId, _Living] = field(default_factory=dict)

    def left(self, jobs: Sequence[JobView], alone_J: FloatArray) -> FloatArray:
        """Return the progress that each job has left, 0 where its goodput is unknown.

        alone_J: goodput on one GPU, 0: unknown. The record is updated with the jobs and
        with those that have gone since the last call.
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
            # On average a job ends half a report interval after its last report.
            whole = gone.progress + 0.5 * (gone.progress - gone.before)
            _remember(self.wholes, gone.key, gone.hint if honest else whole)
        if gone.hint == math.inf:
            self.seen.append(gone.progress / gone.alone)
        else:
            ratios = self.ratios.setdefault(gone.tenant, deque(maxlen=RATIOS_MAX))
            ratios.append(1.0 if honest else ratio)

    def unseen_s(self, shows_s: float) -> float:
        """Return the length that an untimed job counts as, in seconds of one GPU.

        shows_s: what it costs to find out its length. It is the minimum over y of
        (shows_s + E[S; S <= y]) / P(S <= y), S being the lengths seen: the mean time
        per end, if jobs that prove longer than y are stopped after shows_s.
        """
        known = sorted(self.seen) or [TYPICAL_S]
        means = (shows_s * len(known) + total for total in accumulate(known))
        return min(mean / count for count, mean in enumerate(means, 1))


class _Record:
    """The record as one round uses it: sorted, with values that several jobs share."""

    def __init__(self, work: RemainingWork) -> None:
        self._work = work
        self._seen = sorted(work.seen)
        self._ratios: dict[TenantId, list[float]] = {}
        self._spreads: dict[TenantId | Key, float] = {}

    def left(self, job: _Living) -> float:
        """Return the progress that a job is predicted to have left, samples."""
        by_application = self._by_application(job)
        if by_application is not None:
            return by_application
        if job.hint == math.inf:
            past_s = job.progress / job.alone
            begin = bisect_right(self._seen, past_s)
            left_s = max(OVERRUN * past_s, TYPICAL_S)
            if begin < len(self._seen):
                left_s = _median_from(self._seen, begin) - past_s
            return max(left_s, NEARLY_DONE * past_s) * job.alone
        ratios = self._ratios_of(job.tenant)
        begin = sum(1 for ratio in ratios if ratio * job.hint <= job.progress)
        if begin == len(ratios):
            return OVERRUN * job.progress
        whole = _median_from(ratios, begin) * job.hint
        return max(whole - job.progress, NEARLY_DONE * job.progress)

    def _ratios_of(self, tenant: TenantId) -> list[float]:
        if tenant not in self._ratios:
            known = self._work.ratios.get(tenant, ())
            self._ratios[tenant] = sorted((*known, *[1.0] * TRUST))
        return self._ratios[tenant]

    def _by_application(self, job: _Living) -> float | None:
        """Return the progress left by the lengths of the application, samples.

        None: there are none, or the hint is the better prediction.
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
        return max(rest, NEARLY_DONE * job.progress)

    def _errs_less(self, job: _Living, alike: Sequence[float]) -> bool:
        """Return whether lengths of the application differ by less than the tenant's
        ratios, in mean absolute logarithm.
        """
        assert job.key is not None
        if job.key not in self._spreads:
            self._spreads[job.key] = _spread(alike, median(alike))
        if job.tenant not in self._spreads:
            self._spreads[job.tenant] = _spread(self._ratios_of(job.tenant), 1.0)
        return self._spreads[job.key] < self._spreads[job.tenant]


def _remember(lengths: dict[Key, deque[float]], key: Key, length: float) -> None:
    """Add a length to those of its application. The application that got none for the
    longest time is forgotten if there are too many.
    """
    same = lengths[key] = lengths.pop(key, deque(maxlen=WHOLES_MAX))
    same.append(length)
    if len(lengths) > APPLICATIONS_MAX:
        del lengths[next(iter(lengths))]


def _median_from(ascending: Sequence[float], begin: int) -> float:
    """Return the median of the values from index `begin` to the end."""
    middle = (begin + len(ascending)) // 2
    if (len(ascending) - begin) % 2:
        return ascending[middle]
    return 0.5 * (ascending[middle - 1] + ascending[middle])


def _spread(values: Sequence[float], around: float) -> float:
    """Return the mean of |log(value / around)|."""
    floor = 1e-9
    return fmean(
        abs(math.log(max(value, floor) / max(around, floor))) for value in values
    )
