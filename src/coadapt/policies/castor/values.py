"""Values: what one unit of each job's progress saves in summed completion time: a fixed point over plays."""

# The derivation in short (docs/policies/castor.md has it whole). At given prices λ(t) of a GPU, job j
# minimises
#
#     integral from 0 to C_j of ( ω_j + λ(t) k(t) ) dt     with  integral of G_j(k(t)) dt = what it has left.
#
# Along an optimum its value v_j per unit of progress is constant, k(t) maximises v_j G_j(k) - λ(t) k, and
# the free end C_j asks for ω_j + λ(C_j) k - v_j G_j(k) = 0 there:  v_j = min_k (ω_j + λ(C_j) k) / G_j(k).
# Prices in turn follow from the values by a play. So: play, take each job's value at the price of its own
# end, half of the way in logarithms, and again; keep what cost least. The last round's values begin.

from dataclasses import dataclass, field

import numpy as np

from coadapt.model import JobId
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.arrivals import Expected
from coadapt.policies.castor.cluster import Kind
from coadapt.policies.castor.play import Course, Crowd, Curves, Goal, at_price, majorants, settle
from coadapt.policies.castor.situation import Situation

PLAYS = 13
# With so many pieces of curves in play, few plays must do: the values of the last round are near (1).
MANY_PIECES, FEW_PLAYS = 20_000, 4
# Values begin with a job's length to this power: the order of shortest remaining time, where there is nothing
# else to go by.
SHORTER_FIRST = -0.3


@dataclass(frozen=True, slots=True)
class Outlook:
    """value_J: per unit of progress. course: of the jobs of the round, then of those expected.

    curves: of the jobs of the round, over GPUs of the first type. gpus_T: what a GPU of each type counts for.
    """

    value_J: FloatArray
    course: Course
    curves: Curves


@dataclass(slots=True)
class Values:
    """The values of the last round, by job."""

    last: dict[JobId, float] = field(default_factory=dict)

    def settle(
        self, now: Situation, fluid: "Fluid", expected: Expected | None, makespan_jobs: float
    ) -> Outlook:
        """Return the values of this round."""
        crowd, weight_J, due_J = _crowd(now, fluid, expected)
        num_here = len(now.jobs)
        # Where all prices were alike, a GPU would be worth about this.
        typical = np.full(len(weight_J), 0.5 * weight_J[:num_here].sum() / max(fluid.num_gpus, 1.0))
        start_J = at_price(crowd.curves, weight_J, typical) * _shorter_first(crowd)
        for row, job in enumerate(now.jobs):
            known = self.last.get(job.id, 0.0)
            if known > 0.0 and now.timed_J[row]:
                start_J[row] = known
        goal = Goal(weight_J, due_J, makespan_jobs, num_here)
        plays = PLAYS if len(crowd.curves.gpus_V) <= MANY_PIECES else FEW_PLAYS
        value_J, course, _ = settle(crowd, start_J, goal, plays)
        value_J = value_J[:num_here]
        self.last = {job.id: float(value_J[row]) for row, job in enumerate(now.jobs) if now.timed_J[row]}
        return Outlook(value_J, course, fluid.curves)


def _shorter_first(crowd: Crowd) -> FloatArray:
    """Return factors on values to begin with: among jobs alike, the fixed point keeps the order it finds."""
    first_J = crowd.curves.first_J[:-1]
    alone_J = crowd.curves.goodput_V[first_J] / crowd.curves.gpus_V[first_J]
    with np.errstate(divide="ignore"):
        lasts_J = np.clip(crowd.left_J / alone_J, 1.0, 1e9)
    factor_J: FloatArray = np.clip((lasts_J / np.median(lasts_J)) ** SHORTER_FIRST, 0.01, 100.0)
    return factor_J


@dataclass(frozen=True, slots=True)
class Fluid:
    """Concave curves of the jobs over GPUs of the first type, and how many of these the cluster is worth."""

    curves: Curves
    num_gpus: float

    @classmethod
    def of(cls, now: Situation, kinds: "tuple[Kind, ...]") -> "Fluid":
        """Return the fluid of a round. A GPU of another type counts as the jobs' mean goodput on it."""
        worth_T = _type_worths(now.configs.type_C, now.configs.gpus_C, now.goodput_JC, len(kinds))
        gpus_C = now.configs.gpus_C * worth_T[now.configs.type_C]
        order_C = np.argsort(gpus_C, kind="stable")
        num_gpus = float(sum(kind.num_gpus * worth for kind, worth in zip(kinds, worth_T, strict=True)))
        return cls(majorants(np.ascontiguousarray(now.goodput_JC[:, order_C]), gpus_C[order_C]), num_gpus)


def _type_worths(type_C: IntArray, gpus_C: IntArray, goodput_JC: FloatArray, num_types: int) -> FloatArray:
    """Return the geometric mean, over jobs and sizes, of goodput on each type against that on the first."""
    worth_T = np.ones(num_types)
    for number in range(1, num_types):
        ratios = []
        for size in np.intersect1d(gpus_C[type_C == 0], gpus_C[type_C == number]).tolist():
            first_J = goodput_JC[:, (type_C == 0) & (gpus_C == size)][:, 0]
            other_J = goodput_JC[:, (type_C == number) & (gpus_C == size)][:, 0]
            both_J = (first_J > 0.0) & (other_J > 0.0)
            ratios.append(np.log(other_J[both_J] / first_J[both_J]))
        found = np.concatenate(ratios) if ratios else np.empty(0)
        worth_T[number] = float(np.exp(found.mean())) if len(found) else 1.0
    return worth_T


def _crowd(now: Situation, fluid: Fluid, expected: Expected | None) -> tuple[Crowd, FloatArray, FloatArray]:
    if expected is None:
        return (
            Crowd(fluid.curves, now.left_J, np.zeros(len(now.jobs)), fluid.num_gpus),
            now.weight_J,
            now.due_J,
        )
    here, more = fluid.curves, expected.curves
    curves = Curves(
        np.concatenate((here.first_J, more.first_J[1:] + here.first_J[-1])),
        np.concatenate((here.gpus_V, more.gpus_V)),
        np.concatenate((here.goodput_V, more.goodput_V)),
    )
    count = len(expected.left_J)
    left_J = np.concatenate((now.left_J, expected.left_J))
    arrives_J = np.concatenate((np.zeros(len(now.jobs)), expected.arrives_J))
    weight_J = np.concatenate((now.weight_J, np.full(count, now.weight_J.mean())))
    due_J = np.concatenate((now.due_J, np.full(count, np.inf)))
    return Crowd(curves, left_J, arrives_J, fluid.num_gpus), weight_J, due_J
