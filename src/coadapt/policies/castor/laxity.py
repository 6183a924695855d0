"""Who cannot catch up: jobs of one size that must run now, or end later than they may whatever comes."""

# A job that can grow makes good later what it waits for now; the plays see to that. One that trains on k
# GPUs or not at all cannot: what it has left takes so long. So it has a laxity, the time that it may still
# wait, by two clocks:
#
#   the last end   Nothing ends all jobs before E, the longest time left, or GPU-seconds left / GPUs if that
#                  is more. Jobs that may be cut freely all end by E if each runs from when its laxity against
#                  E is gone (McNaughton 1959), so until then the short may go first.
#   what it bears  fairness.Waits, or its deadline if that is sooner; heavier jobs bear less.
#
# Sums of completion times alone put long and wide jobs last, and the cluster ends half empty. Whoever has no
# laxity left is owed its GPUs, those of the last end before the others, and of these the latest first, in
# steps: else two that are nearly alike take turns with each round. Nobody knows the laxity of a job that was
# never timed; those who are owed would shut it out, so some are owed a trial.

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.policies.castor.arrays import BoolArray, FloatArray, IntArray
from coadapt.policies.castor.fairness import OVERDUE, ROUND_S, Fair
from coadapt.policies.castor.situation import REPORT_S, Situation

NEAR_END = 0.95  # of E: who has as much left must run (tried: 0.9, 0.97)
LAST_END_FIRST = 3.0  # times as urgent as who reaches what it bears; more than LATEST
LAST_END_PART = 0.5  # of the GPUs: for those at once, or a long job on all of them keeps out a short one (1)
LATEST = 2.0  # times what it bears: beyond it nobody is more urgent (1)
URGENCY_STEP = 0.2  # (tried: 0, 0.1)
TRIED_PART = 0.25  # of the GPUs: for trials at once (tried: 0, 0.5)
TRIAL_S = (
    5.0 * REPORT_S
)  # from a job's first start: if no step was timed by then, it has no more trials (1)


# Times as urgent as anything else that is owed: what `rho_max` guarantees holds beside it, too.
SHARES_FIRST = 100.0
ANY_TYPE, NO_TYPE = -1, -2


class Owed(NamedTuple):
    """What the round owes its jobs. replicas_J: at least so many now, 0 if it may wait; type_J: of this GPU
    type, ANY_TYPE, or NO_TYPE, of which nothing counts; goodput_J: or whatever does as much, infinity:
    nothing else.

    urgency_J: what a GPU of them counts where not all fit.
    """

    replicas_J: IntArray
    type_J: IntArray
    goodput_J: FloatArray
    urgency_J: FloatArray

    def with_shares(self, fair: Fair, rho_max: float) -> "Owed":
        """Return this, and their shares to all that are late by their fair clocks."""
        owed = Owed(
            self.replicas_J.copy(),
            self.type_J.copy(),
            self.goodput_J.copy(),
            self.urgency_J.copy(),
        )
        _owe_shares(owed, fair, rho_max)
        return owed


@compiled_lean
def _owe_shares(owed: Owed, fair: Fair, rho_max: float) -> None:
    for j in range(len(fair.least_J)):
        if fair.least_J[j] < rho_max:
            continue
        overdue = (
            fair.least_J[j] >= OVERDUE * rho_max and fair.rate_J[j] > fair.goodput_J[j]
        )
        if owed.replicas_J[j] == 0:
            owed.type_J[j] = NO_TYPE if overdue else fair.type_J[j]
        owed.replicas_J[j] = max(owed.replicas_J[j], fair.gpus_J[j])
        owed.goodput_J[j] = fair.rate_J[j] if overdue else fair.goodput_J[j]
        owed.urgency_J[j] = SHARES_FIRST


def owed_now(
    now: Situation, at: float, bears_J: FloatArray, num_gpus: int, *, end_too: bool
) -> Owed:
    """Return what jobs of one size are owed. bears_J: completion time, s. end_too: heed the last end."""
    num_jobs = len(now.jobs)
    replicas_J, urgency_J = np.zeros(num_jobs, dtype=np.int64), np.ones(num_jobs)
    owed = Owed(
        replicas_J, np.full(num_jobs, ANY_TYPE), np.full(num_jobs, np.inf), urgency_J
    )
    size_J = now.known.numbers.size_J
    one_J = (size_J > 0) & (now.goodput_JC > 0.0).any(axis=1)
    if not one_J.any():
        return owed
    known_J = one_J & now.timed_J
    takes_s_J = np.where(known_J, _takes_s(now), 0.0)
    weight_J, _, age_J = now.stakes
    until_s_J = _until(now, bears_J)
    late_J = known_J & (age_J + takes_s_J + ROUND_S >= until_s_J)
    times_J = np.clip((age_J + takes_s_J) / until_s_J, 1.0, LATEST)
    urgency_J[late_J] = np.floor(times_J[late_J] / URGENCY_STEP) * URGENCY_STEP
    if end_too:
        end_s = max(_gpu_seconds(now) / max(num_gpus, 1), takes_s_J.max())
        last_J = known_J & (takes_s_J + ROUND_S >= NEAR_END * end_s)
        last_J &= weight_J >= weight_J.mean() * (1.0 - 1e-9)
        first_J = _longest(last_J, takes_s_J, size_J, LAST_END_PART * num_gpus)
        urgency_J[first_J] = LAST_END_FIRST
        late_J[first_J] = True
    replicas_J[late_J] = size_J[late_J]
    tried_J = _tried(
        now, np.where(now.timed_J, 0, size_J * one_J), at, TRIED_PART * num_gpus
    )
    replicas_J[tried_J] = size_J[tried_J]
    return owed


def _takes_s(now: Situation) -> FloatArray:
    """Return how long each job takes from now on at its best, s; a start included where it holds nothing."""
    with np.errstate(divide="ignore"):
        train_s_J: FloatArray = now.left_J / now.goodput_JC.max(axis=1)
    return train_s_J + np.where(
        now.sources.steps.held_JX[:, 3] > 0, 0.0, now.rescale_s_J
    )


def _until(now: Situation, bears_J: FloatArray) -> FloatArray:
    """Return the completion time that each job may have, s."""
    weight_J, due_J, age_J = now.stakes
    until_s_J: FloatArray = np.minimum(
        bears_J * weight_J.mean() / weight_J, age_J + due_J
    )
    return np.maximum(until_s_J, ROUND_S)


def _longest(
    may_J: BoolArray, takes_s_J: FloatArray, size_J: IntArray, room: float
) -> IntArray:
    """Return the rows of those that take longest, as many as find room."""
    rows: list[int] = []
    for row in sorted(np.flatnonzero(may_J).tolist(), key=lambda row: -takes_s_J[row]):
        if size_J[row] <= room:
            room -= float(size_J[row])
            rows.append(row)
    return np.array(rows, dtype=np.int64)


def _gpu_seconds(now: Situation) -> float:
    """Return what all jobs have left, each where it costs least."""
    with np.errstate(divide="ignore"):
        cost_JC = np.where(
            now.goodput_JC > 0.0, now.configs.gpus_C / now.goodput_JC, np.inf
        )
    cost_J = now.left_J * cost_JC.min(axis=1, initial=np.inf)
    return float(cost_J[np.isfinite(cost_J) & now.timed_J].sum())


def _tried(now: Situation, size_J: IntArray, at: float, room: float) -> IntArray:
    """Return the rows of those who are owed a trial, in order of their coming: `room` GPUs, or one job.

    size_J: what they need, 0: not one of them.
    """
    rows: list[int] = []
    for row in np.flatnonzero(size_J).tolist():
        since = now.jobs[row].usage.started_at
        if since is not None and at - since > TRIAL_S:
            continue
        room -= float(size_J[row])
        if room < 0.0 and rows:
            break
        rows.append(row)
    return np.array(rows, dtype=np.int64)
