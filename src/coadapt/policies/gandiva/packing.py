"""Which two jobs share GPUs: tried, timed, and kept only where both get more done
together (Gandiva).
"""

# Two jobs that take turns get half of their speed each: 1 in all. Packed on one set of
# GPUs they get
#
#   score = sum over both of (step time alone / step time packed)
#
# and stay packed if the score is above the threshold. Step times are those that jobs
# report. A reported step time counts only if the job held the same GPUs, or none, in
# the previous view: otherwise it may have been measured on other GPUs.

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model import WAITING, Allocation, ClusterView, JobId, JobView
from coadapt.policies.allocation.queue import requested_gpus


@dataclass(slots=True)
class _Timed:
    """Step times of one job, s: alone on the GPUs that it requested, and beside its
    partner.
    """

    held: Allocation = WAITING
    samples: float = 0.0
    alone_s: float | None = None
    packed_s: float | None = None


@dataclass(slots=True)
class Packing:
    """Pairs of jobs, and what is known of pairs. Losing it loses trials."""

    partner: dict[JobId, JobId] = field(default_factory=dict)
    _since: dict[JobId, float] = field(default_factory=dict)
    _timed: dict[JobId, _Timed] = field(default_factory=dict)
    # Scores of pairs that were tried: of jobs, and of applications on so many GPUs,
    # where they have a name.
    _tried: dict[tuple[JobId, JobId], float] = field(default_factory=dict)
    _scores: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def observe(self, view: ClusterView) -> None:
        """Note the step times of all jobs, and forget those that are gone."""
        jobs = {job.id for job in view.jobs}
        for gone in [job for job in self._timed if job not in jobs]:
            self.part(gone)
            del self._timed[gone]
        self._tried = {
            pair: score for pair, score in self._tried.items() if jobs.issuperset(pair)
        }
        grants = {job.id: job.allocation for job in view.jobs}
        for job in view.jobs:
            timed = self._timed.setdefault(job.id, _Timed())
            held = job.allocation
            began = not timed.held and job.measured.samples > timed.samples
            if held and (held == timed.held or began) and job.measured.step_time_s:
                other = self.partner.get(job.id)
                if not held.shared and held.num_replicas == requested_gpus(job):
                    timed.alone_s = job.measured.step_time_s
                elif other is not None and grants[other] == held:
                    timed.packed_s = job.measured.step_time_s
            timed.held = held
            timed.samples = job.measured.samples

    def judge(self, view: ClusterView, trial_s: float, threshold: float) -> list[JobId]:
        """Return the jobs that must leave their partners, parted already: trials of
        `trial_s` that failed.
        """
        jobs = {job.id: job for job in view.jobs}
        failed = []
        for first, since in sorted(self._since.items()):
            score = self._score(first, self.partner[first])
            if score is None or view.at - since < trial_s:
                continue
            second = self.partner[first]
            self._tried[first, second] = score
            self._scores[_kinds(jobs[first], jobs[second])] = score
            if score <= threshold:
                failed.append(second)
        for second in failed:
            self.part(second)
        return failed

    def promise(
        self, first: JobView, second: JobView, threshold: float
    ) -> float | None:
        """Return the score to expect of a pair, the threshold where untried; None: not
        worth a trial.
        """
        if any(self._timed[job.id].alone_s is None for job in (first, second)):
            return None
        known = self._tried.get(
            (first.id, second.id), self._tried.get((second.id, first.id))
        )
        if known is None and first.spec.application and second.spec.application:
            known = self._scores.get(_kinds(first, second))
        if known is None:
            return threshold
        return known if known > threshold else None

    def pair(self, first: JobId, second: JobId, at: float) -> None:
        """Put `second` on the GPUs of `first`, both being without a partner, from `at`
        (s) on.
        """
        self.partner |= {first: second, second: first}
        self._since[first] = at
        for job in (first, second):
            self._timed[job].packed_s = None

    def part(self, job: JobId) -> None:
        """End the pair of `job`, if it has one."""
        other = self.partner.pop(job, None)
        if other is not None:
            del self.partner[other]
            self._since.pop(job, None)
            self._since.pop(other, None)

    def leads(self, job: JobId) -> bool:
        """Return whether `job` is the one of its pair whose home it is; True without a
        pair.
        """
        return job not in self.partner or job in self._since

    def score_of(self, job: JobId) -> float | None:
        """Return what the pair of `job` gets done together, as last timed; None while
        it is not.
        """
        return self._score(job, self.partner[job]) if job in self.partner else None

    def _score(self, first: JobId, second: JobId) -> float | None:
        total = 0.0
        for timed in (self._timed[first], self._timed[second]):
            if timed.alone_s is None or timed.packed_s is None:
                return None
            total += timed.alone_s / timed.packed_s
        return total


def _kinds(first: JobView, second: JobView) -> tuple[str, str, int]:
    names = sorted((first.spec.application, second.spec.application))
    return names[0], names[1], requested_gpus(first)


def may_share(first: JobView, second: JobView, quotas: Mapping[str, int]) -> bool:
    """Return whether quotas let two jobs share GPUs: they are of one tenant, or their
    tenants have none.
    """
    tenants = {first.spec.tenant, second.spec.tenant}
    return len(tenants) == 1 or not tenants & set(quotas)
