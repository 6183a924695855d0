"""One course of the future: the core, from a live state on, until all jobs ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import SchedulerRestarted
from coadapt.core.lifecycle import ENDED, JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId
from coadapt.policies import create_policy
from coadapt.runtime.background_snapshots import picture_of
from coadapt.runtime.memory_store import NullStore
from coadapt.runtime.runtime import Runtime
from coadapt.runtime.solver import InlineSolver
from coadapt.sim.ahead.forward_world import ForwardWorld
from coadapt.sim.ahead.remainder import EndedWork, Remainder, remainder_of
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.clock import VirtualClock

HORIZON_S = 14 * 86_400.0
STEP_S = 3_600.0
ROUND_MIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. policy: the name of the one in force. ended: see EndedWork."""

    state: SchedulerState
    at: float
    policy: str
    scenario: Scenario = field(default_factory=Scenario)
    ended: EndedWork = field(default_factory=EndedWork)
    horizon_s: float = HORIZON_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What became of the jobs, s after now: first starts and ends. sizes: replicas in
    order.

    A job that is not in `ends_s` had not ended at the horizon.
    """

    starts_s: Mapping[JobId, float]
    ends_s: Mapping[JobId, float]
    sizes: Mapping[JobId, tuple[int, ...]]


def roll(question: Question, seed: int) -> Course:
    """Return one course, drawn with `seed`: a job's remainder is the same for a seed.

    Raises InputError for a scenario that does not fit the state.
    """
    at = question.at
    scenario = question.scenario
    state = picture_of(question.state)
    state.at = max(state.at, at)
    scenario.prepare(state)
    state.config = _slower(state.config or SchedulerConfig())
    clock = VirtualClock(at)
    remainders: dict[JobId, Remainder] = {}
    world = ForwardWorld(clock, state, remainders)
    runtime = Runtime(
        Scheduler(state.config, state),
        clock=clock,
        executor=world,
        store=NullStore(),
        solver=InlineSolver(
            create_policy(scenario.policy or question.policy), clock.now
        ),
    )
    of_all = np.random.default_rng(seed)
    common = float(of_all.standard_normal())
    ended = question.ended.resampled(of_all)
    for job in state.active:
        remainders[job.id] = remainder_of(job, state.nodes, at, ended)
        world.expect(job.id, remainders[job.id].draw(_random(seed, job.id), common))
    world.adopt(state, runtime.post)
    for job_id, spec in scenario.submit.items():
        record = JobRecord(id=job_id, spec=spec, submitted_at=at)
        remainders[job_id] = remainder_of(record, state.nodes, at, ended)
        world.expect(job_id, remainders[job_id].draw(_random(seed, job_id), common))
    events = scenario.events(state, at)
    runtime.post_all([SchedulerRestarted(at=at), *events])
    _run(runtime, clock, at + question.horizon_s)
    return Course(
        starts_s={job: when - at for job, when in world.started_at.items()},
        ends_s={job: when - at for job, when in world.ended_at.items()},
        sizes={job: tuple(sizes) for job, sizes in world.sizes.items()},
    )


def _slower(config: SchedulerConfig) -> SchedulerConfig:
    """Return the settings with fewer periodic rounds, where arrivals and exits have
    one.

    A scheduler that decides each second decides the same nearly always.
    """
    if config.reaction_s is None:
        return config
    return replace(config, round_s=max(config.round_s, ROUND_MIN_S))


def _run(runtime: Runtime, clock: VirtualClock, until: float) -> None:
    while clock.now() < until and not clock.idle:
        clock.run(until=min(clock.now() + STEP_S, until))
        jobs = runtime.scheduler.state.jobs.values()
        if all(job.state in ENDED or _never_starts(job) for job in jobs):
            return


def _never_starts(job: JobRecord) -> bool:
    """Return whether the job waits for what no course brings: a higher quota, another
    node. Without others that train, 14 days of rounds would change nothing.
    """
    return job.state is JobState.PENDING and job.reason is Reason.IMPOSSIBLE


def _random(seed: int, job: JobId) -> np.random.Generator:
    """Return the generator of one job: it draws the same in every scenario."""
    return np.random.default_rng([seed, *job.encode()])
