"""Checks a journal: a replay of all its events, or of a snapshot and the events after
it, must give the state of the scheduler that wrote it.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import get_args

from coadapt.core.events import Event
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model.wire import dumps, loads
from coadapt.runtime.history import JobHistory, Recorder
from coadapt.runtime.runtime import Observer
from coadapt.sim.faults.invariants import InvariantError

SERVICE_SLACK = 1e-9  # relative; sums over many periods of time have rounding errors

Make = Callable[[SchedulerState | None], Scheduler]

_EVENT_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def replayed(
    events: Sequence[Event], scheduler: Scheduler, observe: Observer | None = None
) -> Scheduler:
    """Return `scheduler` after it handled `events`; `observe` is called after each."""
    for event in events:
        commands = scheduler.handle(event)
        if observe is not None:
            observe(event, commands, scheduler.state)
    return scheduler


def check_replay(
    events: Sequence[Event], make: Make, state: SchedulerState, seed: int
) -> None:
    """Raise InvariantError unless a replay of `events` gives `state`.

    Two replays are tried: all events after a round trip through the wire format, and a
    snapshot after a random event with the events that follow it. The history must agree
    with the scheduler's state.
    """
    recorder = Recorder()
    scheduler = make(None)
    upto = random.Random(seed).randint(0, len(events))
    snapshot = dumps(scheduler.state)
    for count, event in enumerate(events, start=1):
        copy = loads(_EVENT_KINDS, dumps(event))
        if copy != event:
            raise InvariantError(f"the wire turned {event} into {copy}")
        commands = scheduler.handle(copy)
        recorder(copy, commands, scheduler.state)
        if count == upto:
            snapshot = dumps(scheduler.state)
    _compare("the journal", scheduler.state, state)
    resumed = make(loads({"SchedulerState": SchedulerState}, snapshot))
    _compare(
        f"the snapshot of event {upto} and the tail",
        replayed(events[upto:], resumed).state,
        state,
    )
    for job in recorder.history.jobs.values():
        _check_history(job, job.usage.attained_service_gpu_s)


def _compare(what: str, replay: SchedulerState, state: SchedulerState) -> None:
    if replay == state:
        return
    texts = [
        f"{job_id}: {replay.jobs.get(job_id)} instead of {state.jobs.get(job_id)}"
        for job_id in sorted({*replay.jobs, *state.jobs})
        if replay.jobs.get(job_id) != state.jobs.get(job_id)
    ]
    raise InvariantError(f"{what} leads to another state: {texts or (replay, state)}")


def _check_history(job: JobHistory, service_gpu_s: float) -> None:
    if any(span.end != after.start for span, after in pairwise(job.spans)):
        raise InvariantError(f"the history of job {job.id} has a gap: {job.spans}")
    held = sum((span.end - span.start) * span.num_gpus for span in job.spans)
    if abs(held - service_gpu_s) > SERVICE_SLACK * max(held, 1.0):
        raise InvariantError(
            f"job {job.id} held {held} GPU-seconds, {service_gpu_s} are booked"
        )
