"""Optimus (Peng et al., EuroSys 2018) for all-reduce jobs: GPUs one at a time to whoever gains most time."""

from typing import ClassVar

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.base import PolicyCard
from coadapt.policies.giving.by_gain import grow_by_gain
from coadapt.policies.giving.capacity import Capacity, span, useful_span
from coadapt.policies.giving.counted_plan import counted_plan
from coadapt.policies.giving.reasons import go_first, waits
from coadapt.policies.predictors.declared import forecast_of

# Steps left that are assumed where a forecast says that none are: the job is still there (OSDI'21 artifact).
MIN_REMAINING_STEPS = 1.0


class Optimus:
    """Needs a forecast (`Optimus+Oracle` where it comes from a trace) or a declared length; jobs without one
    hold their minimum.

    Each round starts anew and counts no cost of rescaling, as in Pollux's simulator (OSDI'21 artifact): the
    minimum to each job in order of submission, then one GPU at a time to the largest decrease of remaining
    time. Parameter servers and the loss-curve fit of the paper are not modelled.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Peng et al., Optimus, EuroSys 2018", decides="GPU counts", oracle="time left at each count"
    )

    def allocate(self, view: ClusterView) -> Plan:
        capacity = Capacity(view)
        notes: dict[JobId, str] = {}
        num_served = 0
        for job in view.jobs:
            low = span(job)[0]
            if job.id in capacity.counts or capacity.give(job, low):
                num_served += 1
            else:
                notes[job.id] = waits(job, low, capacity, go_first(num_served, "that came earlier"))
        gains = {job.id: Gains(job) for job in view.jobs if job.id in capacity.counts}
        worth = {job_id: each.of_next for job_id, each in gains.items()}
        grow_by_gain([job for job in view.jobs if job.id in gains], capacity, worth)
        notes |= {job_id: _note(gain, capacity.counts[job_id]) for job_id, gain in gains.items()}
        return counted_plan(view, capacity, notes)


class Gains:
    """Seconds by which one more than so many replicas end one job sooner; 0 if it may not have it.

    For one round: what is the same at every count is found once.
    """

    def __init__(self, job: JobView) -> None:
        forecast = forecast_of(job)
        self.num_useful = useful_span(job)[1]
        self.is_known = forecast is not None
        self._step_time_s = () if forecast is None else forecast.step_time_s
        self._most = min(self.num_useful, len(self._step_time_s))
        remaining = 0.0 if forecast is None else forecast.remaining_steps
        self._remaining = remaining if remaining > 0 else MIN_REMAINING_STEPS

    def of_next(self, num_replicas: int) -> float:
        if num_replicas >= self._most:
            return 0.0
        times = self._step_time_s
        return (times[num_replicas - 1] - times[num_replicas]) * self._remaining


def _note(gains: Gains, num_replicas: int) -> str:
    if num_replicas >= gains.num_useful:
        return "it can use no more"
    if not gains.is_known:
        return "without a forecast it gets its minimum"
    gain = gains.of_next(num_replicas)
    return f"one more would end it {gain:.0f} s sooner" if gain > 0 else "one more would not end it sooner"
