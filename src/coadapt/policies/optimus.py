"""Optimus (Peng et al., EuroSys 2018) for all-reduce jobs: GPUs one at a time to the
job that gains most time.
"""

from typing import ClassVar

from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.capacity import Capacity, span, useful_span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.greedy import MarginalGain, grow_greedily
from coadapt.policies.allocation.reasons import go_first, waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.declared import forecast_of

# Steps left that are assumed where a forecast says that none are: the job is still
# there (OSDI'21 artifact).
MIN_REMAINING_STEPS = 1.0
UNKNOWN = MarginalGain(())  # of a job without a forecast


class Optimus:
    """Needs a forecast (`Optimus+Oracle` where it comes from a trace) or a declared
    length; jobs without one hold their minimum.

    Each round starts from nothing and counts no cost of rescaling, as in Pollux's
    simulator (OSDI'21 artifact): the minimum to each job in order of submission, then
    one GPU at a time to the largest decrease of remaining time. Parameter servers and
    the loss-curve fit of the paper are not modelled.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Peng et al., Optimus, EuroSys 2018",
        decides="GPU counts",
        oracle="time left at each count",
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
                notes[job.id] = waits(
                    job, low, capacity, go_first(num_served, "that came earlier")
                )
        served = [job for job in view.jobs if job.id in capacity.counts]
        num_useful = {job.id: useful_span(job)[1] for job in served}
        worth = {job.id: worth_of(job, num_useful[job.id]) for job in served}
        grow_greedily(served, capacity, worth)
        for job_id, each in worth.items():
            notes[job_id] = _note(each, capacity.counts[job_id], num_useful[job_id])
        return counted_plan(view, capacity, notes)


def worth_of(job: JobView, num_useful: int) -> MarginalGain:
    """Return by how many seconds more replicas end `job` sooner; it can use so many."""
    forecast = forecast_of(job)
    if forecast is None:
        return UNKNOWN
    remaining = forecast.remaining_steps
    return MarginalGain(
        forecast.step_time_s[:num_useful],
        remaining if remaining > 0 else MIN_REMAINING_STEPS,
    )


def _note(worth: MarginalGain, num_replicas: int, num_useful: int) -> str:
    if num_replicas >= num_useful:
        return "it can use no more"
    if worth is UNKNOWN:
        return "without a forecast it gets its minimum"
    gain = worth.of_next(num_replicas)
    return (
        f"one more would end it {gain:.0f} s sooner"
        if gain > 0
        else "one more would not end it sooner"
    )
