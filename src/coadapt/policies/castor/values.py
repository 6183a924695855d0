"""Values: what one unit of each job's progress saves in summed completion time: a fixed
point over plays.
"""

# The derivation in short (docs/policies/castor.md has it whole). At given prices λ(t)
# of a GPU, job j minimises
#
#     integral from 0 to C_j of ( ω_j + λ(t) k(t) ) dt     with  integral of G_j(k(t))
#     dt = what it has left.
#
# Along an optimum its value v_j per unit of progress is constant, k(t) maximises v_j
# G_j(k) - λ(t) k, and the free end C_j asks for ω_j + λ(C_j) k - v_j G_j(k) = 0 there:
# v_j = min_k (ω_j + λ(C_j) k) / G_j(k).
# Prices in turn follow from the values by a play. So: play, take each job's value at
# the price of its own end, half of the way in logarithms, and again; keep what cost
# least. The last round's values begin.

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean, variable
from coadapt.policies.castor.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    JobRows,
    log,
    median,
    power,
)
from coadapt.policies.castor.arrivals import Expected
from coadapt.policies.castor.fluid.crowd import (
    NO_CURVES,
    Course,
    Crowd,
    Curves,
    Goal,
    joined,
    type_majorants,
)
from coadapt.policies.castor.fluid.goal import LATE_JOBS
from coadapt.policies.castor.fluid.market import settle_types
from coadapt.policies.castor.fluid.play import at_price, settle
from coadapt.policies.castor.noise import Stretches
from coadapt.policies.castor.situation import Situation, Stakes

# Values begin where those of the last round ended, so few plays do; more are for jobs
# that are new. Few where plays are dear: on GPUs of several types, or with so many
# pieces of curves, those of about a hundred jobs (wherever the last round's values are
# known 5, 6, 7 and 10 are no better).
PLAYS = 10
FEW_PLAYS = 4
MANY_PIECES = 2_000
# Values begin with a job's length to this power: the order of shortest remaining time,
# where there is nothing else to go by.
SHORTER_FIRST = -0.3


@dataclass(frozen=True, slots=True)
class Outlook:
    """value_J: per unit of progress. course: of the jobs of the round, then of those
    expected. part: of whom as of Expected.
    """

    value_J: FloatArray
    course: Course
    part: float = 1.0

    @property
    def calm_s(self) -> float:
        """Seconds until somebody here is foreseen to end, or somebody expected to
        start.
        """
        starts_s = (
            self.course.start_J[len(self.value_J) :].min(initial=np.inf) / self.part
        )
        return float(self.course.end_J.min(initial=starts_s))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to make small besides summed completion time; see CastorOptions, Goal.
    bears_J, fair_J: of jobs here; no fair_J: nothing is past it.
    """

    makespan_jobs: float
    tail: float
    bears_J: FloatArray
    fair_J: FloatArray | None = None


class _Last(NamedTuple):
    """Values of one round, by row: now (0: unknown), and behind all of these on later
    stretches.

    begin_J: where each job's begin there (last: how many there are).
    """

    value_P: FloatArray
    begin_J: IntArray


@dataclass(slots=True)
class Values:
    """The values of the last round, and whose they are."""

    job_rows: JobRows = field(default_factory=JobRows)
    last: _Last = field(
        default_factory=lambda: _Last(np.empty(0), np.zeros(1, dtype=np.int64))
    )

    def settle(
        self, now: Situation, fluid: "Fluid", expected: Expected | None, wanted: Wanted
    ) -> Outlook:
        """Return the values of this round."""
        crowd, goal = _crowd(now, fluid, expected, wanted)
        num_here = len(now.jobs)
        num_jobs = len(goal.weight_J)
        start_P = _begin(now, crowd, goal, fluid.worth_T)
        begin_J = now.later.begin_J
        _go_on(
            self.last,
            now.job_rows.before(self.job_rows),
            now.timed_J,
            begin_J,
            variable(num_jobs),
            start_P,
        )
        one_type = len(crowd.gpus_T) == 1
        few = not one_type or len(crowd.curves.gpus_V) > MANY_PIECES
        settled = settle if one_type else settle_types
        plays = FEW_PLAYS if few else PLAYS
        value_P, course, _ = settled(crowd, start_P, goal, plays)
        value_J = value_P[:num_here]
        self.job_rows = now.job_rows
        self.last = _Last(
            np.concatenate((np.where(now.timed_J, value_J, 0.0), value_P[num_jobs:])),
            begin_J,
        )
        return Outlook(value_J, course, 1.0 if expected is None else expected.part)


def _begin(now: Situation, crowd: Crowd, goal: Goal, worth_T: FloatArray) -> FloatArray:
    """Return the values to begin with where those of the last round are not known.
    worth_T: as of Fluid.
    """
    num_here = len(now.jobs)
    num_jobs = len(goal.weight_J)
    whose_P = np.concatenate((np.arange(num_jobs), now.later.job_L))
    # Where all prices were alike, a GPU would be worth about this.
    price = (
        0.5 * goal.weight_J[:num_here].sum() / max(float(crowd.gpus_T @ worth_T), 1.0)
    )
    # With few plays nobody would find out that who was put last ends past its deadline.
    weight_J = goal.weight_J * np.where(goal.due_J < np.inf, 1.0 + LATE_JOBS, 1.0)
    start_P = at_price(crowd.curves, weight_J[whose_P], price * worth_T)
    start_P *= _shorter_first(crowd, num_jobs, now.later.job_L)[whose_P]
    return start_P


@compiled_lean
def _go_on(
    last: _Last,
    before_J: IntArray,
    timed_J: BoolArray,
    begin_J: IntArray,
    num_jobs: int,
    start_P: FloatArray,
) -> None:
    """Write the values of the last round where they are known: of who is cut otherwise
    now, in proportion.
    """
    num_before = len(last.begin_J) - 1
    for j in range(len(before_J)):
        row = before_J[j]
        first = num_jobs + begin_J[j]
        count = begin_J[j + 1] - begin_J[j]
        if row < 0 or not timed_J[j] or last.value_P[row] <= 0.0:
            continue
        known = num_before + last.begin_J[row]
        if last.begin_J[row + 1] - last.begin_J[row] == count:
            start_P[j] = last.value_P[row]
            for part in range(count):
                start_P[first + part] = last.value_P[known + part]
        elif start_P[j] > 0.0:
            factor = last.value_P[row] / start_P[j]
            start_P[j] *= factor
            for part in range(count):
                start_P[first + part] *= factor


def _shorter_first(crowd: Crowd, num_jobs: int, later_L: IntArray) -> FloatArray:
    """Return factors on values to begin with: among jobs alike, the fixed point keeps
    the order it finds.

    later_L: whose the parts beyond `num_jobs` are.
    """
    whole_s_J = np.empty(num_jobs)
    _last_alone(crowd, later_L, whole_s_J)
    factor_J = power(whole_s_J / median(whole_s_J), SHORTER_FIRST)
    return np.minimum(np.maximum(factor_J, 0.01), 100.0)


@compiled_lean
def _last_alone(crowd: Crowd, later_L: IntArray, whole_s_J: FloatArray) -> None:
    """Write how long each job lasts on the first corners of its curves, s."""
    num_jobs = len(whole_s_J)
    for part in range(num_jobs + len(later_L)):
        corner = crowd.curves.first_J[part]
        alone = crowd.curves.goodput_V[corner] / crowd.curves.gpus_V[corner]
        lasts_s = min(max(crowd.left_J[part] / alone, 1.0), 1e9)
        if part < num_jobs:
            whole_s_J[part] = lasts_s
        else:
            whole_s_J[later_L[part - num_jobs]] += lasts_s


class TypeNumbers(NamedTuple):
    """The numbers of a round's GPU types, and how many there ever were."""

    number_T: tuple[int, ...]
    ever: int


@dataclass(slots=True)
class GpuTypes:
    """Numbers of GPU types, in the order of their coming. Those that are lost keep
    theirs, as curves of jobs that went before are kept by them.
    """

    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, names: Sequence[str]) -> TypeNumbers:
        """Return the numbers of these."""
        number_T = tuple(
            [self.numbers.setdefault(name, len(self.numbers)) for name in names]
        )
        return TypeNumbers(number_T, len(self.numbers))


@dataclass(frozen=True, slots=True)
class Fluid:
    """Concave curves of the jobs, and of their later stretches, by the numbers of GPU
    types.

    gpus_T: how many of each there are. worth_T: what one is worth, in the mean, in GPUs
    of the round's first type. unlike: by how much that differs from the most common
    type, in logarithms, in the mean.
    """

    curves: Curves
    later: Curves
    gpus_T: FloatArray
    worth_T: FloatArray
    unlike: float

    @property
    def several(self) -> bool:
        """Whether there are GPUs of several types."""
        return int(np.count_nonzero(self.gpus_T)) > 1

    @classmethod
    def of(
        cls, now: Situation, gpus_T: IntArray, numbers: TypeNumbers | None = None
    ) -> "Fluid":
        """Return the fluid of a round, of so many GPUs by type. numbers: of these types
        (None: 0, 1, ...).
        """
        configs = now.configs
        num_types = len(gpus_T)
        number_T, ever = numbers or TypeNumbers(tuple(range(num_types)), num_types)
        worth_T = np.ones(1)
        unlike = 0.0
        if num_types > 1:
            worth_T = _type_worths(
                configs.type_C, configs.gpus_C, now.goodput_JC, num_types
            )
            unlike_T = np.abs(log(worth_T / worth_T[gpus_T.argmax()]))
            unlike = float(gpus_T @ unlike_T) / max(gpus_T.sum(), 1)
        here, later = (
            type_majorants(each, configs.gpus_C, configs.type_C, number_T)
            for each in (now.goodput_JC, now.later_LC)
        )
        ever_gpus_T = np.zeros(ever)
        ever_worth_T = np.ones(ever)
        ever_gpus_T[list(number_T)] = gpus_T
        ever_worth_T[list(number_T)] = worth_T
        return cls(here, later, ever_gpus_T, ever_worth_T, unlike)


def _type_worths(
    type_C: IntArray, gpus_C: IntArray, goodput_JC: FloatArray, num_types: int
) -> FloatArray:
    """Return the geometric mean, over jobs and sizes, of goodput on each type against
    that on the first.
    """
    worth_T = np.ones(num_types)
    for number in range(1, num_types):
        ratios = []
        for size in np.intersect1d(
            gpus_C[type_C == 0], gpus_C[type_C == number]
        ).tolist():
            first_J = goodput_JC[:, (type_C == 0) & (gpus_C == size)][:, 0]
            other_J = goodput_JC[:, (type_C == number) & (gpus_C == size)][:, 0]
            both_J = (first_J > 0.0) & (other_J > 0.0)
            ratios.append(log(other_J[both_J] / first_J[both_J]))
        found = np.concatenate(ratios) if ratios else np.empty(0)
        worth_T[number] = math.exp(found.mean()) if len(found) else 1.0
    return worth_T


class _More(NamedTuple):
    """Jobs that are expected: lengths, seconds until they come; weight of each, and its
    chance to come.
    """

    left_J: FloatArray
    arrives_J: FloatArray
    weight: float
    chance: float


def _crowd(
    now: Situation, fluid: Fluid, expected: Expected | None, wanted: Wanted
) -> tuple[Crowd, Goal]:
    """Return jobs that are here, those expected, then later stretches; and the goal."""
    curves = NO_CURVES
    more = _More(np.empty(0), np.empty(0), 0.0, 1.0)
    if expected is not None:
        weight = expected.part * float(now.stakes.weight_J.mean())
        curves = expected.curves
        more = _More(expected.left_J, expected.arrives_J, weight, expected.part)
    num_jobs = len(now.jobs) + len(more.left_J)
    num_parts = num_jobs + len(now.later.job_L)
    left_P, arrives_P = np.empty((2, num_parts))
    next_P = np.empty(num_parts, dtype=np.int64)
    crowd = Crowd(
        joined([fluid.curves, curves, fluid.later]),
        left_P,
        arrives_P,
        next_P,
        fluid.gpus_T,
    )
    weight_J, due_J, age_J, bears_J, fair_J, chance_J = np.empty((6, num_jobs))
    dials = wanted.makespan_jobs, wanted.tail
    goal = Goal(weight_J, due_J, age_J, bears_J, fair_J, chance_J, *dials, usual_s=0.0)
    own_fair_J = (
        np.full(len(now.jobs), np.inf) if wanted.fair_J is None else wanted.fair_J
    )
    _gather(
        now.left_J, now.stakes, wanted.bears_J, own_fair_J, more, now.later, crowd, goal
    )
    return crowd, goal


@compiled_lean
def _gather(
    left_J: FloatArray,
    stakes: Stakes,
    bears_J: FloatArray,
    fair_J: FloatArray,
    more: _More,
    later: Stretches,
    crowd: Crowd,
    goal: Goal,
) -> None:
    """Write lengths, arrivals and followers of a crowd, and what counts of its jobs."""
    num_here = len(left_J)
    num_jobs = len(goal.weight_J)
    for j in range(num_here):
        crowd.left_J[j] = left_J[j]
        crowd.arrives_J[j] = 0.0
        crowd.next_J[j] = -1
        goal.weight_J[j] = stakes.weight_J[j]
        goal.due_J[j] = stakes.due_J[j]
        goal.age_J[j] = stakes.age_J[j]
        goal.bears_J[j] = bears_J[j]
        goal.fair_J[j] = fair_J[j]
        goal.chance_J[j] = 1.0
    for j in range(num_here, num_jobs):
        arrives_s = more.arrives_J[j - num_here]
        crowd.left_J[j] = more.left_J[j - num_here]
        crowd.arrives_J[j] = arrives_s
        crowd.next_J[j] = -1
        goal.weight_J[j] = more.weight
        goal.due_J[j] = np.inf
        goal.age_J[j] = -arrives_s
        goal.bears_J[j] = np.inf
        goal.fair_J[j] = np.inf
        goal.chance_J[j] = more.chance
    for stretch in range(len(later.job_L)):
        j = later.job_L[stretch]
        part = num_jobs + stretch
        crowd.left_J[j] -= later.left_L[stretch]
        crowd.left_J[part] = later.left_L[stretch]
        crowd.arrives_J[part] = np.inf
        crowd.next_J[part] = -1
        crowd.next_J[j if stretch == later.begin_J[j] else part - 1] = part
