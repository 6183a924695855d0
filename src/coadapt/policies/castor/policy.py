"""Castor: prices of GPUs from a fluid relaxation, a value per job, one knapsack per
round, places.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
from coadapt.policies.castor.explain import (
    Decided,
    explained,
    fixed_reasons,
    shown_starts,
)
from coadapt.policies.castor.fairness import FAIR_FROM, Fair, FairClocks, Tolerances
from coadapt.policies.castor.gangs import GangTimes, Precedence, late, plan_gangs
from coadapt.policies.castor.guarantees import (
    Reservations,
    fair_share_reservations,
    no_reservations,
)
from coadapt.policies.castor.job_values import (
    Aims,
    GpuCurves,
    Outlook,
    Values,
    gpu_curves,
)
from coadapt.policies.castor.last_plan import LastPlan
from coadapt.policies.castor.placing import Goodput, place
from coadapt.policies.castor.round import Sizes, choose
from coadapt.policies.castor.situation import Predictors, Situation, situation
from coadapt.policies.castor.topology import topology_of
from coadapt.policies.predictors.application_models import Applications
from coadapt.policies.predictors.expected_arrivals import Arrivals, Expected, Silence
from coadapt.policies.predictors.prediction_intervals import STARTS_HIGH, Predictions
from coadapt.policies.solvers.arrays import JobFloats, median

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


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What castor keeps from round to round, a value. Without it the next rounds are
    worse, and no less lawful.
    """

    known: Predictors = field(default_factory=Predictors)
    values: Values = field(default_factory=Values)
    arrivals: Arrivals = field(default_factory=Arrivals)
    silence: Silence = field(default_factory=Silence)
    clocks: FairClocks = field(default_factory=FairClocks)
    tolerances: Tolerances = field(default_factory=Tolerances)
    gang_times: GangTimes = field(default_factory=GangTimes)
    predictions: Predictions = field(default_factory=Predictions)
    starts: Predictions = field(default_factory=lambda: Predictions(high=STARTS_HIGH))
    last: LastPlan = field(default_factory=LastPlan)


class _Terms(NamedTuple):
    """What a round weighs by: the aims of the relaxation, the reservations of late
    jobs, and their precedence. over: the chance that no job comes any more.
    """

    aims: Aims
    reserved: Reservations
    first: Precedence
    over: float


@dataclass(slots=True)
class _Kept:
    """The state after the last round that was planned to its end."""

    state: State = field(default_factory=State)


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
    _kept: _Kept = field(default_factory=_Kept, init=False, repr=False, compare=False)

    @property
    def predictions(self) -> dict[JobId, Prediction]:
        """The predicted end of each job of the last round, where anything is known."""
        return self._kept.state.predictions.latest

    @property
    def starts(self) -> dict[JobId, Prediction]:
        """The predicted start of each job that waited in the last round, where anything
        is known.
        """
        return self._kept.state.starts.latest

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        self._kept.state, plan = self.step(self._kept.state, view)
        return plan

    def step(self, state: State, view: ClusterView) -> tuple[State, Plan]:
        """Return the state after a round, and its plan.

        A pure function: it changes nothing, and the same state and view give the same
        plan.
        """
        predictions = state.predictions.observed(view.at, {job.id for job in view.jobs})
        state = replace(state, predictions=predictions)
        held = state.last.held(view)
        if held is not None:
            return state, held
        topology = topology_of(view)
        if not topology.gpu_types:
            return state, Plan()
        fixed = Plan(
            allocations=topology.kept, reasons=fixed_reasons(view.jobs, topology)
        )
        now, known = situation(view, topology, state.known, room=state.last.room)
        state = replace(state, known=known)
        if not now.jobs:
            return state, fixed
        return self._planned(state, view, now, fixed)

    def _planned(
        self, state: State, view: ClusterView, now: Situation, fixed: Plan
    ) -> tuple[State, Plan]:
        """Return the state after a round with movable jobs, and its plan. fixed: the
        plan of the other jobs.
        """
        state, outlook, sizes = self._decide(state, view, now)
        placed = _places(now, sizes)
        starts = _with_starts(state.starts, view, now, outlook, placed)
        shown = shown_starts(now, placed, starts)
        starts = starts.shown(shown)
        decided = Decided(
            now=now,
            sizes=sizes,
            placed=placed,
            predictions=state.predictions,
            starts=starts,
            shown=shown,
        )
        plan = Plan(
            allocations={**fixed.allocations, **placed},
            reasons={**fixed.reasons, **explained(decided)},
            application_times=_timed_by_others(state.known.applications, now, placed),
            diagnostics=_diagnostics(view.at, len(now.jobs), outlook, sizes),
        )
        last = LastPlan.of(view, plan, room=sizes.room)
        return replace(state, starts=starts, last=last), plan

    def _decide(
        self, state: State, view: ClusterView, now: Situation
    ) -> tuple[State, Outlook, Sizes]:
        """Return the state after the decision, what the relaxation says, and the size
        of each job.
        """
        curves = gpu_curves(now, now.topology.gpus_by_type)
        state, terms = self._terms(state, view.at, now, curves)
        state, outlook = self._relaxed(state, view.at, now, curves, terms)
        gangs, times = plan_gangs(view, now, terms.first, state.gang_times)
        if gangs is None:
            sizes = choose(now, outlook, terms.reserved)
        else:
            outlook = outlook._replace(timeline=gangs.predicted(outlook.timeline))
            reserved = gangs.reserved(terms.reserved, now.facts.size)
            sizes = choose(gangs.waiting(now), outlook, reserved)
        predictions = _with_ends(state.predictions, view.at, now, outlook)
        return replace(state, gang_times=times, predictions=predictions), outlook, sizes

    def _terms(
        self, state: State, at: float, now: Situation, curves: GpuCurves
    ) -> tuple[State, _Terms]:
        state, over = _silent(state, at, now, curves)
        num_jobs = (1.0 - over) * len(now.jobs) + over * END_JOBS
        dials = self.dials(median(now.rescale_s), curves.unlike, num_jobs)
        gpus_T = now.topology.gpus_by_type
        tolerance, tolerances = state.tolerances.tolerated(at, now, int(gpus_T.sum()))
        state = replace(state, tolerances=tolerances)
        terms = _without_limit(dials, tolerance, over)
        if not dials.rho_max:
            return state, terms
        fair, clocks = state.clocks.moved(at, now, gpus_T)
        return replace(state, clocks=clocks), _limited(terms, now, fair, dials.rho_max)

    def _relaxed(
        self, state: State, at: float, now: Situation, curves: GpuCurves, terms: _Terms
    ) -> tuple[State, Outlook]:
        """Return values and timeline of the relaxation."""
        whole = np.where(now.timed, now.sources.done + now.left, 0.0)
        names = now.topology.names
        arrivals = state.arrivals.observed(at, now.jobs, whole, curves.jobs, names)
        expected = Expected()
        if self.expect:
            expected = arrivals.expected(at, in_part=curves.several, over=terms.over)
        outlook, values = state.values.settled(now, curves, expected, terms.aims)
        return replace(state, arrivals=arrivals, values=values), outlook


def _silent(
    state: State, at: float, now: Situation, curves: GpuCurves
) -> tuple[State, float]:
    """Return the chance that no job comes any more, 0 on one GPU type."""
    if not curves.several:
        return state, 0.0
    over, silence = state.silence.over(at, now.jobs)
    return replace(state, silence=silence), over


def _without_limit(dials: Dials, tolerance: JobFloats, over: float) -> _Terms:
    """Return the terms of a round in which no job has a fair limit."""
    num_jobs = len(tolerance)
    never = np.full(num_jobs, np.inf)
    return _Terms(
        Aims(dials.makespan_jobs, dials.tail, tolerance, never),
        no_reservations(num_jobs),
        Precedence(np.zeros(num_jobs, dtype=np.bool_), dials.makespan_jobs),
        over,
    )


def _limited(terms: _Terms, now: Situation, fair: Fair, rho_max: float) -> _Terms:
    """Return `terms` with the limit rho_max."""
    limit = FAIR_FROM * rho_max * fair.takes_s
    return terms._replace(
        aims=terms.aims._replace(fair_limit=limit),
        reserved=fair_share_reservations(fair, rho_max),
        first=terms.first._replace(late=late(now, fair, rho_max)),
    )


def _with_ends(
    predictions: Predictions, at: float, now: Situation, outlook: Outlook
) -> Predictions:
    """Return the record of ends with predictions for the timed jobs."""
    relaxed_s = outlook.timeline.end_s[: len(now.jobs)]
    end_s = np.where(now.timed, relaxed_s, np.inf)
    return predictions.predicted(at, (job.id for job in now.jobs), end_s)


def _diagnostics(
    at: float, num_jobs: int, outlook: Outlook, sizes: Sizes
) -> dict[str, float]:
    end_s = outlook.timeline.end_s[:num_jobs]
    return {
        "objective": sizes.value,
        "bound": sizes.bound,
        "gap": 1.0 - sizes.value / sizes.bound if sizes.bound > 0.0 else 0.0,
        "price": float(sizes.price_T.max(initial=0.0)),
        "last_end": at + float(end_s[np.isfinite(end_s)].max(initial=0.0)),
    }


def _with_starts(
    starts: Predictions,
    view: ClusterView,
    now: Situation,
    outlook: Outlook,
    placed: Mapping[JobId, Allocation],
) -> Predictions:
    """Return the record of starts after the jobs that waited and start now, with
    predictions for the others.
    """
    withdrawn = starts.made.keys() - {job.id for job in view.jobs}
    names = [job.id for job in now.jobs]
    seen = starts.without(withdrawn).observed(view.at, set(names) - placed.keys())
    start_s: JobFloats = outlook.timeline.start_s[: len(names)].copy()
    start_s[[job in placed for job in names]] = np.inf
    return seen.predicted(view.at, names, start_s)


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
    jobs = {job.id: job for job in now.jobs if job.id in sizes.counts}
    placed: dict[JobId, Allocation] = {}
    for number, gpu_type in enumerate(now.topology.gpu_types):
        counts = {
            job: count
            for job, count in sizes.counts.items()
            if sizes.types[job] == number
        }
        placed |= place(gpu_type, jobs, counts, _goodput_on(now, number))
    return placed


def _goodput_on(now: Situation, number: int) -> Goodput:
    """Return the goodput of jobs on a GPU type, as placing asks for it."""
    row_of = {job.id: row for row, job in enumerate(now.jobs)}
    columns = np.flatnonzero(now.configs.type_C == number).tolist()
    column_of = {int(now.configs.gpus_C[column]): column for column in columns}

    def goodput(job: JobId, count: int, spread: bool) -> float:
        column = column_of.get(count)
        if column is None:
            return 0.0
        row = row_of[job]
        return now.spread(row, column) if spread else float(now.goodput_JC[row, column])

    return goodput
