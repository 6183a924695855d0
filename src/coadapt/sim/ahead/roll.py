"""One course of the future: the core, from a live state on, until all jobs ended."""

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from coadapt.core.commands import Command, Solve
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, JobSubmitted, SchedulerRestarted
from coadapt.core.lifecycle import ENDED, JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import ClusterView, JobId
from coadapt.policies import create_policy
from coadapt.policies.base import Policy
from coadapt.runtime.background_snapshots import picture_of
from coadapt.runtime.memory_store import NullStore
from coadapt.runtime.runtime import Observer, Runtime
from coadapt.runtime.solver import InlineSolver
from coadapt.sim.ahead.arrivals import Arrivals, Submission
from coadapt.sim.ahead.forward_world import REPORT_RARE_S, SOON_S, ForwardWorld
from coadapt.sim.ahead.remainder import EndedWork, Remainder, remainder_of
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.clock import VirtualClock

HORIZON_S = 14 * 86_400.0
STEP_S = 900.0
ROUND_MIN_S = 30.0
# Between decisions, s per live job beyond the first ones: five minutes at 10,000. There
# is a decision after each arrival and exit, and each takes time in proportion to the
# jobs.
REACTION_PER_JOB_S = 0.03
JOBS_FEW = 200
# With more live jobs than this, no job settles in a future. After a change of policy,
# each first step takes time in proportion to the jobs that wait for GPUs of other jobs.
# The first 15 minutes from `fifo` to `srtf` take, without settling and with it, 0.8 and
# 0.8 CPU s with 1,500 live jobs, 1.7 and 2.2 with 3,000, 16 and over 100 with 10,000.
JOBS_SETTLING_MAX = 3_000
# After the first hour, where minutes do not matter any more, s.
ROUND_LATER_S = 300.0
# For so long the policy is shown its past, s. After that, only the newest rounds are.
PAST_WALL_S = 5.0
PAST_NEWEST = 10
# How the ids of jobs begin that come later.
LATER = "later "


# A course that has reached so far ahead may be cut for the others, s.
FAR_S = 86_400.0


class TimeLimits(NamedTuple):
    """After `wall_s` (s) a course is computed no further. After `share_s` neither, if
    it has reached FAR_S ahead: where jobs keep coming, one that never gets its turn
    would cost all the time that there is for other courses.
    """

    wall_s: float = math.inf
    share_s: float = math.inf


NO_LIMITS = TimeLimits()


class _TimeOverError(Exception):
    """A course took as long as it may, in the middle of an instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. policy: the name of the one in force. ended: see EndedWork.
    arrivals: from which jobs that come later are drawn. past: see PastRounds.
    """

    state: SchedulerState
    at: float
    policy: str
    scenario: Scenario = field(default_factory=Scenario)
    ended: EndedWork = field(default_factory=EndedWork)
    arrivals: Arrivals = field(default_factory=Arrivals)
    past: Sequence[ClusterView] = ()
    horizon_s: float = HORIZON_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What became of the jobs that are live now, or that the question submits, s after
    now: first starts and ends. sizes: replicas in order. cost: of the GPUs that they
    held, 0 without prices. names: the jobs that started, and those that may start after
    `ahead_s`. ahead_s: up to where the course was computed, if its time was over;
    infinite if not.

    A job that is not in `ends_s` had not ended at the horizon, or at `ahead_s`.
    """

    starts_s: Mapping[JobId, float]
    ends_s: Mapping[JobId, float]
    sizes: Mapping[JobId, tuple[int, ...]]
    cost: float
    names: frozenset[JobId]
    ahead_s: float = math.inf

    def until(self, ahead_s: float) -> "Course":
        """Return what came up to `ahead_s`, s after now; costs and sizes stay."""
        return replace(
            self,
            starts_s={job: at for job, at in self.starts_s.items() if at <= ahead_s},
            ends_s={job: at for job, at in self.ends_s.items() if at <= ahead_s},
        )


def roll(
    question: Question,
    seed: int,
    limits: TimeLimits = NO_LIMITS,
    policy: Policy | None = None,
) -> Course:
    """Return one course, drawn with `seed`: a job's remainder is the same for a seed.

    policy: the result of `policy_now`, which is slow, so that several courses can share
    it; it is copied. None: computed here. Raises InputError for a scenario that does
    not fit the state.
    """
    begun = time.monotonic()
    at = question.at
    until = at + question.horizon_s
    scenario = question.scenario
    state = picture_of(question.state)
    state.at = max(state.at, at)
    scenario.prepare(state)
    state.config = _slower(state.config or SchedulerConfig(), len(state.active))
    clock = VirtualClock(at)
    remainders: dict[JobId, Remainder] = {}
    world = ForwardWorld(clock, state, remainders)
    runtime = Runtime(
        Scheduler(state.config, state),
        clock=clock,
        executor=world,
        store=NullStore(),
        solver=InlineSolver(deepcopy(policy or policy_now(question)), clock.now),
        observers=[_time_limit(limits, begun, clock)],
    )
    drawn = _Drawn.of(question, seed, state, remainders, world)
    for job in state.active:
        drawn.add(job)
    world.adopt(state, runtime.post)
    for job_id, spec in scenario.submit.items():
        drawn.add(JobRecord(id=job_id, spec=spec, submitted_at=at))
    asked = list(remainders)
    events = [SchedulerRestarted(at=at), *scenario.events(state, at)]
    random = np.random.default_rng([seed, 1])
    left: set[JobId] = set()
    reached = math.inf
    try:
        runtime.post_all(events)
        _submit_next(question.arrivals.drawn(at, until, random), drawn, runtime, clock)
        _run(runtime, clock, until, asked)
    except _TimeOverError:
        # What comes of the present instant is not complete.
        reached = max(math.nextafter(clock.now(), at), at)
        unseen = {job for job in scenario.submit if job not in state.ended}
        left = _open(asked, state) | (unseen - state.jobs.keys())
    return _course(world, asked, left, at, reached)


def _course(
    world: ForwardWorld,
    asked: Sequence[JobId],
    left: Collection[JobId],
    at: float,
    reached: float,
) -> Course:
    """Return what became of the jobs that are asked about, from `at` to `reached`, s.

    left: those that may start, or end, after it.
    """
    starts_s = _after(world.started_at, asked, at)
    course = Course(
        starts_s=starts_s,
        ends_s=_after(world.ended_at, asked, at),
        sizes={job: tuple(world.sizes[job]) for job in asked if job in world.sizes},
        cost=sum(world.costs.get(job, 0.0) for job in asked),
        names=frozenset(starts_s).union(left),
        ahead_s=reached - at,
    )
    return course.until(course.ahead_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """The remaining work of the jobs of one course, drawn as they arrive.

    common: a standard normal draw for all jobs.
    """

    seed: int
    at: float
    state: SchedulerState
    ended: EndedWork
    common: float
    remainders: dict[JobId, Remainder]
    world: ForwardWorld

    @classmethod
    def of(
        cls,
        question: Question,
        seed: int,
        state: SchedulerState,
        remainders: dict[JobId, Remainder],
        world: ForwardWorld,
    ) -> "_Drawn":
        """Return the draws of the course with `seed`, without jobs yet."""
        random = np.random.default_rng(seed)
        common = float(random.standard_normal())
        return cls(
            seed=seed,
            at=question.at,
            state=state,
            ended=question.ended.resampled(random),
            common=common,
            remainders=remainders,
            world=world,
        )

    def add(self, job: JobRecord, gpu_s: float | None = None) -> None:
        """Draw the remaining work of a job. gpu_s: its GPU-seconds, if known."""
        nodes = self.state.nodes
        remainder = remainder_of(job, nodes, self.at, self.ended, gpu_s)
        random = _random(self.seed, job.id)
        self.remainders[job.id], left = remainder.drawn(random, self.common, nodes)
        self.world.expect(job.id, left)


def policy_now(question: Question) -> Policy:
    """Return the policy that decides: the one in force, with what it keeps of its last
    rounds; another one begins without.
    """
    name = question.scenario.policy or question.policy
    policy = create_policy(name)
    if name == question.policy:
        solver = InlineSolver(policy, time.monotonic)
        stops_at = time.monotonic() + PAST_WALL_S
        num_older = len(question.past) - PAST_NEWEST
        for number, view in enumerate(question.past):
            if number >= num_older or time.monotonic() <= stops_at:
                solver(Solve(round=0, view=view), _ignore)
    return policy


def _ignore(_: Event) -> None:
    """Take a plan, or the failure of one, that was carried out long ago."""


def _submit_next(
    coming: Iterator[tuple[float, Submission]],
    drawn: _Drawn,
    runtime: Runtime,
    clock: VirtualClock,
) -> None:
    """Submit the next job when it comes, and then those behind it."""
    found = next(coming, None)
    if found is None:
        return
    when, like = found

    def submit() -> None:
        job = like.again(f"{LATER}{len(drawn.remainders)}", when)
        drawn.add(job, like.gpu_s)
        runtime.post(JobSubmitted(at=when, job=job.id, spec=job.spec))
        _submit_next(coming, drawn, runtime, clock)

    clock.call_at(when, submit)


def _after(
    instants: Mapping[JobId, float], jobs: Iterable[JobId], at: float
) -> dict[JobId, float]:
    return {job: instants[job] - at for job in jobs if job in instants}


def _slower(config: SchedulerConfig, num_jobs: int) -> SchedulerConfig:
    """Return the settings of a forecast for `num_jobs` live jobs.

    A scheduler that decides each second decides the same nearly always. Where arrivals
    and exits have a decision of their own, periodic ones are fewer; for many jobs all
    are. Replicas of a forecast report rarely, and none hangs.
    """
    least_s = REACTION_PER_JOB_S * max(num_jobs - JOBS_FEW, 0)
    config = replace(config, silence_s=max(config.silence_s, 3.0 * REPORT_RARE_S))
    if num_jobs > JOBS_SETTLING_MAX:
        config = replace(config, settle_s=0.0)
    if config.reaction_s is None:
        return replace(config, round_s=max(config.round_s, least_s))
    return replace(
        config,
        round_s=max(config.round_s, least_s, ROUND_MIN_S),
        reaction_s=max(config.reaction_s, least_s),
    )


def _time_limit(limits: TimeLimits, begun: float, clock: VirtualClock) -> Observer:
    """Return an observer that raises _TimeOverError where the time is over. A round of
    many jobs is many events, so the limits hold within rounds too.

    begun: on the monotonic clock, s.
    """
    far_at = clock.now() + FAR_S

    def look(_event: Event, _commands: Sequence[Command], _: SchedulerState) -> None:
        took_s = time.monotonic() - begun
        is_far = clock.now() >= far_at
        if took_s > limits.wall_s or (is_far and took_s > limits.share_s):
            raise _TimeOverError

    return look


def _run(
    runtime: Runtime, clock: VirtualClock, until: float, asked: Collection[JobId]
) -> None:
    """Play until the jobs that are asked about have ended, or cannot start. Raises
    _TimeOverError.
    """
    scheduler = runtime.scheduler
    left = asked
    soon = clock.now() + SOON_S
    # The first rounds say which jobs can never start.
    clock.run(until=min(clock.now() + 2.0 * scheduler.config.round_s, until))
    scheduler.explains = False
    while left and clock.now() < until and not clock.idle:
        clock.run(until=min(clock.now() + STEP_S, until))
        config = scheduler.config
        if config.round_s < ROUND_LATER_S and clock.now() >= soon:
            scheduler.state.config = replace(config, round_s=ROUND_LATER_S)
        left = _open(left, scheduler.state)


def _open(names: Iterable[JobId], state: SchedulerState) -> set[JobId]:
    """Return those of some jobs that have not ended, and may start or run."""
    jobs = state.jobs
    return {
        name
        for name in names
        if name in jobs
        and jobs[name].state not in ENDED
        and not _never_starts(jobs[name])
    }


def _never_starts(job: JobRecord) -> bool:
    """Return whether the job waits for what no course brings: a higher quota, another
    node. Without others that train, 14 days of rounds would change nothing.
    """
    return job.state is JobState.PENDING and job.reason is Reason.IMPOSSIBLE


def _random(seed: int, job: JobId) -> np.random.Generator:
    """Return the generator of one job: it draws the same in every scenario."""
    return np.random.default_rng([seed, *job.encode()])
