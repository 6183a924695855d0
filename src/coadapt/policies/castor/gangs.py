"""Gangs: jobs of one size, which get all of their GPUs or none, in an order with
backfilling.
"""

# The fluid relaxation divides a job freely over GPUs and time. A gang cannot be
# divided:
# it needs k GPUs at once, on which it takes a time that nothing shortens. Where gangs
# compete, the relaxation keeps any order that it begins with, and what it says of a
# wide one (that half of it can train now) is wrong. So gangs are scheduled as such: in
# an order, each gets its GPUs if they are free, and those behind it fill the rest
# (backfilling). The round's program then gives the others what is left.
#
#   rank    seconds left x k^WIDTH / stretch / weight; the least goes first.
#           With WIDTH 1 it is shortest remaining service first, with 0 shortest
#           remaining time first. The stretch is (age + left) / (trained + left), so
#           no job waits for ever while shorter ones come. A gang that waits has its
#           start to pay, and one that runs would have to pay another: both count.
#   unknown A gang of which no length is known has the least mean time to its end, over
#           y, of running it on while it proves no longer than y, by what others took
#           (the Gittins index); once it has trained, as long as it has trained (least
#           attained service).
#   last    Gangs that would end after everything else count makespan_jobs x LAST more.
#           That holds only while the others can use the rest: where more GPUs train
#           without it, it does not.
#   due     A gang whose deadline allows no more waiting goes before all of these.
#   late    A job that is late by its fair clock goes before those, as `rho_max` says:
#           but not a gang that needs more GPUs than an equal share.
#
# Other jobs are in the same order, each with its equal share of the GPUs. So a gang
# gets GPUs from them when it is its turn, and leaves them theirs when it is not.
#
# The same order played forward, with the times that jobs have left, says when each gang
# starts: the first that waits has a reservation, since those behind it give way.

import math
from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from coadapt.model import ClusterView, JobId, JobView
from coadapt.policies.castor.fairness import Fair
from coadapt.policies.castor.guarantees import ANY_TYPE, SHARES_FIRST, Reservations
from coadapt.policies.castor.situation import ROUND_S, Situation
from coadapt.policies.predictors.declared import forecast_of
from coadapt.policies.solvers.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.solvers.fluid_relaxation import Timeline

WIDTH = 0.5  # the best of 0, 0.25, 0.5, 0.75 and 1 on drawn gangs of 1 to all GPUs
LAST = 4.0  # (with 1 the last end is 20 % later on Shockwave's trace)
NEAR_LAST = 0.9  # of the last end: a gang with as much left may be what ends last
LAST_PART = 0.5  # of the GPUs, for gangs that may be
SEEN_MAX = 200  # ended gangs whose time is kept
PRIOR_S = tuple(30.0 * 2.0**step for step in range(12))  # 30 s to 17 hours
PRIOR_WEIGHT = 3.0  # ended gangs that count as much as these
UNPROVEN = 0.5  # of its rank: a gang of unknown length that runs goes on by so much
PLAYED_MAX = 50  # waiting jobs whose start is predicted


class Gang(NamedTuple):
    """A job in the order. gpus: all that it needs, or a share.

    row: of the situation. types: the GPU types that it may have, the best first, with
    the seconds until its end once it trains there, infinity if unknown. rank: the least
    goes first. is_gang: whether it has one size.
    """

    row: int
    gpus: int
    types: tuple[tuple[int, float], ...]
    rank: float
    is_gang: bool
    tenant: str

    @property
    def left_s(self) -> float:
        return self.types[0][1]


class First(NamedTuple):
    """What goes before others in the order.

    late_J: jobs that are late by their fair clocks. makespan_jobs: how many jobs'
    completion times the makespan weighs as much as.
    """

    late_J: BoolArray
    makespan_jobs: float


class Served(NamedTuple):
    """A job that gets GPUs of a type, and the seconds until its end there."""

    gang: Gang
    of_type: int
    left_s: float


class Gangs(NamedTuple):
    """What a round gives to gangs.

    served_J: those that train now; barred_J: those that wait. start_s_J, end_s_J:
    seconds until each starts and ends, infinity where that is unknown. The round's
    program chooses the GPU types of those served, as of all jobs.
    """

    served_J: BoolArray
    barred_J: BoolArray
    start_s_J: FloatArray
    end_s_J: FloatArray

    def reserved(self, reserved: Reservations, size_J: IntArray) -> Reservations:
        """Return reservations for gangs that are served, none for those that wait."""
        gang_J = self.served_J | self.barred_J
        return Reservations(
            np.where(gang_J, size_J * self.served_J, reserved.gpus_J),
            np.where(gang_J, ANY_TYPE, reserved.type_J),
            np.where(gang_J, np.inf, reserved.goodput_J),
            np.where(gang_J, SHARES_FIRST, reserved.urgency_J),
        )

    def waiting(self, now: Situation) -> Situation:
        """Return the situation of the round's program: those that wait can have
        none.
        """
        return replace(
            now,
            goodput_JC=np.where(self.barred_J[:, None], 0.0, now.goodput_JC),
            here_J=np.where(self.barred_J, 0.0, now.here_J),
        )

    def predicted(self, timeline: Timeline) -> Timeline:
        """Return the relaxed timeline with the starts and ends of gangs."""
        start_s = timeline.start_s.copy()
        end_s = timeline.end_s.copy()
        rows = np.flatnonzero(self.served_J | self.barred_J)
        start_s[rows] = self.start_s_J[rows]
        end_s[rows] = self.end_s_J[rows]
        return timeline._replace(start_s=start_s, end_s=end_s)


@dataclass(slots=True)
class Room:
    """Free GPUs by type, and what tenants with a quota may hold besides."""

    gpus_T: list[int]
    quota: dict[str, int]

    def copy(self) -> "Room":
        """Return room of its own."""
        return Room(list(self.gpus_T), dict(self.quota))

    def give(self, gang: Gang) -> Served | None:
        """Give a job its GPUs, of the best type that has as many; None: none has."""
        if gang.gpus > self.quota.get(gang.tenant, gang.gpus):
            return None
        for of_type, left_s in gang.types:
            if gang.gpus <= self.gpus_T[of_type]:
                served = Served(gang, of_type, left_s)
                self.take(served, gang.gpus)
                return served
        return None

    def take(self, served: Served, count: int) -> None:
        """Take `count` GPUs for a job; a negative count gives them back."""
        self.gpus_T[served.of_type] -= count
        if served.gang.tenant in self.quota:
            self.quota[served.gang.tenant] -= count


@dataclass(slots=True)
class GangTimes:
    """How long gangs trained that have ended, s, ascending; and those that live."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SEEN_MAX))
    ascending: list[float] = field(default_factory=list)
    trained_s: dict[JobId, float] = field(default_factory=dict)

    def observe(self, trained_s: Mapping[JobId, float]) -> None:
        """Take in how long the gangs that live have trained; learn from those gone."""
        for job, seconds in self.trained_s.items():
            if job not in trained_s and seconds > 0.0:
                if len(self.recent) == SEEN_MAX:
                    self.ascending.remove(self.recent[0])
                self.recent.append(seconds)
                insort(self.ascending, seconds)
        self.trained_s = dict(trained_s)

    def unseen_s(self, start_s: float) -> float:
        """Return the least mean time to an end of trying a gang that never trained.

        start_s: what each start costs.
        """
        weight = PRIOR_WEIGHT / len(PRIOR_S)
        samples = [(seconds, 1.0) for seconds in self.ascending]
        samples += [(seconds, weight) for seconds in PRIOR_S]
        samples.sort()
        total = len(self.ascending) + PRIOR_WEIGHT
        best = math.inf
        ended = 0.0
        spent_s = 0.0
        for seconds, count in samples:
            ended += count
            spent_s += count * seconds
            mean_s = (spent_s + (total - ended) * seconds + total * start_s) / ended
            best = min(best, mean_s)
        return best


def gangs_in(now: Situation) -> BoolArray:
    """Return which jobs are gangs: of one size, which can train somewhere."""
    size_J = now.facts.size_J
    is_J: BoolArray = (size_J > 0) & (now.goodput_JC > 0.0).any(axis=1)
    return is_J


def late(now: Situation, fair: Fair, rho_max: float) -> BoolArray:
    """Return the jobs that are late by their fair clocks, for which `rho_max` holds.

    It does not hold for a gang that needs more than an equal share.
    """
    # One that needs more than its share has it in turns: at less than its goodput.
    whole_J = fair.rate_J >= fair.goodput_J * (1.0 - 1e-9)
    late_J: BoolArray = (fair.least_J >= rho_max) & (whole_J | ~gangs_in(now))
    return late_J


def plan_gangs(
    view: ClusterView,
    now: Situation,
    first: First,
    times: GangTimes,
) -> Gangs | None:
    """Return what gangs get now; None where there are none.

    first: what goes before others.
    """
    is_gang_J = gangs_in(now)
    if not is_gang_J.any():
        times.observe({})
        return None
    queue = _queue(view, now, times, is_gang_J)
    room = Room(
        [each.num_gpus for each in now.topology.gpu_types],
        dict(now.topology.quota_left),
    )
    due_J = _due(now, queue)

    def key(gang: Gang) -> tuple[bool, bool, float, int]:
        row = gang.row
        return not first.late_J[row], not due_J[row], gang.rank, row

    def ordered(each: Sequence[Gang]) -> list[Gang]:
        return sorted(each, key=key)

    plain = ordered(queue)
    order = ordered(_last_first(queue, sum(room.gpus_T), first.makespan_jobs))
    admitted = _admit(order, room.copy())
    plainly = _admit(plain, room.copy())
    if _used(admitted) < _used(plainly):
        order = plain
        admitted = plainly
    return _decided(now, order, admitted, is_gang_J, room)


def _queue(
    view: ClusterView,
    now: Situation,
    times: GangTimes,
    is_gang_J: BoolArray,
) -> list[Gang]:
    """Return all jobs that can train, with their ranks."""
    share = sum(each.num_gpus for each in now.topology.gpu_types) // max(
        len(now.jobs), 1
    )
    hinted_J = now.facts.hint_J < np.inf
    mean_weight = float(now.weights.weight_J.mean())
    lived_s: dict[JobId, float] = {}
    queue = []
    for row, job in enumerate(now.jobs):
        gpus = _size(now, row, share)
        if not gpus:
            continue
        is_gang = bool(is_gang_J[row])
        trained_s = _trained_s(view, job, gpus) if is_gang else 0.0
        if is_gang:
            lived_s[job.id] = trained_s
        known = bool(now.timed_J[row]) and (bool(hinted_J[row]) or not is_gang)
        types = _types(now, row, gpus, known=known)
        if is_gang and not now.timed_J[row]:
            types = _declared(job, gpus, types)
        weight = float(now.weights.weight_J[row]) / mean_weight
        rank = _rank(view, job, trained_s, types[0][1], times) * gpus**WIDTH / weight
        queue.append(Gang(row, gpus, types, rank, is_gang, job.spec.tenant))
    times.observe(lived_s)
    return queue


def _size(now: Situation, row: int, share: int) -> int:
    """Return the GPUs that a job has in the order; 0: it can train on none.

    Of its sizes within an equal share the largest, else its least.
    """
    gpus = now.configs.gpus_C[now.goodput_JC[row] > 0.0]
    within = gpus[gpus <= max(share, 1)]
    if len(within):
        return int(within.max())
    return int(gpus.min()) if len(gpus) else 0


def _types(
    now: Situation, row: int, gpus: int, *, known: bool
) -> tuple[tuple[int, float], ...]:
    """Return the GPU types that a job can train on, the soonest end first, as of Gang.

    A change of the type costs a start.
    """
    held_type, *_, held = now.sources.steps.held_JX[row].tolist()
    ends = []
    for column in np.flatnonzero(now.configs.gpus_C == gpus).tolist():
        goodput = float(now.goodput_JC[row, column])
        if goodput <= 0.0:
            continue
        of_type = int(now.configs.type_C[column])
        left_s = float(now.left_J[row]) / goodput
        stays = held > 0 and of_type == held_type
        end_s = left_s + (0.0 if stays else float(now.rescale_s_J[row]))
        ends.append((end_s, of_type, left_s if known else math.inf))
    return tuple((of_type, left_s) for _, of_type, left_s in sorted(ends))


def _declared(
    job: JobView, gpus: int, types: tuple[tuple[int, float], ...]
) -> tuple[tuple[int, float], ...]:
    """Return the types of a gang that was never timed, with its user's word on them."""
    said = forecast_of(replace(job, measured=replace(job.measured, forecast=None)))
    if said is None:
        return types
    left_s = said.remaining_s(gpus)
    return tuple((of_type, left_s) for of_type, _ in types)


def _trained_s(view: ClusterView, job: JobView, gpus: int) -> float:
    """Return the seconds that a gang has trained, its starts left out."""
    usage = job.usage
    if usage.started_at is None:
        return 0.0
    starts = usage.num_rescales + 1
    return max(view.service_gpu_s(job) / gpus - starts * job.rescale_s, 1.0)


def _rank(
    view: ClusterView, job: JobView, trained_s: float, left_s: float, times: GangTimes
) -> float:
    """Return what a job is ordered by, before its width and weight."""
    runs = bool(job.allocation.slots)
    age_s = max(view.at - job.submitted_at, 0.0)
    if left_s == math.inf and trained_s > 0.0:
        return trained_s * UNPROVEN if runs else trained_s + job.rescale_s
    if left_s == math.inf:
        left_s = times.unseen_s(job.rescale_s)
    stretch = max((age_s + left_s) / (trained_s + left_s + ROUND_S), 1.0)
    start_s = -job.rescale_s if runs else job.rescale_s
    return max(left_s + start_s, 0.0) / stretch


def _due(now: Situation, queue: Sequence[Gang]) -> BoolArray:
    """Return the gangs that must train now to end by their deadline, and can."""
    due_J = np.zeros(len(now.jobs), dtype=np.bool_)
    for gang in queue:
        slack_s = float(now.weights.due_J[gang.row]) - gang.left_s
        start_s = float(now.rescale_s_J[gang.row])
        due_J[gang.row] = gang.is_gang and 0.0 <= slack_s <= start_s + 2.0 * ROUND_S
    return due_J


def _last_first(
    queue: Sequence[Gang], num_gpus: int, makespan_jobs: float
) -> list[Gang]:
    """Return the queue with those further in front that may end after all others."""
    gangs = [gang for gang in queue if gang.left_s < math.inf]
    work_s = sum(gang.left_s * gang.gpus for gang in gangs) / max(num_gpus, 1)
    longest_s = max((gang.left_s for gang in gangs), default=0.0)
    end_s = NEAR_LAST * max(work_s, longest_s)
    room = LAST_PART * num_gpus
    last: set[int] = set()
    for gang in sorted(gangs, key=lambda gang: -gang.left_s):
        if gang.is_gang and gang.left_s + ROUND_S >= end_s and gang.gpus <= room:
            room -= gang.gpus
            last.add(gang.row)
    counts = 1.0 + LAST * makespan_jobs
    return [
        gang._replace(rank=gang.rank / counts) if gang.row in last else gang
        for gang in queue
    ]


def _admit(order: Sequence[Gang], room: Room) -> list[Served]:
    """Return those that get GPUs, in order; those behind one that has to wait fill."""
    served = [room.give(gang) for gang in order]
    return [each for each in served if each is not None]


def _used(admitted: Sequence[Served]) -> int:
    return sum(each.gang.gpus for each in admitted)


def _decided(
    now: Situation,
    order: Sequence[Gang],
    admitted: Sequence[Served],
    is_gang_J: BoolArray,
    room: Room,
) -> Gangs:
    """Return what gangs get, and when those that wait will start."""
    num_jobs = len(now.jobs)
    served_J = np.zeros(num_jobs, dtype=np.bool_)
    start_s_J = np.full(num_jobs, np.inf)
    end_s_J = np.full(num_jobs, np.inf)
    for each in admitted:
        if each.gang.is_gang:
            served_J[each.gang.row] = True
    for row, (start_s, end_s) in played(order, admitted, room).items():
        start_s_J[row] = start_s
        end_s_J[row] = end_s
    return Gangs(served_J, is_gang_J & ~served_J, start_s_J, end_s_J)


def played(
    order: Sequence[Gang], admitted: Sequence[Served], room: Room
) -> dict[int, tuple[float, float]]:
    """Return when jobs start and end, s from now, by row, if no other job comes.

    Whenever a job ends, the order is served from its front again, so a job's start
    depends only on the jobs in front of it. A job of unknown length never ends here, so
    jobs that would wait for it have no start. Neither have jobs behind the first
    PLAYED_MAX that wait. room: before the first job is admitted.
    """
    now = {each.gang.row for each in admitted}
    waiting = [gang.row for gang in order if gang.row not in now][:PLAYED_MAX]
    due = set(waiting)
    alive = [gang for gang in order if gang.row in now or gang.row in due]
    part_left = {gang.row: 1.0 for gang in alive}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    at_s = 0.0
    while alive:
        served = _admit(alive, room.copy())
        for each in served:
            starts.setdefault(each.gang.row, at_s)
        until_s = [part_left[each.gang.row] * each.left_s for each in served]
        step_s = min(until_s, default=math.inf)
        if step_s == math.inf:
            break
        at_s += step_s
        for each, left_s in zip(served, until_s, strict=True):
            if left_s <= step_s:
                ends[each.gang.row] = at_s
            elif left_s < math.inf:
                part_left[each.gang.row] -= step_s / each.left_s
        alive = [gang for gang in alive if gang.row not in ends]
        due -= starts.keys()
        if not due and now <= ends.keys():
            break
    return {row: (at, ends.get(row, math.inf)) for row, at in starts.items()}
