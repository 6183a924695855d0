"""What is left of each job: from its reports, its user's word, and how true such words proved before."""

# A declared length is a hint. What it is worth is learned: when a job has gone, the progress it had made over
# the hint it came with is one ratio, kept per tenant. A job that has done x of its hint H then has
#
#     (median of the ratios above x  -  x) H          left,
#
# the median residual life in the tenant's own record. While that record is short a few ratios of 1 stand in
# it. Ratios near 1 count as 1, since the last report of a job comes before its end. A job past all ratios is
# taken to have OVERRUN of what it did before it, so it never counts as nearly done for long.
#
# Jobs of one application (kin.py) are often alike in length. So what its ended jobs did is a second witness:
# who was wrong by less in the mean, in logarithms, over that tenant's hints and that application's jobs, is
# believed. Without a hint the application is, and where none is named, whole lengths in 1-GPU seconds over
# all jobs.

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean, median
from typing import NamedTuple

from coadapt.model import JobId, JobView
from coadapt.model.tenant import TenantId
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
    """Return the progress (samples) at which `job` is to end by its report or its user's word; None: unknown.

    Epochs say nothing before the first report: nobody told how many samples an epoch has.
    """
    told = job.measured.progress_target
    return told if told is not None and told > 0.0 else declared_samples(job)


class _Living(NamedTuple):
    tenant: TenantId
    key: Key | None
    hint: float | None
    before: float
    progress: float
    alone: float


@dataclass(slots=True)
class Lengths:
    """The record. seen: whole lengths, 1-GPU seconds. ratios: of truth to hint, per tenant.

    wholes: progress of ended jobs, per application; told: hints of its jobs. spreads: of these and of ratios,
    by whose they are, until one of them changes. ordered: ratios, and lengths of an application, ascending,
    likewise. rest: what each job has left, until it tells more or the record changes.
    """

    seen: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    ratios: dict[TenantId, deque[float]] = field(default_factory=dict)
    wholes: dict[Key, deque[float]] = field(default_factory=dict)
    told: dict[Key, deque[float]] = field(default_factory=dict)
    living: dict[JobId, _Living] = field(default_factory=dict)
    spreads: dict[Key | TenantId, float] = field(default_factory=dict)
    ordered: dict[Key | TenantId, list[float]] = field(default_factory=dict)
    rest: dict[JobId, float] = field(default_factory=dict)

    def observe(self, jobs: Sequence[JobView], alone: Sequence[float], hints: Sequence[float | None]) -> None:
        """Take in who is there, with their goodputs on one GPU (0: unknown), and learn from who has gone.

        hints: as of `hinted`.
        """
        here = {job.id for job in jobs}
        for gone in [job for job in self.living if job not in here]:
            self._learn(self.living.pop(gone))
        for job, goodput, hint in zip(jobs, alone, hints, strict=True):
            if goodput <= 0.0:
                continue
            last, progress = self.living.get(job.id), job.measured.progress
            if last is not None and last.progress == progress and last.alone == goodput and last.hint == hint:
                continue  # it waits, or has not reported since
            key = key_of(job)
            if hint is not None and (last is None or last.hint is None):
                self.seen.append(hint / goodput)
                self.spreads.clear()
                self.rest.clear()
                if key is not None:
                    self._remember(self.told, key, hint)
            before = 0.0 if last is None else last.before if last.progress == progress else last.progress
            self.living[job.id] = _Living(job.spec.tenant, key, hint, before, progress, goodput)
            self.rest.pop(job.id, None)

    def _learn(self, last: _Living) -> None:
        self.spreads.clear()
        self.rest.clear()
        # The last report comes before the end: by half of the time between two of them in the mean.
        whole = last.progress + 0.5 * (last.progress - last.before)
        ratio = None if last.hint is None else last.progress / last.hint
        honest = ratio is not None and HONEST[0] <= ratio <= HONEST[1]
        if last.key is not None and last.before > 0.0:
            known = last.hint if honest and last.hint is not None else whole
            self._remember(self.wholes, last.key, known)
        if ratio is None:
            self.seen.append(last.progress / last.alone)
            return
        ratio = 1.0 if honest else ratio
        self.ratios.setdefault(last.tenant, deque(maxlen=RATIOS_MAX)).append(ratio)
        self.ordered.pop(last.tenant, None)

    def typical_s(self, past_s: float = 0.0) -> float:
        """Return the 1-GPU seconds that jobs which did `past_s` have left: the median of those seen."""
        longer = [each for each in self.seen if each > past_s]
        return float(median(longer)) - past_s if longer else max(past_s, TYPICAL_S)

    def unseen_s(self, shows_s: float) -> float:
        """Return the 1-GPU seconds that a job of unknown length counts as; after `shows_s` it is known.

        Jobs seen stand for it: the least mean time to an end, over y, of running it on while it proves no
        longer than y.
        """
        known = sorted(self.seen) or [TYPICAL_S]
        means = (shows_s * len(known) + total for total in accumulate(known))
        return min(mean / count for count, mean in enumerate(means, 1))

    def left(self, job: JobId) -> float:
        """Return the progress that a job has before it that was just observed with a goodput."""
        left = self.rest.get(job)
        if left is None:
            left = self.rest[job] = self._left(job)
        return left

    def _left(self, job: JobId) -> float:
        tenant, key, hint, _, done, alone = self.living[job]
        if key is not None:
            alike = self._alike(key, hint)
            if alike and (hint is None or (len(alike) >= TRUST and self._truer(key, alike, tenant))):
                wholes = self.ordered.get(key)
                if wholes is None:
                    wholes = self.ordered[key] = sorted(alike)
                begin = bisect_right(wholes, done)
                rest = _middle(wholes, begin) - done if begin < len(wholes) else OVERRUN * done
                return max(rest, NEARLY_DONE * alone)
        if hint is None:
            return max(self.typical_s(done / alone) * alone, NEARLY_DONE * alone)
        told = self.ordered.get(tenant) or self._told(tenant)
        begin = bisect_right(told, done / hint)
        while begin < len(told) and told[begin] * hint <= done:  # the quotient was rounded
            begin += 1
        while begin and told[begin - 1] * hint > done:
            begin -= 1
        if begin == len(told):
            return OVERRUN * done
        return max(_middle(told, begin) * hint - done, NEARLY_DONE * hint)

    def _told(self, tenant: TenantId) -> Sequence[float]:
        """Return the ratios of a tenant's hints and those of before them, ascending."""
        told = self.ordered.get(tenant)
        if told is None:
            told = self.ordered[tenant] = sorted((*self.ratios.get(tenant, ()), *[1.0] * TRUST))
        return told

    def _truer(self, key: Key, alike: Sequence[float], tenant: TenantId) -> bool:
        """Return whether jobs alike differ by less than the truth from the hints of a tenant."""
        if key not in self.spreads:
            self.spreads[key] = _spread(alike)
        if tenant not in self.spreads:
            self.spreads[tenant] = _spread(self._told(tenant), 1.0)
        return self.spreads[key] < self.spreads[tenant]

    def _remember(self, lengths: dict[Key, deque[float]], key: Key, length: float) -> None:
        """Add a length to its application's, now the last one seen; the longest unseen are forgotten."""
        same = lengths[key] = lengths.pop(key, deque(maxlen=WHOLES_MAX))
        same.append(length)
        self.ordered.pop(key, None)
        if len(lengths) > APPLICATIONS_MAX:
            longest_unseen = next(iter(lengths))
            del lengths[longest_unseen]
            self.ordered.pop(longest_unseen, None)

    def _alike(self, key: Key, hint: float | None) -> Sequence[float]:
        """Return whole lengths (progress) of an application: of ended jobs, else as hints told."""
        return self.wholes.get(key, ()) or (self.told.get(key, ()) if hint is None else ())


def _middle(ordered: Sequence[float], begin: int) -> float:
    """Return the median of these from `begin` on, which ascend."""
    middle = (begin + len(ordered)) // 2
    return ordered[middle] if (len(ordered) - begin) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])


def _spread(values: Sequence[float], around: float | None = None) -> float:
    """Return by how much `values` differ from `around` (their median) in the mean, in logarithms."""
    middle = median(values) if around is None else around
    return fmean(abs(math.log(max(value, 1e-9) / max(middle, 1e-9))) for value in values)
