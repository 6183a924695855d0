"""Many courses of the future in other processes, and what they agree on: intervals of
starts and ends.
"""

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import numpy as np

from coadapt.model import JobId
from coadapt.policies.base import Policy
from coadapt.sim.ahead.roll import Course, Question, TimeLimits, policy_now, roll
from coadapt.sim.ahead.scenario import Scenario

NUM_ROLLS = 20
# The ends of the interval that nine of ten futures lie in.
LOW = 0.05
HIGH = 0.95
# The scheduler and its jobs go first.
NICENESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Seconds from now: the median, and the interval of nine in ten; infinite beyond
    the horizon.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Range":
        """Return the quantiles of some draws."""
        ordered = np.sort(np.asarray(values, dtype=float))
        median, low, high = (_quantile(ordered, share) for share in (0.5, LOW, HIGH))
        return cls(median=median, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """When a job starts and ends, s from now. sizes: the GPUs that it most likely has,
    in order.
    """

    starts: Range
    ends: Range
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What becomes of a scenario. mean_end: of the jobs, last_end: of the last one, s
    from now. cost: of the GPUs that they hold until then; None without prices.
    num_rolls: over how many courses.

    ahead_s: how far they were computed where time was short, else infinite. Starts and
    ends beyond it are infinite, and `mean_end` counts a job that has not ended by then
    as if it ended there.
    """

    scenario: str
    jobs: Mapping[JobId, JobEstimate]
    mean_end: Range
    last_end: Range
    cost: Range | None = None
    num_rolls: int = NUM_ROLLS
    ahead_s: float = math.inf


def estimates(
    question: Question,
    scenarios: Sequence[Scenario],
    num_rolls: int = NUM_ROLLS,
    num_processes: int | None = None,
    *,
    budget_s: float = math.inf,
    show: Callable[[int, int], None] | None = None,
) -> list[Estimate]:
    """Return what becomes of each scenario, over the same `num_rolls` draws of what is
    left of jobs; over fewer, but at least one, if these take longer than `budget_s`.
    Where even one course of each takes longer, or some need too much of the time to
    reach further than a day ahead, all are computed equally far ahead, as
    `Estimate.ahead_s` says. `show` is called with the number of courses that are
    computed, and of all, after each of them.

    The courses are computed in other processes; with `num_processes` 1, in this one.
    Raises InputError.
    """
    asked = [replace(question, scenario=scenario) for scenario in scenarios]
    # All scenarios of one draw before the next draw: the budget may end between two.
    rolls = [
        (number, seed) for seed in range(num_rolls) for number in range(len(asked))
    ]
    ends_at = time.monotonic() + budget_s
    num_at_once = min(num_processes or os.cpu_count() or 1, len(rolls))
    limits = TimeLimits(
        wall_s=budget_s * num_at_once / len(asked),
        share_s=budget_s * num_at_once / len(rolls),
    )
    if num_at_once == 1:
        courses = _Courses(asked, limits)
        found = _in_time(
            _shown((courses.roll(n, seed) for n, seed in rolls), len(rolls), show),
            len(asked),
            ends_at,
        )
    else:
        with ProcessPoolExecutor(
            num_at_once,
            mp_context=get_context("spawn"),
            initializer=_prepare,
            initargs=(asked, limits),
        ) as pool:
            there = _shown(_few_ahead(pool, rolls, num_at_once), len(rolls), show)
            found = _in_time(there, len(asked), ends_at)
    ahead_s = min(course.ahead_s for course in found)
    if math.isfinite(ahead_s):
        found = [course.until(ahead_s) for course in found]
    return [
        _estimate(
            scenario,
            found[number :: len(asked)],
            ahead_s,
            priced=question.state.prices is not None,
        )
        for number, scenario in enumerate(scenarios)
    ]


def _shown(
    courses: Iterator[Course], num_courses: int, show: Callable[[int, int], None] | None
) -> Iterator[Course]:
    """Yield the courses, and show how many of `num_courses` there are."""
    for number, course in enumerate(courses, 1):
        if show is not None:
            show(number, num_courses)
        yield course


def _in_time(
    courses: Iterator[Course], num_scenarios: int, ends_at: float
) -> list[Course]:
    """Return the courses of whole draws that are there by `ends_at`, on the monotonic
    clock, and of the first one.
    """
    found: list[Course] = []
    for course in courses:
        found.append(course)
        if len(found) >= num_scenarios and time.monotonic() > ends_at:
            break
    return found[: len(found) // num_scenarios * num_scenarios]


def _few_ahead(
    pool: ProcessPoolExecutor, rolls: Sequence[tuple[int, int]], num_at_once: int
) -> Iterator[Course]:
    """Yield courses in order. No more are begun than there are processes, so that few
    are computed in vain where the budget ends.
    """
    begun: deque[Future[Course]] = deque()
    for each in rolls:
        begun.append(pool.submit(_roll, each))
        if len(begun) == num_at_once:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _estimate(
    scenario: Scenario, courses: Sequence[Course], ahead_s: float, *, priced: bool
) -> Estimate:
    names = sorted({job for course in courses for job in course.names})
    jobs = {name: _of_job(name, courses) for name in names}
    means: list[float] = []
    lasts: list[float] = []
    for course in courses:
        ends = [course.ends_s.get(name, math.inf) for name in names]
        counted = [min(end, ahead_s) for end in ends]
        means.append(sum(counted) / len(ends) if ends else 0.0)
        lasts.append(max(ends, default=0.0))
    return Estimate(
        scenario=scenario.name,
        jobs=jobs,
        mean_end=Range.of(means),
        last_end=Range.of(lasts),
        cost=Range.of([course.cost for course in courses]) if priced else None,
        num_rolls=len(courses),
        ahead_s=ahead_s,
    )


def _of_job(name: JobId, courses: Sequence[Course]) -> JobEstimate:
    sizes = Counter(course.sizes.get(name, ()) for course in courses)
    return JobEstimate(
        starts=Range.of([each.starts_s.get(name, math.inf) for each in courses]),
        ends=Range.of([each.ends_s.get(name, math.inf) for each in courses]),
        sizes=max(sizes, key=lambda each: (sizes[each], each)),
    )


def _quantile(ordered: np.ndarray, share: float) -> float:
    # The place at which the share of the next draws below it is `share`, on average
    # over draws (Hyndman and Fan, 1996, definition 6): of twenty futures the interval
    # is nearly that from the first to the last one.
    place = min(max(share * (len(ordered) + 1) - 1.0, 0.0), len(ordered) - 1.0)
    # Between two draws of which one is infinite there is no mean.
    low = float(ordered[math.floor(place)])
    high = float(ordered[math.ceil(place)])
    if math.isinf(high):
        return low if place - math.floor(place) < 0.5 else high
    return low + (place - math.floor(place)) * (high - low)


@dataclass(frozen=True, slots=True)
class _Courses:
    """What one process computes courses from.

    policies: by name, each made once: to show one its last rounds takes long.
    """

    asked: Sequence[Question]
    limits: TimeLimits
    policies: dict[str, Policy] = field(default_factory=dict)

    def roll(self, number: int, seed: int) -> Course:
        """Return a course of the question with this number."""
        question = self.asked[number]
        name = question.scenario.policy
        if name not in self.policies:
            self.policies[name] = policy_now(question)
        return roll(question, seed, self.limits, self.policies[name])


_here: list[_Courses] = []


def _prepare(asked: Sequence[Question], limits: TimeLimits) -> None:
    os.nice(NICENESS)
    _here[:] = [_Courses(asked, limits)]


def _roll(which: tuple[int, int]) -> Course:
    return _here[0].roll(*which)
