"""AFS-L (Hwang et al., NSDI 2021): short jobs first, unless a long one uses the next
GPU far better.
"""

from dataclasses import dataclass
from typing import ClassVar

from coadapt.model import ClusterView, Forecast, JobId, JobView, Plan
from coadapt.policies.allocation.capacity import Capacity, span, useful_span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.reasons import waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.declared import forecast_of

MIN_REMAINING_STEPS = (
    1.0  # of a job whose forecast says that none are left, though it is still there
)


class Afs:
    """Elastic share: one GPU at a time to the winner among all jobs. Needs a forecast
    or a declared length.

    Jobs without one get their fewest first, in order of submission, and never grow.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Hwang et al., AFS, NSDI 2021",
        decides="GPU counts",
        oracle="time left at each count",
    )

    def allocate(self, view: ClusterView) -> Plan:
        capacity = Capacity(view)
        contenders: list[_Contender] = []
        unknown: set[JobId] = set()
        for job in view.jobs:
            forecast = forecast_of(job)
            if forecast is not None:
                contenders.append(
                    _contender(job, forecast, capacity.counts.get(job.id, 0))
                )
                continue
            unknown.add(job.id)
            if job.id not in capacity.counts:
                capacity.give(job, span(job)[0])
        while contenders:
            winner = contenders[0]
            for other in contenders[1:]:
                if _beats(other, winner):
                    winner = other
            if winner.gain > 0.0 and _give(winner, capacity):
                winner.count = capacity.counts[winner.job.id]
            else:
                contenders.remove(winner)
        notes: dict[JobId, str] = {}
        for job in view.jobs:
            if job.id not in capacity.counts:
                notes[job.id] = waits(
                    job,
                    span(job)[0],
                    capacity,
                    "shorter jobs and better scaling ones go first",
                )
            elif job.id in unknown:
                notes[job.id] = "without a forecast it gets its minimum"
        return counted_plan(view, capacity, notes)


@dataclass(slots=True, eq=False)
class _Contender:
    """A job with `count` GPUs so far. times: seconds of a step on 1, 2, ... GPUs that
    it can use.
    """

    job: JobView
    low: int
    count: int
    steps: float
    times: tuple[float, ...]

    @property
    def next(self) -> int:
        """Its count with one more GPU, or its fewest."""
        return self.count + 1 if self.count else self.low

    def speedup(self, count: int) -> float:
        """Return its speedup over one GPU; 0 without any, the last known one beyond
        what is known.
        """
        return (
            self.times[0] / self.times[min(count, len(self.times)) - 1]
            if count
            else 0.0
        )

    @property
    def gain(self) -> float:
        """What its speedup grows by with the next GPU; nothing where it can use no
        more.
        """
        if self.count and self.next > len(self.times):
            return 0.0
        return self.speedup(self.next) - self.speedup(self.count)

    def left_s(self, count: int) -> float:
        """Return the seconds that are left on `count` GPUs; infinity without any."""
        return (
            self.steps * self.times[0] / self.speedup(count) if count else float("inf")
        )


def _contender(job: JobView, forecast: Forecast, count: int) -> _Contender:
    low, most = useful_span(job)
    return _Contender(
        job=job,
        low=low,
        count=count,
        steps=max(forecast.remaining_steps, MIN_REMAINING_STEPS),
        times=forecast.step_time_s[:most],
    )


def _beats(other: _Contender, held: _Contender) -> bool:
    """Return whether `other` deserves the next GPU more than `held` does (AFS-L,
    algorithm 1).
    """
    if held.gain <= 0.0 or other.gain <= 0.0:
        return other.gain > 0.0
    if not held.count and not other.count:
        return other.left_s(other.low) < held.left_s(held.low)
    if other.left_s(other.count) < held.left_s(held.count):
        return not _long_wins(other, held)
    return _long_wins(held, other)


def _long_wins(short: _Contender, long: _Contender) -> bool:
    """Return whether the longer job gains more of its next speedup than the shorter of
    its present one.
    """
    return long.gain / long.speedup(long.next) > short.gain / short.speedup(short.count)


def _give(winner: _Contender, capacity: Capacity) -> bool:
    return (
        capacity.grow(winner.job)
        if winner.count
        else capacity.give(winner.job, winner.low)
    )
