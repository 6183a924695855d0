"""Castor: prices of GPUs from a fluid relaxation, a value per job, one knapsack per
round, places.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from coadapt.model import (
    WAITING,
    Allocation,
    ApplicationTimes,
    ClusterView,
    JobId,
    Plan,
)
from coadapt.policies.base import PolicyCard, Prediction
from coadapt.policies.castor.expected_arrivals import Arrivals, Expected, Silence
from coadapt.policies.castor.explain import Decided, explained, fixed_reason
from coadapt.policies.castor.fairness import FAIR_FROM, FairClocks, Tolerances
from coadapt.policies.castor.gangs import GangTimes, Precedence, late, plan_gangs
from coadapt.policies.castor.guarantees import fair_share_reservations, no_reservations
from coadapt.policies.castor.job_values import (
    Aims,
    GpuCurves,
    Outlook,
    Values,
    gpu_curves,
)
from coadapt.policies.castor.last_plan import LastPlan
from coadapt.policies.castor.placing import place
from coadapt.policies.castor.round import Sizes, choose
from coadapt.policies.castor.situation import Situation, situation
from coadapt.policies.castor.topology import topology_of
from coadapt.policies.predictors.application_models import Applications
from coadapt.policies.predictors.prediction_intervals import STARTS_HIGH, Predictions
from coadapt.policies.predictors.remaining_work import RemainingWork
from coadapt.policies.solvers.arrays import FloatArray, median

# Default dials. MAKESPAN_JOBS and TAIL have the first value if a rescale takes at most
# CHEAP_S seconds, the second value from DEAR_S seconds on, and proportional values
# between them. The measurements are in docs/policies/castor.md.
CHEAP_S = 1.0
DEAR_S = 15.0
MAKESPAN_JOBS = (2.0, 4.0)  # in completion times of jobs
TAIL = (0.0, 0.5)  # exponent
# RHO_MAX has the first value if all GPUs are alike, and the second value if their types
# differ by at least UNLIKE, a mean |log(goodput ratio)|. Chosen on Sia's cluster.
UNLIKE = 0.3
RHO_MAX = (2.0, 1.0)  # completion time over that on an equal share
# If types differ, the weight of the makespan is multiplied by the number of present
# jobs, at most JOBS_MAX: with many jobs their mean pays for it. If no further job
# arrives, it is multiplied by END_JOBS. Chosen on Sia's cluster.
JOBS_MAX = 64.0
END_JOBS = 16.0


class Dials(NamedTuple):
    """What CastorOptions weighs by, in one round."""

    makespan_jobs: float
    tail: float
    rho_max: float


@dataclass(frozen=True, kw_only=True)
class CastorOptions:
    """What castor's operator may set; docs/policies/castor.md has the curves of the
    dials.

    makespan_jobs: how many jobs' completion times the makespan weighs as much as (None:
    4, or less, down to 2, where rescales take less than 15 s; where GPU types differ,
    up to that for each job that is here). tail: what is minimised is the sum of
    completion times to the power of 1 + tail (None: 0.5, or less, down to 0, where
    rescales take less than 15 s). rho_max: how many times its time on an equal share a
    job may take: its seconds weigh more from half of that on, and its share is reserved
    for a job that would pass it (None: 2, or less, down to 1, where GPU types differ);
    0: no limit; it does not hold for rigid jobs that need more than an equal share, and
    near 1 it lets them wait. expect: whether to keep room for jobs like those of the
    last hours.
    """

    makespan_jobs: float | None = None
    tail: float | None = None
    rho_max: float | None = None
    expect: bool = True

    def __post_init__(self) -> None:
        for name in ("makespan_jobs", "tail", "rho_max"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and >= 0, got {value}")

    def dials(self, rescale_s: float, unlike: float, num_jobs: float) -> Dials:
        """Return the dials where a rescale takes so long, s, and GPU types are so
        unlike.
        """
        dear = min(max((rescale_s - CHEAP_S) / (DEAR_S - CHEAP_S), 0.0), 1.0)
        types = min(unlike / UNLIKE, 1.0)
        makespan_jobs, tail = (
            low + dear * (high - low) for low, high in (MAKESPAN_JOBS, TAIL)
        )
        rho_max = RHO_MAX[0] + types * (RHO_MAX[1] - RHO_MAX[0])
        makespan_jobs *= min(max(num_jobs, 1.0), JOBS_MAX) ** types
        return Dials(
            makespan_jobs if self.makespan_jobs is None else self.makespan_jobs,
            tail if self.tail is None else self.tail,
            rho_max if self.rho_max is None else self.rho_max,
        )


@dataclass(slots=True)
class _Memory:
    """What is kept from round to round. Without it the next rounds are worse, and no
    less lawful.
    """

    work: RemainingWork = field(default_factory=RemainingWork)
    applications: Applications = field(default_factory=Applications)
    values: Values = field(default_factory=Values)
    arrivals: Arrivals = field(default_factory=Arrivals)
    silence: Silence = field(default_factory=Silence)
    clocks: FairClocks = field(default_factory=FairClocks)
    tolerances: Tolerances = field(default_factory=Tolerances)
    gang_times: GangTimes = field(default_factory=GangTimes)
    predictions: Predictions = field(default_factory=Predictions)
    starts: Predictions = field(default_factory=lambda: Predictions(high=STARTS_HIGH))
    last: LastPlan = field(default_factory=LastPlan)


@dataclass(frozen=True, kw_only=True)
class Castor(CastorOptions):
    """Minimises summed completion time, weighed by tenants and priorities; options as
    in CastorOptions.

    It wants rounds at arrivals and exits, too. `plan.diagnostics`: objective, bound and
    gap of the round's knapsack (seconds of completion time saved per second), price of
    a GPU, predicted last end.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="of this project", decides="GPU counts, GPU types, places", oracle=""
    )
    reaction_s: ClassVar[float] = 2.0
    _memory: _Memory = field(
        default_factory=_Memory, init=False, repr=False, compare=False
    )

    @property
    def predictions(self) -> dict[JobId, Prediction]:
        """When each job of the last round will have ended, where anything is known."""
        return self._memory.predictions.latest

    @property
    def starts(self) -> dict[JobId, Prediction]:
        """When each job that waited in the last round will start, likewise."""
        return self._memory.starts.latest

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        memory = self._memory
        memory.predictions.observe(view.at, {job.id for job in view.jobs})
        held = memory.last.held(view)
        if held is not None:
            return held
        topology = topology_of(view)
        if not topology.gpu_types:
            return Plan()
        reasons = {
            job.id: fixed_reason(job, topology)
            for job in view.jobs
            if job.id in topology.kept or job.id in topology.stranded
        }
        now = situation(
            view, topology, memory.work, memory.applications, room=memory.last.room
        )
        if not now.jobs:
            return Plan(allocations=topology.kept, reasons=reasons)
        outlook, sizes = self._decide(view, now)
        placed = _places(now, sizes)
        self._predict_starts(view, now, outlook, placed)
        decided = Decided(
            now=now,
            sizes=sizes,
            placed=placed,
            predictions=memory.predictions,
            starts=memory.starts,
        )
        end_s = outlook.timeline.end_s[: len(now.jobs)]
        last_s = float(end_s[np.isfinite(end_s)].max(initial=0.0))
        plan = Plan(
            allocations={**topology.kept, **placed},
            reasons={**reasons, **explained(decided)},
            application_times=_timed_by_others(memory.applications, now, placed),
            diagnostics={
                "objective": sizes.value,
                "bound": sizes.bound,
                "gap": 1.0 - sizes.value / sizes.bound if sizes.bound > 0.0 else 0.0,
                "price": float(sizes.price_T.max(initial=0.0)),
                "last_end": view.at + last_s,
            },
        )
        memory.last.note(view, plan, room=sizes.room)
        return plan

    def _decide(self, view: ClusterView, now: Situation) -> tuple[Outlook, Sizes]:
        """Return what the relaxation says, and the size of each job."""
        memory = self._memory
        gpus_T = np.array([each.num_gpus for each in now.topology.gpu_types])
        num_jobs = len(now.jobs)
        tolerance_J = memory.tolerances.tolerated(view.at, now, int(gpus_T.sum()))
        curves = gpu_curves(now, gpus_T)
        over = memory.silence.over(view.at, now.jobs) if curves.several else 0.0
        dials = self.dials(
            median(now.rescale_s_J),
            curves.unlike,
            (1.0 - over) * num_jobs + over * END_JOBS,
        )
        reserved = no_reservations(num_jobs)
        fair_limit_J = np.full(num_jobs, np.inf)
        late_J = np.zeros(num_jobs, dtype=np.bool_)
        if dials.rho_max:
            fair = memory.clocks.move(view.at, now, gpus_T)
            fair_limit_J = FAIR_FROM * dials.rho_max * fair.takes_s_J
            reserved = fair_share_reservations(fair, dials.rho_max)
            late_J = late(now, fair, dials.rho_max)
        aims = Aims(dials.makespan_jobs, dials.tail, tolerance_J, fair_limit_J)
        outlook = self._relax(view.at, now, curves, aims, over)
        first = Precedence(late_J, dials.makespan_jobs)
        gangs = plan_gangs(view, now, first, memory.gang_times)
        able = now
        if gangs is not None:
            reserved = gangs.reserved(reserved, now.facts.size_J)
            able = gangs.waiting(now)
            outlook = outlook._replace(timeline=gangs.predicted(outlook.timeline))
        end_s_J = np.where(now.timed_J, outlook.timeline.end_s[:num_jobs], np.inf)
        memory.predictions.predict(view.at, (job.id for job in now.jobs), end_s_J)
        return outlook, choose(able, outlook, reserved)

    def _relax(
        self, at: float, now: Situation, curves: GpuCurves, aims: Aims, over: float
    ) -> Outlook:
        """Return values and timeline. over: the chance that no job comes any more."""
        memory = self._memory
        whole_J = np.where(now.timed_J, now.sources.done_J + now.left_J, 0.0)
        names = now.topology.names
        memory.arrivals.observe(at, now.jobs, whole_J, curves.jobs, names)
        expected = Expected()
        if self.expect:
            expected = memory.arrivals.expected(at, in_part=curves.several, over=over)
        return memory.values.settle(now, curves, expected, aims)

    def _predict_starts(
        self,
        view: ClusterView,
        now: Situation,
        outlook: Outlook,
        placed: Mapping[JobId, Allocation],
    ) -> None:
        """Learn from the jobs that waited and start now, and predict when the others
        will.
        """
        starts = self._memory.starts
        here = {job.id for job in view.jobs}
        for job in starts.made.keys() - here:  # it was withdrawn
            starts.forget(job)
        names = [job.id for job in now.jobs]
        starts.observe(view.at, set(names) - placed.keys())
        start_s_J: FloatArray = outlook.timeline.start_s[: len(names)].copy()
        start_s_J[[job in placed for job in names]] = np.inf
        starts.predict(view.at, names, start_s_J)


def _timed_by_others(
    applications: Applications, now: Situation, placed: Mapping[JobId, Allocation]
) -> dict[JobId, ApplicationTimes]:
    """Return steps that other jobs of the application timed where each job trains."""
    found: dict[JobId, ApplicationTimes] = {}
    for job in now.jobs:
        held = now.topology.shape_of(placed.get(job.id, WAITING))
        if held is not None:
            number, shape = held
            times = applications.application_times(
                job, now.topology.names[number], shape
            )
            if times is not None:
                found[job.id] = times
    return found


def _places(now: Situation, sizes: Sizes) -> dict[JobId, Allocation]:
    """Return where each job is placed, type by type."""
    row_of = {job.id: row for row, job in enumerate(now.jobs)}
    jobs = {job: now.jobs[row_of[job]] for job in sizes.counts}
    placed: dict[JobId, Allocation] = {}
    for number, gpu_type in enumerate(now.topology.gpu_types):
        columns = np.flatnonzero(now.configs.type_C == number)
        column_of = dict(
            zip(now.configs.gpus_C[columns].tolist(), columns.tolist(), strict=True)
        )

        def goodput(
            job: JobId, count: int, spread: bool, column_of: dict[int, int] = column_of
        ) -> float:
            column = column_of.get(count)
            if column is None:
                return 0.0
            row = row_of[job]
            if spread:
                return now.spread(row, column)
            return float(now.goodput_JC[row, column])

        counts = {
            job: count
            for job, count in sizes.counts.items()
            if sizes.types[job] == number
        }
        placed |= place(gpu_type, jobs, counts, goodput)
    return placed
