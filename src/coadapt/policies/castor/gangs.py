"""Gangs: jobs of one size, which get all of their GPUs or none, scheduled from an
ordered list with backfilling.
"""

# The fluid relaxation divides a job over GPUs and time as it likes. A gang needs k GPUs
# at once, and nothing shortens its time. So the relaxation is wrong about a wide gang
# (it says that half of the gang can train now), and among competing gangs it keeps the
# order of its initial values. Gangs are scheduled from a list instead. All jobs are in
# one order. Each gang gets its GPUs if they are free, and jobs behind it may use what
# it leaves (backfilling). The round's knapsack then gives the other jobs the rest.
#
# Rank. The job with the least rank goes first. For a job with k GPUs, weight w over the
# mean weight of all jobs, and `left` seconds until its end on k GPUs of its best type:
#
#     rank     max(left + start, 0) / stretch x k^WIDTH / w
#     stretch  max((age + left) / (trained + left + ROUND_S), 1)
#
# start is the rescale time of a waiting job, and minus the rescale time of a running
# job: stopping that job would cost it another start. The stretch grows while a job
# waits, so no job starves. WIDTH = 1 is shortest remaining service first, WIDTH = 0 is
# shortest remaining time first.
#
# Unknown length. A gang that has not trained has as `left` the Gittins estimate of
# GangTimes. After it has trained for t seconds, its rank is the least attained service:
# (t + rescale time) x k^WIDTH / w while it waits, t x UNPROVEN x k^WIDTH / w while it
# runs.
#
# Other jobs (of several sizes) are in the same order with their equal share of the
# GPUs, and with trained = 0. So a gang takes GPUs from them only when it is its turn.
#
# Exceptions, from the strongest to the weakest:
#   1. A job that is late by its fair clock (rho_max) goes before all others. This does
#      not hold for a gang wider than an equal share.
#   2. A gang whose deadline allows no more waiting goes next.
#   3. Gangs that may determine the makespan have their rank divided by
#      1 + LAST x makespan_jobs. If fewer GPUs train in the order that results than in
#      the plain one, the plain one is taken.
#
# Predicted starts. The same order is simulated forward until the waiting gangs have
# started, with the jobs' remaining times. The first gang that waits has a reservation:
# jobs behind it are stopped when it can start.

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from coadapt.model import ClusterView, JobId, JobView
from coadapt.policies.castor.fairness import Fair
from coadapt.policies.castor.guarantees import Reservations
from coadapt.policies.castor.situation import ROUND_S, Situation
from coadapt.policies.castor.topology import Topology
from coadapt.policies.predictors.declared import forecast_of
from coadapt.policies.predictors.remaining_work import SEEN_MAX, TRUST
from coadapt.policies.solvers.arrays import JobBools, JobFloats, JobInts
from coadapt.policies.solvers.fluid_relaxation import Timeline

# Exponent of the number of GPUs in the rank: the best of 0, 0.25, 0.5, 0.75 and 1 on
# drawn gangs of 1 to all GPUs.
WIDTH = 0.5
# Weight of makespan_jobs in the rank of gangs that may end last (with 1 the makespan of
# Shockwave's trace is 20 % longer).
LAST = 4.0
# Prior of the training times of gangs, s: 30 s to 17 hours, each twice the one before.
# The prior counts as much as TRUST ended gangs. Chosen by hand, not measured.
PRIOR_S = tuple(30.0 * 2.0**step for step in range(12))
# Factor of the rank of a running gang of unknown length, so that similar gangs do not
# alternate (with 1 two of 14 drawn workloads of gangs change: mean up to 18 % longer).
UNPROVEN = 0.5
# Most waiting jobs whose start is predicted, which bounds the time of a decision.
# Chosen by hand.
PREDICTED_MAX = 50


class Gang(NamedTuple):
    """A job in the order.

    row: its row in the situation. gpus: the size of a gang, or the equal share of
    another job. types: the GPU types that it can train on, the soonest end first, each
    with the seconds that it trains there until its end (infinity: unknown). rank: the
    least goes first. is_gang: whether it has one size.
    """

    row: int
    gpus: int
    types: tuple[tuple[int, float], ...]
    rank: float
    is_gang: bool
    tenant: str

    @property
    def left_s(self) -> float:
        """Seconds of training left on the best GPU type; infinity: unknown."""
        return self.types[0][1]


class Precedence(NamedTuple):
    """What the order depends on besides the rank.

    late: jobs that are late by their fair clocks and have the guarantee of rho_max.
    makespan_jobs: weight of the makespan, in completion times of jobs.
    """

    late: JobBools
    makespan_jobs: float


class Served(NamedTuple):
    """A job that gets GPUs of a type, and the seconds that it trains there until its
    end (infinity: unknown).
    """

    gang: Gang
    of_type: int
    left_s: float


class Gangs(NamedTuple):
    """Which gangs train in this round, and when the others start.

    served: gangs that train now; barred: gangs that wait. start_s, end_s: predicted
    start and end, seconds from now, infinity: unknown. The round's knapsack chooses the
    GPU types of the gangs that are served.
    """

    served: JobBools
    barred: JobBools
    start_s: JobFloats
    end_s: JobFloats

    def reserved(self, reserved: Reservations, size: JobInts) -> Reservations:
        """Return `reserved` with those of gangs replaced: all GPUs for a gang that is
        served, none for a gang that waits.
        """
        is_gang = self.served | self.barred
        return Reservations(
            np.where(is_gang, size * self.served, reserved.gpus),
            np.where(is_gang, 0.0, reserved.goodput),
        )

    def waiting(self, now: Situation) -> Situation:
        """Return the situation of the round's knapsack, in which gangs that wait have
        no goodput anywhere.
        """
        return replace(
            now,
            goodput_JC=np.where(self.barred[:, None], 0.0, now.goodput_JC),
            here=np.where(self.barred, 0.0, now.here),
        )

    def predicted(self, timeline: Timeline) -> Timeline:
        """Return the relaxed timeline with the starts and ends of gangs replaced."""
        start_s = timeline.start_s.copy()
        end_s = timeline.end_s.copy()
        rows = np.flatnonzero(self.served | self.barred)
        start_s[rows] = self.start_s[rows]
        end_s[rows] = self.end_s[rows]
        return timeline._replace(start_s=start_s, end_s=end_s)


@dataclass(slots=True)
class Capacity:
    """GPUs that the order may still give: free ones by type, and the rest of each
    tenant's quota.
    """

    gpus_T: list[int]
    quota: dict[str, int]

    @classmethod
    def of(cls, topology: Topology) -> "Capacity":
        """Return what fixed jobs leave."""
        return cls(topology.gpus_by_type.tolist(), dict(topology.quota_left))

    def copy(self) -> "Capacity":
        """Return a copy that can be changed on its own."""
        return Capacity(list(self.gpus_T), dict(self.quota))

    def give(self, gang: Gang) -> Served | None:
        """Give a job its GPUs on the first of its types with enough free ones.

        Return None if there is none, or if the tenant's quota does not allow it.
        """
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


@dataclass(frozen=True, slots=True)
class GangTimes:
    """How long gangs trained until they ended, s; a value.

    recent: of the last SEEN_MAX gangs, in order of their ends; ascending: the same,
    sorted. trained_s: of the gangs that are still here, until now.
    """

    recent: tuple[float, ...] = ()
    ascending: tuple[float, ...] = ()
    trained_s: Mapping[JobId, float] = field(default_factory=dict)

    def observed(self, trained_s: Mapping[JobId, float]) -> "GangTimes":
        """Return the times after a round in which the present gangs had trained for
        this long. Gangs that are missing have ended.
        """
        ended = [
            seconds
            for job, seconds in self.trained_s.items()
            if job not in trained_s and seconds > 0.0
        ]
        if not ended:
            return GangTimes(self.recent, self.ascending, dict(trained_s))
        recent = (*self.recent, *ended)[-SEEN_MAX:]
        return GangTimes(recent, tuple(sorted(recent)), dict(trained_s))

    def unseen_s(self, start_s: float) -> float:
        """Return the Gittins estimate of the time of a gang that never trained, s.

        It is the minimum over y of E[start_s + min(S, y)] / P(S <= y), S being the time
        that gangs trained: the mean time spent per end, if gangs that take longer than
        y are stopped at y. start_s: what each start costs.
        """
        weight = TRUST / len(PRIOR_S)
        samples = [(seconds, 1.0) for seconds in self.ascending]
        samples += [(seconds, weight) for seconds in PRIOR_S]
        samples.sort()
        total = len(self.ascending) + TRUST
        best = math.inf
        ended = 0.0
        spent_s = 0.0
        for seconds, count in samples:
            ended += count
            spent_s += count * seconds
            mean_s = (spent_s + (total - ended) * seconds + total * start_s) / ended
            best = min(best, mean_s)
        return best


def gangs_in(now: Situation) -> JobBools:
    """Return which jobs are gangs: jobs of one size that can train somewhere."""
    size = now.facts.size
    is_gang: JobBools = (size > 0) & (now.goodput_JC > 0.0).any(axis=1)
    return is_gang


def late(now: Situation, fair: Fair, rho_max: float) -> JobBools:
    """Return the jobs that are late by their fair clocks and have the guarantee of
    `rho_max`.

    A gang that needs more than an equal share of the GPUs does not have it.
    """
    # The fair clock of such a gang runs in turns, at less than its goodput.
    whole = fair.rate >= fair.goodput * (1.0 - 1e-9)
    is_late: JobBools = (fair.least >= rho_max) & (whole | ~gangs_in(now))
    return is_late


def plan_gangs(
    view: ClusterView,
    now: Situation,
    first: Precedence,
    times: GangTimes,
) -> tuple[Gangs | None, GangTimes]:
    """Return which gangs train now, None if no job is a gang, and the times of gangs
    after this round.
    """
    is_gang = gangs_in(now)
    if not is_gang.any():
        return None, times.observed({})
    sizes = _sizes(now)
    trained_s = {
        now.jobs[row].id: _trained_s(view, now.jobs[row], gpus)
        for row, gpus in sizes.items()
        if is_gang[row]
    }
    unranked = [
        _unranked(now, row, gpus, is_gang=bool(is_gang[row]))
        for row, gpus in sizes.items()
    ]
    queue = _ranked(view, now, unranked, trained_s, times)
    capacity = Capacity.of(now.topology)
    order, admitted = _order(now, queue, first, capacity)
    gangs = _decided(order, admitted, is_gang, capacity)
    return gangs, times.observed(trained_s)


def _order(
    now: Situation, queue: Sequence[Gang], first: Precedence, capacity: Capacity
) -> tuple[list[Gang], list[Served]]:
    """Return the jobs in order, and those that get GPUs in this order."""
    due = _due(now, queue)

    def key(gang: Gang) -> tuple[bool, bool, float, int]:
        row = gang.row
        return not first.late[row], not due[row], gang.rank, row

    plain = sorted(queue, key=key)
    last_first = _last_first(queue, sum(capacity.gpus_T), first.makespan_jobs)
    order = sorted(last_first, key=key)
    plain_admitted = _admit(plain, capacity.copy())
    admitted = _admit(order, capacity.copy())
    if _used(admitted) < _used(plain_admitted):
        return plain, plain_admitted
    return order, admitted


def _sizes(now: Situation) -> dict[int, int]:
    """Return the GPUs of each job in the order, by row, without jobs that can train
    nowhere.
    """
    share = int(now.topology.gpus_by_type.sum()) // max(len(now.jobs), 1)
    sizes = {row: _size(now, row, share) for row in range(len(now.jobs))}
    return {row: gpus for row, gpus in sizes.items() if gpus}


def _unranked(now: Situation, row: int, gpus: int, *, is_gang: bool) -> Gang:
    """Return a job with a rank of 0."""
    job = now.jobs[row]
    types = _types(now, row, gpus)
    has_length = not is_gang or bool(now.facts.hint[row] < np.inf)
    if not (now.timed[row] and has_length):
        types = tuple((of_type, math.inf) for of_type, _ in types)
    if is_gang and not now.timed[row]:
        types = _declared(job, gpus, types)
    return Gang(row, gpus, types, 0.0, is_gang, job.spec.tenant)


def _ranked(
    view: ClusterView,
    now: Situation,
    jobs: Sequence[Gang],
    trained_s: Mapping[JobId, float],
    times: GangTimes,
) -> list[Gang]:
    """Return these jobs with their ranks. trained_s: how long gangs have trained."""
    mean_weight = float(now.weights.weight.mean())
    found = []
    for gang in jobs:
        job = now.jobs[gang.row]
        weight = float(now.weights.weight[gang.row]) / mean_weight
        plain = _rank(view, job, trained_s.get(job.id, 0.0), gang.left_s, times)
        found.append(gang._replace(rank=plain * gang.gpus**WIDTH / weight))
    return found


def _size(now: Situation, row: int, share: int) -> int:
    """Return the GPUs of a job in the order; 0: it can train nowhere.

    It is the largest of its sizes within `share`, the equal share, or its least size if
    all are larger.
    """
    gpus = now.configs.gpus_C[now.goodput_JC[row] > 0.0]
    within = gpus[gpus <= max(share, 1)]
    if len(within):
        return int(within.max())
    return int(gpus.min()) if len(gpus) else 0


def _types(now: Situation, row: int, gpus: int) -> tuple[tuple[int, float], ...]:
    """Return the types of a Gang, with the seconds that goodput and length give.

    A type other than the one that the job holds ends later by a rescale.
    """
    held_type, *_, held = now.sources.steps.held_JX[row].tolist()
    able_C = (now.configs.gpus_C == gpus) & (now.goodput_JC[row] > 0.0)
    type_C = now.configs.type_C[able_C]
    left_s_C = now.left[row] / now.goodput_JC[row, able_C]
    stays_C = (type_C == held_type) & (held > 0)
    end_s_C = left_s_C + np.where(stays_C, 0.0, now.rescale_s[row])
    ends = zip(end_s_C.tolist(), type_C.tolist(), left_s_C.tolist(), strict=True)
    return tuple((of_type, left_s) for _, of_type, left_s in sorted(ends))


def _declared(
    job: JobView, gpus: int, types: tuple[tuple[int, float], ...]
) -> tuple[tuple[int, float], ...]:
    """Return `types` of an untimed gang with the length that its user declared."""
    said = forecast_of(replace(job, measured=replace(job.measured, forecast=None)))
    if said is None:
        return types
    left_s = said.remaining_s(gpus)
    return tuple((of_type, left_s) for of_type, _ in types)


def _trained_s(view: ClusterView, job: JobView, gpus: int) -> float:
    """Return the seconds that a gang has trained, without starts and rescales.

    It is 0 before its first start, and at least 1 afterwards.
    """
    usage = job.usage
    if usage.started_at is None:
        return 0.0
    starts = usage.num_rescales + 1
    return max(view.service_gpu_s(job) / gpus - starts * job.rescale_s, 1.0)


def _rank(
    view: ClusterView, job: JobView, trained_s: float, left_s: float, times: GangTimes
) -> float:
    """Return the rank of a job without its factors of width and weight, s."""
    runs = bool(job.allocation.slots)
    age_s = max(view.at - job.submitted_at, 0.0)
    if left_s == math.inf and trained_s > 0.0:
        return trained_s * UNPROVEN if runs else trained_s + job.rescale_s
    if left_s == math.inf:
        left_s = times.unseen_s(job.rescale_s)
    stretch = max((age_s + left_s) / (trained_s + left_s + ROUND_S), 1.0)
    start_s = -job.rescale_s if runs else job.rescale_s
    return max(left_s + start_s, 0.0) / stretch


def _due(now: Situation, queue: Sequence[Gang]) -> JobBools:
    """Return the gangs that meet their deadline only if they start now.

    A gang that would miss it even so is not among them.
    """
    due = np.zeros(len(now.jobs), dtype=np.bool_)
    for gang in queue:
        slack_s = float(now.weights.due_s[gang.row]) - gang.left_s
        start_s = float(now.rescale_s[gang.row])
        due[gang.row] = gang.is_gang and 0.0 <= slack_s <= start_s + 2.0 * ROUND_S
    return due


def _last_first(
    queue: Sequence[Gang], num_gpus: int, makespan_jobs: float
) -> list[Gang]:
    """Return the queue with smaller ranks for gangs that may determine the makespan.

    The makespan is predicted as the larger of the mean work per GPU and the longest
    remaining time. A gang may determine it if it ends at most a round before that.
    """
    known = [gang for gang in queue if gang.left_s < math.inf]
    work_s = sum(gang.left_s * gang.gpus for gang in known) / max(num_gpus, 1)
    longest_s = max((gang.left_s for gang in known), default=0.0)
    from_s = max(work_s, longest_s) - ROUND_S
    counts = 1.0 + LAST * makespan_jobs
    return [
        gang._replace(rank=gang.rank / counts)
        if gang.is_gang and from_s <= gang.left_s < math.inf
        else gang
        for gang in queue
    ]


def _admit(order: Sequence[Gang], capacity: Capacity) -> list[Served]:
    """Return the jobs that get GPUs, in order. Jobs behind one that must wait may use
    what it leaves.
    """
    served = [capacity.give(gang) for gang in order]
    return [each for each in served if each is not None]


def _used(admitted: Sequence[Served]) -> int:
    return sum(each.gang.gpus for each in admitted)


def _decided(
    order: Sequence[Gang],
    admitted: Sequence[Served],
    is_gang: JobBools,
    capacity: Capacity,
) -> Gangs:
    """Return which gangs train, and when each job starts and ends by simulation."""
    num_jobs = len(is_gang)
    served = np.zeros(num_jobs, dtype=np.bool_)
    start_s = np.full(num_jobs, np.inf)
    end_s = np.full(num_jobs, np.inf)
    for each in admitted:
        if each.gang.is_gang:
            served[each.gang.row] = True
    for row, (start, end) in predicted_times(order, admitted, capacity).items():
        start_s[row] = start
        end_s[row] = end
    return Gangs(served, is_gang & ~served, start_s, end_s)


def predicted_times(
    order: Sequence[Gang], admitted: Sequence[Served], capacity: Capacity
) -> dict[int, tuple[float, float]]:
    """Return when jobs start and end, seconds from now, by row, if no other job comes.

    Whenever a job ends, the order is served from its front again. So a job's start
    depends only on the jobs in front of it. A job of unknown length never ends here,
    and jobs that would wait for it have no start. Nor have waiting jobs behind the
    first PREDICTED_MAX ones. admitted: the jobs served now. capacity: before the first
    job is served.
    """
    now = {each.gang.row for each in admitted}
    waiting = [gang.row for gang in order if gang.row not in now][:PREDICTED_MAX]
    shown = now | set(waiting)
    alive = [gang for gang in order if gang.row in shown]
    part_left = {gang.row: 1.0 for gang in alive}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    at_s = 0.0
    while alive and not (shown <= starts.keys() and now <= ends.keys()):
        served = _admit(alive, capacity.copy())
        for each in served:
            starts.setdefault(each.gang.row, at_s)
        left_s = {
            each.gang.row: part_left[each.gang.row] * each.left_s for each in served
        }
        step_s = min(left_s.values(), default=math.inf)
        if step_s == math.inf:
            break
        at_s += step_s
        ends |= {row: at_s for row, seconds in left_s.items() if seconds <= step_s}
        alive = [gang for gang in alive if gang.row not in ends]
        part_left = _parts_after(step_s, served, part_left, ends)
    return {row: (at, ends.get(row, math.inf)) for row, at in starts.items()}


def _parts_after(
    step_s: float,
    served: Sequence[Served],
    part_left: Mapping[int, float],
    ended: Container[int],
) -> dict[int, float]:
    """Return the part of its time that each job has left after step_s seconds."""
    return {
        **part_left,
        **{
            each.gang.row: part_left[each.gang.row] - step_s / each.left_s
            for each in served
            if each.gang.row not in ended and each.left_s < math.inf
        },
    }
