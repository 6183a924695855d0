"""Castor as a policy: curves of what is known, values by plays, sizes by a program,
places.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId, KinTimes, Plan
from coadapt.policies.base import PolicyCard, Prediction
from coadapt.policies.castor.arrays import median
from coadapt.policies.castor.arrivals import Arrivals, Here
from coadapt.policies.castor.cluster import Standing, standing
from coadapt.policies.castor.explain import Told, explained, stands
from coadapt.policies.castor.facts import Facts
from coadapt.policies.castor.fairness import FAIR_FROM, FairClocks, Waits
from coadapt.policies.castor.gangs import First, GangTimes, late, plan_gangs
from coadapt.policies.castor.ground import Ground
from coadapt.policies.castor.guarantees import Owed
from coadapt.policies.castor.kin import Applications
from coadapt.policies.castor.last_round import LastRound
from coadapt.policies.castor.lengths import Lengths
from coadapt.policies.castor.placing import Floor, place
from coadapt.policies.castor.predictions import STARTS_HIGH, Predictions
from coadapt.policies.castor.round import Sizes, choose, rehearse_program
from coadapt.policies.castor.situation import Situation, situation
from coadapt.policies.castor.values import Fluid, GpuTypes, Outlook, Values, Wanted

# Dials where nobody sets them: where a rescale takes CHEAP_S or less, and where it
# takes DEAR_S or more.
MAKESPAN_JOBS = (2.0, 4.0)
TAIL = (0.0, 0.5)
CHEAP_S = 1.0
DEAR_S = 15.0
# And where GPUs are of one type, and where they are as unlike as UNLIKE or more (chosen
# on Sia's cluster).
RHO_MAX = (2.0, 1.0)
UNLIKE = 0.3
# Where they are, the makespan weighs so much for each job that is there: much while
# jobs are many, whose mean pays for it, less while they are few, whose fairness would;
# but as for END_JOBS once nobody comes any more.
CROWD_MAX = 64.0
END_JOBS = 16.0


class Dials(NamedTuple):
    """What CastorOptions weighs by, in one round."""

    makespan_jobs: float
    tail: float
    rho_max: float


@dataclass(frozen=True, kw_only=True)
class CastorOptions:
    """What castor's operator may set; docs/policies/castor.md has the curves of both
    dials.

    makespan_jobs: μ, how many jobs' completion times the makespan weighs as much as
    (None: 4, or less, down to 2, where rescales take less than 15 s; where GPU types
    differ, up to that for each job that is there). tail: what is made small is the sum
    of completion times to the power of 1 + tail (None: 0.5, or less, down to 0, where
    rescales take less than 15 s). rho_max: how many times its time on an equal share a
    job may take: its seconds weigh more from half of that on, and who would pass it is
    owed its share (None: 2, or less, down to 1, where GPU types differ); 0: no limit.
    expect: whether to keep room for jobs like those of the last hours.
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

    def dials(self, rescale_s: float, unlike: float, crowd: float) -> Dials:
        """Return the dials where a rescale takes so long, s, GPUs are so unlike (as of
        Fluid), and so many jobs are there.
        """
        dear = min(max((rescale_s - CHEAP_S) / (DEAR_S - CHEAP_S), 0.0), 1.0)
        types = min(unlike / UNLIKE, 1.0)
        makespan_jobs, tail = (
            low + dear * (high - low) for low, high in (MAKESPAN_JOBS, TAIL)
        )
        rho_max = RHO_MAX[0] + types * (RHO_MAX[1] - RHO_MAX[0])
        usual = Dials(
            makespan_jobs * min(max(crowd, 1.0), CROWD_MAX) ** types, tail, rho_max
        )
        chosen = self.makespan_jobs, self.tail, self.rho_max
        return Dials(
            *[
                own if own is not None else each
                for own, each in zip(chosen, usual, strict=True)
            ]
        )


@dataclass(slots=True)
class _Memory:
    """What is kept from round to round. Without it the next rounds are worse, and no
    less lawful.
    """

    facts: Facts = field(default_factory=Facts)
    lengths: Lengths = field(default_factory=Lengths)
    gpu_types: GpuTypes = field(default_factory=GpuTypes)
    values: Values = field(default_factory=Values)
    arrivals: Arrivals = field(default_factory=Arrivals)
    applications: Applications = field(default_factory=Applications)
    clocks: FairClocks = field(default_factory=FairClocks)
    waits: Waits = field(default_factory=Waits)
    predictions: Predictions = field(default_factory=Predictions)
    starts: Predictions = field(default_factory=lambda: Predictions(high=STARTS_HIGH))
    gang_times: GangTimes = field(default_factory=GangTimes)
    floors: dict[str, Floor] = field(default_factory=dict)
    last: LastRound = field(default_factory=LastRound)


@dataclass(frozen=True, kw_only=True)
class Castor(CastorOptions):
    """Minimises summed completion time, weighed by tenants and priorities; options as
    in CastorOptions.

    It wants rounds at arrivals and exits, too. `plan.diagnostics`: objective, bound and
    gap of the round's program (seconds of completion time saved per second), price of a
    GPU, predicted makespan.
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
        """When each job of the last round will have ended, as far as anything can be
        said.
        """
        return self._memory.predictions.latest

    @property
    def starts(self) -> dict[JobId, Prediction]:
        """When each job that waited in the last round will start, likewise."""
        return self._memory.starts.latest

    def allocate(self, view: ClusterView) -> Plan:
        """Return the plan of this round."""
        memory = self._memory
        here = {job.id for job in view.jobs}
        memory.predictions.observe(view.at, here)
        held = memory.last.holds(view)
        if held is not None:
            return held
        fixed = standing(view, memory.last.ground)
        stay = fixed.kept.keys() | fixed.stranded
        reasons = (
            {job.id: stands(job, fixed) for job in view.jobs if job.id in stay}
            if stay
            else {}
        )
        if not fixed.kinds:
            return Plan(
                reasons={
                    job.id: "waits: the cluster has no live node" for job in view.jobs
                }
            )
        known = memory.lengths, memory.applications, memory.facts
        now = situation(view, fixed, *known, room=memory.last.room)
        if not now.jobs:
            return Plan(allocations=fixed.kept, reasons=reasons)
        gpus_T = np.array([kind.num_gpus for kind in fixed.kinds])
        num_gpus = int(gpus_T.sum())
        bears_J = memory.waits.borne(view.at, now, num_gpus)
        fluid = Fluid.of(
            now, gpus_T, memory.gpu_types.of([kind.gpu_type for kind in fixed.kinds])
        )
        over = memory.arrivals.silence.over(view.at, now.jobs) if fluid.several else 0.0
        crowd = (1.0 - over) * len(now.jobs) + over * END_JOBS
        dials = self.dials(median(now.rescale_s_J), fluid.unlike, crowd)
        owed = Owed.nothing(len(now.jobs))
        fair_J = None
        late_J = np.zeros(len(now.jobs), dtype=np.bool_)
        if dials.rho_max:
            fair = memory.clocks.move(view.at, now, gpus_T)
            fair_J = FAIR_FROM * dials.rho_max * fair.takes_s_J
            owed = owed.with_shares(fair, dials.rho_max)
            late_J = late(now, fair, dials.rho_max)
        wanted = Wanted(dials.makespan_jobs, dials.tail, bears_J, fair_J)
        outlook = self._look_ahead(view, now, fluid, wanted, over)
        first = First(late_J, dials.makespan_jobs)
        gangs = plan_gangs(view, now, fixed, first, memory.gang_times)
        able = now
        if gangs is not None:
            owed = gangs.owed(owed, now.known.numbers.size_J)
            able = gangs.waiting(now)
            outlook = replace(outlook, course=gangs.foretold(outlook.course))
        self._foretell_ends(view.at, now, outlook)
        sizes = choose(able, outlook, fixed, owed)
        placed = _places(fixed, now, sizes, memory.floors)
        kin_times = _tell(memory.applications, now, fixed.ground, placed)
        self._foretell_starts(view.at, here, now, outlook, placed)
        told = Told(
            now=now,
            sizes=sizes,
            placed=placed,
            standing=fixed,
            predictions=memory.predictions,
            starts=memory.starts,
        )
        end_s = outlook.course.end_J[: len(now.jobs)]
        last_s = float(end_s[np.isfinite(end_s)].max(initial=0.0))
        plan = Plan(
            allocations={**fixed.kept, **placed},
            reasons={**reasons, **explained(told)},
            kin_times=kin_times,
            diagnostics={
                "objective": sizes.value,
                "bound": sizes.bound,
                "gap": 1.0 - sizes.value / sizes.bound if sizes.bound > 0.0 else 0.0,
                "price": float(sizes.price_T.max(initial=0.0)),
                "last_end": view.at + last_s,
            },
        )
        return memory.last.note(view, fixed.ground, plan, room=sizes.room)

    def _foretell_starts(
        self,
        at: float,
        here: Set[JobId],
        now: Situation,
        outlook: Outlook,
        placed: Mapping[JobId, Allocation],
    ) -> None:
        """Learn from the jobs that waited and start now, and say when the others
        will.
        """
        starts = self._memory.starts
        row_of = now.job_rows.row_of
        for job in starts.made.keys() - here:  # it was taken back
            starts.forget(job)
        starts.observe(at, row_of.keys() - placed.keys())
        start_J = outlook.course.start_J[: len(now.jobs)].copy()
        start_J[[row_of[job] for job in placed]] = np.inf
        starts.predict(at, now.job_rows, start_J)

    def warm_up(self) -> None:
        """Call the kernels of the round's program, which `allocate` calls last."""
        rehearse_program()

    def _look_ahead(
        self,
        view: ClusterView,
        now: Situation,
        fluid: Fluid,
        wanted: Wanted,
        over: float,
    ) -> Outlook:
        """Return values and course. over: as of Silence."""
        memory = self._memory
        whole_J = np.where(now.timed_J, now.sources.done_J + now.left_J, 0.0)
        memory.arrivals.observe(
            view.at,
            Here(now.job_rows, now.known.numbers.submitted_J, whole_J),
            fluid.curves,
        )
        expected = None
        if self.expect:
            expected = memory.arrivals.expected(
                view.at, in_part=fluid.several, over=over
            )
        return memory.values.settle(now, fluid, expected, wanted)

    def _foretell_ends(self, at: float, now: Situation, outlook: Outlook) -> None:
        ends_s_J = np.where(now.timed_J, outlook.course.end_J[: len(now.jobs)], np.inf)
        self._memory.predictions.predict(at, now.job_rows, ends_s_J)


def _tell(
    applications: Applications,
    now: Situation,
    ground: Ground,
    placed: Mapping[JobId, Allocation],
) -> dict[JobId, KinTimes]:
    """Return what those who train are told of steps that their kin timed where they
    do.
    """
    told: dict[JobId, KinTimes] = {}
    for job in now.jobs if applications.members else ():
        held = ground.shape_of(placed[job.id]) if job.id in placed else None
        if held is not None:
            number, shape = held
            times = applications.tell(job, ground.pools[number].gpu_type, shape)
            if times is not None:
                told[job.id] = times
    return told


def _places(
    fixed: Standing, now: Situation, sizes: Sizes, floors: dict[str, Floor]
) -> dict[JobId, Allocation]:
    """Return where each size stands, type by type. floors: of the last round, by GPU
    type; then of this.
    """
    row_of = now.job_rows.row_of
    jobs = {job: now.jobs[row_of[job]] for job in sizes.counts}
    placed: dict[JobId, Allocation] = {}
    for number, kind in enumerate(fixed.kinds):
        columns = np.flatnonzero(now.configs.type_C == number)
        column_of = {int(now.configs.gpus_C[column]): int(column) for column in columns}

        def goodput(
            job: JobId, count: int, spread: bool, column_of: dict[int, int] = column_of
        ) -> float:
            column = column_of.get(count)
            if column is None:
                return 0.0
            row = row_of[job]
            return (
                now.spread(row, column)
                if spread
                else float(now.goodput_JC[row, column])
            )

        counts = {
            job: count
            for job, count in sizes.counts.items()
            if sizes.types[job] == number
        }
        # It is not kept while it is changed: what fails half-way is no floor to begin
        # with.
        floor = floors[kind.gpu_type] = place(
            kind, jobs, counts, goodput, before=floors.pop(kind.gpu_type, None)
        )
        placed |= floor.held
    return placed
