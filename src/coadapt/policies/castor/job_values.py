"""Job values: what a unit of each job's progress saves, by the fluid relaxation.

Axes: J present jobs, then expected ones; P phases: the first phase of each job, in the
order of J, then later phases; T GPU types.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.model import JobId
from coadapt.policies.castor.situation import MANY_JOBS, Situation
from coadapt.policies.predictors.expected_arrivals import Expected
from coadapt.policies.predictors.noise_growth import LaterPhases
from coadapt.policies.solvers.arrays import FloatArray, IntArray, JobFloats, log
from coadapt.policies.solvers.concave_envelope import (
    Curves,
    concatenated,
    type_envelopes,
)
from coadapt.policies.solvers.fluid_market import Market
from coadapt.policies.solvers.fluid_pool import Pool
from coadapt.policies.solvers.fluid_relaxation import (
    LATE_WEIGHT,
    FluidJobs,
    Objective,
    Timeline,
    fixed_point,
    values_at,
)

# Iterations of the fixed point. Values start from those of the last round, so a few are
# enough. With 4 instead of 10, p99 on eight drawn workloads is 2 % longer. If an
# iteration takes long (several GPU types, or more than MANY_JOBS jobs), there are
# FEW_ITERATIONS (5 to 10 are no better on Sia's cluster).
ITERATIONS = 10
FEW_ITERATIONS = 4


class GpuCurves(NamedTuple):
    """Concave goodput curves of jobs and of their later phases, by GPU type.

    gpus_T: GPUs of each type that the round may give. worth_T: goodput on a type over
    that on the first type, geometric mean over jobs and sizes. unlike: mean over GPUs
    of |log(worth / worth of the most common type)|; 0: all types are alike.
    """

    jobs: Curves
    later: Curves
    gpus_T: FloatArray
    worth_T: FloatArray
    unlike: float

    @property
    def several(self) -> bool:
        """Whether there are GPUs of several types."""
        return int(np.count_nonzero(self.gpus_T)) > 1


def gpu_curves(now: Situation, gpus_T: IntArray) -> GpuCurves:
    """Return the curves of a round on these numbers of GPUs by type."""
    configs = now.configs
    worth_T = _type_worths(now, len(gpus_T))
    unlike = 0.0
    if len(gpus_T) > 1:
        unlike_T = np.abs(log(worth_T / worth_T[gpus_T.argmax()]))
        unlike = float(gpus_T @ unlike_T) / max(gpus_T.sum(), 1)
    jobs, later = (
        type_envelopes(goodput, configs.gpus_C, configs.type_C, range(len(gpus_T)))
        for goodput in (now.goodput_JC, now.later_LC)
    )
    return GpuCurves(jobs, later, gpus_T.astype(np.float64), worth_T, unlike)


def _type_worths(now: Situation, num_types: int) -> FloatArray:
    """Return worth_T of GpuCurves, 1 for a type that no job can compare."""
    type_C = now.configs.type_C
    gpus_C = now.configs.gpus_C
    worth_T = np.ones(num_types)
    for number in range(1, num_types):
        ratios = [np.empty(0)]
        sizes = np.intersect1d(gpus_C[type_C == 0], gpus_C[type_C == number])
        for size in sizes.tolist():
            first, other = (
                now.goodput_JC[:, (type_C == each) & (gpus_C == size)][:, 0]
                for each in (0, number)
            )
            both = (first > 0.0) & (other > 0.0)
            ratios.append(log(other[both] / first[both]))
        found = np.concatenate(ratios)
        worth_T[number] = math.exp(found.mean()) if len(found) else 1.0
    return worth_T


class Aims(NamedTuple):
    """The terms of Objective besides weighted completion times, of the present jobs."""

    makespan_jobs: float
    tail: float
    tolerance: JobFloats
    fair_limit: JobFloats


class Outlook(NamedTuple):
    """The result of the relaxation.

    value: value of a unit of progress of each present job, in weighted seconds.
    timeline: of present jobs, then of expected ones.
    """

    value: JobFloats
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Values:
    """The values of the last round, a value: for each job, those of its phases in
    order.
    """

    last: Mapping[JobId, FloatArray] = field(default_factory=dict)

    def settled(
        self, now: Situation, curves: GpuCurves, expected: Expected, aims: Aims
    ) -> tuple[Outlook, "Values"]:
        """Return what the relaxation says in this round, and its values."""
        jobs = _fluid_jobs(now, curves, expected)
        objective = _objective(now, expected, aims)
        phases_of = _phases(now, len(objective.weight_J))
        first_P = _first_values(now, jobs, objective, curves.worth_T)
        one_type = len(jobs.gpus_T) == 1
        few = not one_type or len(now.jobs) > MANY_JOBS
        found = fixed_point(
            Pool(jobs) if one_type else Market(jobs),
            self._start_values(now, first_P, phases_of),
            objective,
            FEW_ITERATIONS if few else ITERATIONS,
        )
        outlook = Outlook(found.value_P[: len(now.jobs)], found.timeline)
        return outlook, Values(_by_job(now, found.value_P, phases_of))

    def _start_values(
        self, now: Situation, first_P: FloatArray, phases_of: Sequence[Sequence[int]]
    ) -> FloatArray:
        """Return the values that the fixed point starts from: those of the last round,
        and first_P for other jobs.
        """
        start_P = first_P.copy()
        for row, job in enumerate(now.jobs):
            last = self.last.get(job.id)
            if last is None or not now.timed[row]:
                continue
            if len(last) == len(phases_of[row]):
                start_P[phases_of[row]] = last
            elif start_P[row] > 0.0:  # it has another number of phases now
                start_P[phases_of[row]] *= last[0] / start_P[row]
        return start_P


def _by_job(
    now: Situation, value_P: FloatArray, phases_of: Sequence[Sequence[int]]
) -> dict[JobId, FloatArray]:
    """Return the values of each timed job's phases, if the job has a value."""
    return {
        job.id: value_P[phases_of[row]]
        for row, job in enumerate(now.jobs)
        if now.timed[row] and value_P[row] > 0.0
    }


def _phases(now: Situation, num_jobs: int) -> list[list[int]]:
    """Return the phases of each present job, in order. num_jobs: with expected ones."""
    begin = num_jobs + now.later.begin_J
    return [[row, *range(begin[row], begin[row + 1])] for row in range(len(now.jobs))]


def _fluid_jobs(now: Situation, curves: GpuCurves, expected: Expected) -> FluidJobs:
    """Return all phases: first those of present and of expected jobs, then later
    ones.
    """
    later = now.later
    num_here = len(now.jobs)
    left = now.left.copy()
    np.subtract.at(left, later.job_L, later.left_L)
    never_L = np.full(len(later.job_L), np.inf)
    return FluidJobs(
        concatenated([curves.jobs, expected.curves, curves.later]),
        np.concatenate((left, expected.left_J, later.left_L)),
        np.concatenate((np.zeros(num_here), expected.arrives_J, never_L)),
        _next_phases(later, num_here + len(expected.left_J)),
        curves.gpus_T,
    )


def _next_phases(later: LaterPhases, num_jobs: int) -> IntArray:
    """Return the number of the phase after each phase, -1 after a job's last one."""
    number_L = np.arange(len(later.job_L))
    first_L = number_L == later.begin_J[later.job_L]
    before_L = np.where(first_L, later.job_L, num_jobs + number_L - 1)
    next_P = np.full(num_jobs + len(number_L), -1)
    next_P[before_L] = num_jobs + number_L
    return next_P


def _objective(now: Situation, expected: Expected, aims: Aims) -> Objective:
    """Return the objective over present and expected jobs.

    An expected job has the mean weight of the present ones times `part`, and no
    deadline, tolerance or fair limit.
    """
    count = len(expected.left_J)
    weight = expected.part * float(now.weights.weight.mean())
    never = np.full(count, np.inf)
    return Objective(
        np.concatenate((now.weights.weight, np.full(count, weight))),
        np.concatenate((now.weights.due_s, never)),
        np.concatenate((now.weights.age_s, -expected.arrives_J)),
        np.concatenate((aims.tolerance, never)),
        np.concatenate((aims.fair_limit, never)),
        np.concatenate((np.ones(len(now.jobs)), np.full(count, expected.part))),
        aims.makespan_jobs,
        aims.tail,
        usual_s=0.0,
    )


def _first_values(
    now: Situation, jobs: FluidJobs, objective: Objective, worth_T: FloatArray
) -> FloatArray:
    """Return first values of all phases, used where the last round has none: the values
    at equal prices of all GPUs.
    """
    num_jobs = len(objective.weight_J)
    num_gpus = max(float(jobs.gpus_T @ worth_T), 1.0)
    # A rough constant price of a GPU: half of the jobs' total weight per GPU. Only
    # first values depend on it. The factor of a half has no recorded origin.
    price = 0.5 * objective.weight_J[: len(now.jobs)].sum() / num_gpus
    # Jobs with a deadline start with the weight of a late job: if one started at the
    # end of the order, few iterations would not bring it forward in time.
    has_deadline = objective.due_J < np.inf
    weight = objective.weight_J * np.where(has_deadline, 1.0 + LATE_WEIGHT, 1.0)
    owner_P = np.concatenate((np.arange(num_jobs), now.later.job_L))
    return values_at(jobs.curves, weight[owner_P], price * worth_T)
