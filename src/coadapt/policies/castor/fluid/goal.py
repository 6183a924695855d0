"""What a course costs by a goal (Goal), and what a second by which each job ends sooner
takes off it.

Axes: J jobs.
"""

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.policies.castor.arrays import FloatArray
from coadapt.policies.castor.fluid.crowd import Course, Goal

# The last end stands for the ends within this share of it: softmax instead of max
# (tried: 0.05-0.2 alike).
LAST_SHARE = 0.1
# Who is expected may not come. So the last end is that of the last job with its chance
# to come, else that of the one before, and so on: down to who is last with less than
# this chance, or so many jobs.
SELDOM = 1e-3
LATEST_MAX = 16
# A second past its deadline counts as so many seconds of waiting besides (1).
LATE_JOBS = 4.0
FAIR_WEIGHT = 10.0  # of a second past fair_J (tried: 3)


@lean_part
def _before(course: Course, after: int) -> int:
    """Return who ends last of those before job `after` (-1: of all; at once: by
    number); -1: nobody.
    """
    found = -1
    for j in range(len(course.end_J)):
        end = course.end_J[j]
        if end == np.inf:
            continue
        if after >= 0 and (
            end > course.end_J[after] or (end == course.end_J[after] and j >= after)
        ):
            continue
        if found < 0 or end >= course.end_J[found]:
            found = j
    return found


@lean_part
def _last_end(course: Course, chance_J: FloatArray) -> float:
    """Return the last end, in the mean over who comes."""
    j = _before(course, -1)
    last = 0.0
    left = 1.0
    for _ in range(LATEST_MAX):
        if j < 0 or left < SELDOM:
            break
        last += left * chance_J[j] * course.end_J[j]
        left *= 1.0 - chance_J[j]
        j = _before(course, j)
    return last


@lean_part
def _near(course: Course, chance_J: FloatArray, j: int, last: float) -> float:
    """Return by how much the end of job j stands for a last end then, 0 if it is
    later.
    """
    if course.end_J[j] > last:
        return 0.0
    near: float = chance_J[j] * np.exp((course.end_J[j] - last) / (LAST_SHARE * last))
    return near


@lean_part
def _share_last_end(
    course: Course, chance_J: FloatArray, share_J: FloatArray, near_J: FloatArray
) -> None:
    """Write by how much the last end is that of each job. near_J: scratch."""
    share_J[:] = 0.0
    j = _before(course, -1)
    left = 1.0
    for _ in range(LATEST_MAX):
        if j < 0 or left < SELDOM or course.end_J[j] <= 0.0:
            break
        last = course.end_J[j]
        total = 0.0
        for i in range(len(share_J)):
            near_J[i] = _near(course, chance_J, i, last)
            total += near_J[i]
        for i in range(len(share_J)):
            share_J[i] += left * chance_J[j] * near_J[i] / total
        left *= 1.0 - chance_J[j]
        j = _before(course, j)


@compiled_lean
def mean_s(course: Course, goal: Goal) -> float:
    """Return the mean completion time, s."""
    total = 0.0
    count = 0
    for j in range(len(goal.weight_J)):
        if course.end_J[j] < np.inf:
            total += goal.age_J[j] + course.end_J[j]
            count += 1
    mean: float = max(total / max(count, 1), 1.0)
    return mean


@lean_part
def _second(course: Course, goal: Goal, j: int) -> float:
    """Return what a second more adds to long_J of job j."""
    long = goal.age_J[j] + course.end_J[j]
    past = max(long / goal.usual_s, 1.0)
    weighs: float = past**goal.tail if past > 1.0 else 1.0
    weighs += max(long / goal.bears_J[j] - 1.0, 0.0)
    weighs += FAIR_WEIGHT * max(long / goal.fair_J[j] - 1.0, 0.0)
    return weighs


@compiled_lean
def cost_of(course: Course, goal: Goal) -> float:
    """Return what a course costs; jobs that never end cost nothing, whatever the
    values.
    """
    cost: float = goal.makespan_jobs * _last_end(course, goal.chance_J)
    for j in range(len(goal.weight_J)):
        if course.end_J[j] < np.inf:
            late = max(course.end_J[j] - goal.due_J[j], 0.0)
            past = max((goal.age_J[j] + course.end_J[j]) / goal.usual_s, 1.0)
            # The integral of _second over the completion time.
            long = goal.age_J[j] + course.end_J[j]
            starved = max(long - goal.bears_J[j], 0.0) ** 2 / (2.0 * goal.bears_J[j])
            starved += (
                FAIR_WEIGHT
                * max(long - goal.fair_J[j], 0.0) ** 2
                / (2.0 * goal.fair_J[j])
            )
            if past > 1.0:
                long = (
                    goal.usual_s
                    * (goal.tail + past ** (1.0 + goal.tail))
                    / (1.0 + goal.tail)
                )
            long += starved
            cost += goal.weight_J[j] * (long + LATE_JOBS * late)
    return cost


@compiled_lean
def weigh(
    course: Course, goal: Goal, weight_J: FloatArray, share_J: FloatArray
) -> None:
    """Write ω: what one second by which each job ends sooner takes off the goal.
    share_J: scratch.
    """
    _share_last_end(course, goal.chance_J, share_J, weight_J)
    for j in range(len(weight_J)):
        weight_J[j] = goal.weight_J[j]
        if course.end_J[j] == np.inf:
            continue
        second = _second(course, goal, j)
        if course.end_J[j] > goal.due_J[j]:
            second += LATE_JOBS
        weight_J[j] = weight_J[j] * second + goal.makespan_jobs * share_J[j]
