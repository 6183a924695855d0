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
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import fmean, median
from typing import NamedTuple

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


class _Living(NamedTuple):
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

    @property
    def is_honest(self) -> bool:
        """Whether the progress at the end was about that of the hint."""
        return HONEST[0] <= self.progress / self.hint <= HONEST[1]

    @property
    def whole(self) -> float:
        """The length of a job that has gone, samples."""
        # On average a job ends half a report interval after its last report.
        seen = self.progress + 0.5 * (self.progress - self.before)
        return self.hint if self.is_honest else seen


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """The record of lengths, a value.

    seen: lengths of all jobs, seconds of one GPU: hints when they are first known, and
    the progress of jobs that ended without one. ratios: progress made over hint of jobs
    that have gone, per tenant. wholes: lengths of jobs that have gone, per application,
    samples. hints: first hints of jobs, per application, samples.
    """

    seen: tuple[float, ...] = ()
    ratios: Mapping[TenantId, tuple[float, ...]] = field(default_factory=dict)
    wholes: Mapping[Key, tuple[float, ...]] = field(default_factory=dict)
    hints: Mapping[Key, tuple[float, ...]] = field(default_factory=dict)
    living: Mapping[JobId, _Living] = field(default_factory=dict)

    def left(
        self, jobs: Sequence[JobView], alone_J: FloatArray
    ) -> tuple[FloatArray, "RemainingWork"]:
        """Return the progress that each job has left, 0 where its goodput is unknown,
        and the record with these jobs and those that have gone since the last round.

        alone_J: goodput on one GPU, 0: unknown.
        """
        known = [
            (row, job, alone)
            for row, (job, alone) in enumerate(zip(jobs, alone_J.tolist(), strict=True))
            if alone > 0.0
        ]
        here = {job.id for job in jobs}
        gone = [each for name, each in self.living.items() if name not in here]
        after = self._without(here, gone)._with(
            [(job, alone) for _, job, alone in known]
        )
        record = _Record(after)
        left_J = np.zeros(len(jobs))
        for row, job, _ in known:
            left_J[row] = record.left(after.living[job.id])
        return left_J, after

    def _without(self, here: Set[JobId], gone: Sequence[_Living]) -> "RemainingWork":
        """Return the record after the jobs `gone`, with the jobs `here`."""
        if not gone:
            return self
        unhinted = [
            each.progress / each.alone for each in gone if each.hint == math.inf
        ]
        ratios = dict(self.ratios)
        for each in gone:
            if each.hint < math.inf:
                ratio = 1.0 if each.is_honest else each.progress / each.hint
                kept = (*ratios.get(each.tenant, ()), ratio)
                ratios[each.tenant] = kept[-RATIOS_MAX:]
        wholes = [(each.key, each.whole) for each in gone if each.before > 0.0]
        return replace(
            self,
            seen=(*self.seen, *unhinted)[-SEEN_MAX:],
            ratios=ratios,
            wholes=_remembered(self.wholes, wholes),
            living={name: self.living[name] for name in self.living if name in here},
        )

    def _with(self, known: Sequence[tuple[JobView, float]]) -> "RemainingWork":
        """Return the record with jobs and their goodputs on one GPU."""
        living = dict(self.living)
        seen_s = []
        hints = []
        for job, alone in known:
            before = living.get(job.id)
            if before is None:
                before = _Living(job.spec.tenant, key_of(job))
            said = hinted(job)
            if said is not None and before.hint == math.inf:
                seen_s.append(said / alone)
                hints.append((before.key, said))
            progress = job.measured.progress
            moved = progress != before.progress
            living[job.id] = _Living(
                before.tenant,
                before.key,
                progress,
                before.progress if moved else before.before,
                alone,
                math.inf if said is None else said,
            )
        return replace(
            self,
            seen=(*self.seen, *seen_s)[-SEEN_MAX:],
            hints=_remembered(self.hints, hints),
            living=living,
        )

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


def _remembered(
    lengths: Mapping[Key, tuple[float, ...]],
    added: Iterable[tuple[Key | None, float]],
) -> Mapping[Key, tuple[float, ...]]:
    """Return lengths with others added to those of their applications. The application
    that got none for the longest time is forgotten if there are too many.
    """
    found = dict(lengths)
    for key, length in added:
        if key is not None:
            found[key] = (*found.pop(key, ()), length)[-WHOLES_MAX:]
    for oldest in list(found)[:-APPLICATIONS_MAX]:
        del found[oldest]
    return found


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
