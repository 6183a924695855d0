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
# Without any hint the same is done with whole lengths in 1-GPU seconds, over the jobs of all tenants.

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from coadapt.model import JobId, JobView
from coadapt.model.tenant import TenantId

SEEN_MAX = 400  # lengths that are remembered
RATIOS_MAX = 50  # ratios per tenant
TRUST = 3  # ratios of 1 that a tenant starts with (1)
HONEST = (0.8, 1.1)  # ratios that count as 1
OVERRUN = 0.25  # of what a job did that is past all it was to do (tried: 0.1-1 alike)
TYPICAL_S = 3_600.0  # 1-GPU seconds of a job while none was seen (1)
NEARLY_DONE = 1e-3  # of a job's length: the least that it is taken to have left


def hinted(job: JobView) -> float | None:
    """Return the progress (samples) at which `job` is to end by its report or its user's word; None: unknown.

    Epochs say nothing before the first report: nobody told how many samples an epoch has.
    """
    told, length = job.measured.progress_target, job.spec.length
    if told is not None and told > 0.0:
        return told
    if length is not None and length.samples is not None:
        return length.samples
    if length is not None and length.steps is not None:
        return length.steps * job.spec.batch.requested
    return None


@dataclass(frozen=True, slots=True)
class _Living:
    tenant: TenantId
    hint: float | None
    progress: float
    alone: float


@dataclass(slots=True)
class Lengths:
    """The record. seen: whole lengths, 1-GPU seconds. ratios: of truth to hint, per tenant."""

    seen: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    ratios: dict[TenantId, deque[float]] = field(default_factory=dict)
    living: dict[JobId, _Living] = field(default_factory=dict)

    def observe(self, jobs: Sequence[JobView], alone: Sequence[float]) -> None:
        """Take in who is there, with their goodputs on one GPU (0: unknown), and learn from who has gone."""
        here = {job.id for job in jobs}
        for gone in [job for job in self.living if job not in here]:
            self._learn(self.living.pop(gone))
        for job, goodput in zip(jobs, alone, strict=True):
            if goodput <= 0.0:
                continue
            hint = hinted(job)
            if hint is not None and job.id not in self.living:
                self.seen.append(hint / goodput)
            self.living[job.id] = _Living(job.spec.tenant, hint, job.measured.progress, goodput)

    def _learn(self, last: _Living) -> None:
        if last.hint is None:
            self.seen.append(last.progress / last.alone)
            return
        ratio = last.progress / last.hint
        ratio = 1.0 if HONEST[0] <= ratio <= HONEST[1] else ratio
        self.ratios.setdefault(last.tenant, deque(maxlen=RATIOS_MAX)).append(ratio)

    def typical_s(self, past_s: float = 0.0) -> float:
        """Return the 1-GPU seconds that jobs which did `past_s` have left: the median of those seen."""
        longer = [each for each in self.seen if each > past_s]
        return float(median(longer)) - past_s if longer else max(past_s, TYPICAL_S)

    def left(self, job: JobView, alone: float) -> float:
        """Return the progress that `job`, of goodput `alone` > 0 on one GPU, has before it."""
        done, hint = job.measured.progress, hinted(job)
        if hint is None:
            return max(self.typical_s(done / alone) * alone, NEARLY_DONE * alone)
        told = self.ratios.get(job.spec.tenant, ())
        longer = [ratio for ratio in (*told, *[1.0] * TRUST) if ratio * hint > done]
        if not longer:
            return OVERRUN * done
        return max(float(median(longer)) * hint - done, NEARLY_DONE * hint)
