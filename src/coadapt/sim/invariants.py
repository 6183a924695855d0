"""What must hold after every event, whatever went wrong: in the core's books, in the world's own ledger, and
between the two. Written apart from the code that it checks; nothing here is called by it.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coadapt.core.accounting import held_gpus
from coadapt.core.commands import Command, Resize, Retract, SetAlarm, Solve, Start, Stop
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Outcome,
    PlanFailed,
    PlanReady,
    ReplicasExited,
    ReplicasKept,
    ReplicasRescaled,
    ReplicasStarted,
    SchedulerConfigured,
    SchedulerRestarted,
    TimerFired,
    TrainingReported,
)
from coadapt.core.lifecycle import ENDED, HOLDING, TRANSITIONS, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, Node, NodeId, RescaleContract
from coadapt.sim.world import World

SLACK_GPUS = 1e-6  # sums of fractional GPU shares round
MOVES_PER_EVENT_MAX = 2  # an event frees a job's GPUs, and the same event starts it anew


class InvariantError(AssertionError):
    """Something happened that must never happen. The text says what, and about which job."""


# What of a job must never fall.
GROWING = (
    "generation",
    "attained_service_gpu_s",
    "progress",
    "samples",
    "num_starts",
    "num_rescales",
    "num_failures",
    "rescale_total_s",
    "num_rescales_measured",
    "num_in_place",
    "num_replicas_profiled",
)


class BookChecker:
    """An observer of the runtime that raises InvariantError as soon as the core's books go wrong.

    `solve_timeout_s`: the scheduler's own. `state`: the books at the beginning, if they are not empty.
    """

    def __init__(self, solve_timeout_s: float, state: SchedulerState | None = None) -> None:
        self._solve_timeout_s = solve_timeout_s
        self._before = _copied(state or SchedulerState())
        self._excused: set[tuple[JobId, int]] = set()
        self._solved_for: dict[int, tuple[Node, ...]] = {}

    def __call__(self, event: Event, commands: Sequence[Command], state: SchedulerState) -> None:
        before = self._before
        wrongs = [
            *wrong_books(state),
            *_wrong_steps(before, event, state),
            *self._wrong_failures(event, state),
            *self._wrong_orders(event, commands, state),
        ]
        if self._means_nothing(event) and (commands or not _equal(before, state)):
            wrongs.append(f"it should have meant nothing, but changed the books or led to {commands}")
        if wrongs:
            raise InvariantError(f"after {event}: " + "; ".join(wrongs))
        self._before = _copied(state)

    def _means_nothing(self, event: Event) -> bool:
        """Return whether the event is a repeat, late, or about something that is gone or never was."""
        before = self._before
        job = before.jobs.get(getattr(event, "job", ""))
        match event:
            case JobSubmitted():
                return job is not None
            case CancelRequested():
                return job is None or job.state in ENDED or job.cancel_requested
            case NodeJoined():
                return before.nodes.get(event.node.id) == event.node
            case NodeLost():
                return event.node not in before.nodes
            case ReplicasStarted() | ReplicasKept() | ReplicasExited():
                return job is None or job.generation != event.generation or job.state not in HOLDING
            case ReplicasRescaled() | TrainingReported():
                known = () if job is None else (job.trained, job.generation)
                return job is None or event.generation not in known or job.state not in HOLDING
            case PlanReady() | PlanFailed():
                nodes_now = tuple(before.nodes[node] for node in sorted(before.nodes))
                made_for = self._solved_for.get(event.round, nodes_now)
                return event.round != before.round or before.solve_at is None or made_for != nodes_now
            case TimerFired():
                return before.round_due_at is None or event.at < before.round_due_at
            case SchedulerRestarted() | SchedulerConfigured():
                return False

    def _wrong_failures(self, event: Event, state: SchedulerState) -> Iterator[str]:
        """A job is not to blame for a lost node, nor for replicas that were lost after they got somewhere."""
        if isinstance(event, NodeLost):
            for job in self._before.jobs.values():
                if job.state in HOLDING and event.node in held_gpus(job):
                    self._excused.add((job.id, job.generation))
        if not isinstance(event, ReplicasExited) or event.job not in self._before.jobs:
            return
        job = self._before.jobs[event.job]
        advanced = event.outcome is Outcome.LOST and job.progress > job.progress_at_start
        excused = advanced or (event.job, event.generation) in self._excused
        if excused and state.jobs[event.job].num_failures > job.num_failures:
            yield f"job {event.job} is blamed for what it could not help"

    def _wrong_orders(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> Iterator[str]:
        ordered: set[JobId] = set()
        for command in commands:
            match command:
                case Solve():
                    self._solved_for = {command.round: command.view.nodes}
                    yield from _wrong_view(command, state)
                    asked_at = self._before.solve_at
                    if asked_at is not None and state.at - asked_at < self._solve_timeout_s:
                        yield f"round {command.round} is solved while the one before is being solved"
                case SetAlarm():
                    if command.at < state.at:
                        yield f"the alarm is set to {command.at}, which has passed"
                case Start() | Resize() | Retract() | Stop():
                    if command.job in ordered:
                        yield f"job {command.job} got two orders at once"
                    ordered.add(command.job)
                    before = self._before.jobs.get(command.job)
                    yield from _wrong_order(event, command, before, state.jobs[command.job])


def _copied(state: SchedulerState) -> SchedulerState:
    """Return the books as they stand. Records change by assignment only, so that shallow copies do."""
    jobs = {job_id: copy.copy(job) for job_id, job in state.jobs.items()}
    return replace(state, nodes=dict(state.nodes), jobs=jobs)


def _equal(before: SchedulerState, state: SchedulerState) -> bool:
    return replace(before, at=state.at) == state


def _wrong_steps(before: SchedulerState, event: Event, state: SchedulerState) -> Iterator[str]:
    if state.at < before.at or state.at < event.at:
        yield f"the books' clock stands at {state.at}"
    for job_id, old in before.jobs.items():
        job = state.jobs.get(job_id)
        if job is None:
            yield f"job {job_id} vanished"
            continue
        if job.state not in REACHABLE[old.state]:
            yield f"job {job_id} went from {old.state} to {job.state}"
        if old.state in ENDED and job != old:
            yield f"job {job_id} has ended, but its record changed"
        for name in GROWING:
            if getattr(job, name) < getattr(old, name):
                yield f"job {job_id}: {name} fell from {getattr(old, name)} to {getattr(job, name)}"
        yield from _wrong_change(old, event, job)


def _wrong_change(old: JobRecord, event: Event, job: JobRecord) -> Iterator[str]:
    """What replicas train on changes, and counts as a rescale, when they say so or are started."""
    started = isinstance(event, ReplicasStarted) and (event.job, event.generation) == (job.id, old.generation)
    fresh = job.num_starts > old.num_starts
    if job.num_rescales > old.num_rescales and not started and not fresh:
        yield f"job {job.id}: a rescale was counted that did not come about"
    if job.allocation and job.allocation != old.allocation and not started and not fresh:
        yield f"job {job.id} trains on {job.allocation.slots}, which nobody said"
    if old.state is JobState.RESCALING and started and job.allocation != old.ordered:
        yield f"job {job.id} was to change to {old.ordered.slots}, it is on {job.allocation.slots}"
    if job.state is JobState.RUNNING and job.allocation != job.ordered:
        yield f"job {job.id} runs on {job.allocation.slots}, but {job.ordered.slots} are held for it as well"


def _wrong_order(
    event: Event, command: Start | Resize | Retract | Stop, before: JobRecord | None, job: JobRecord
) -> Iterator[str]:
    if command.generation != job.generation:
        yield f"job {job.id}: order of generation {command.generation}, the books say {job.generation}"
    if isinstance(command, Stop):
        if job.state is not JobState.STOPPING:
            yield f"job {job.id} is told to stop, but is {job.state}"
        return
    if isinstance(command, Retract):
        if job.state is not JobState.RESCALING or not job.retracting:
            yield f"job {job.id} is {job.state}, but its order is taken back"
        return
    if command.allocation != job.ordered or not command.allocation:
        yield f"job {job.id}: order for {command.allocation.slots}, the books say {job.ordered.slots}"
    if before is None or command.generation == before.generation:
        return
    exited = isinstance(event, ReplicasExited) and (event.job, event.generation) == (
        job.id,
        before.generation,
    )
    if isinstance(command, Start) and before.state is not JobState.PENDING and not exited:
        yield f"job {job.id} is started while replicas of generation {before.generation} may be alive"
    if isinstance(command, Resize) and job.spec.contract is RescaleContract.FROZEN:
        yield f"job {job.id} is frozen, but resized"


def wrong_books(state: SchedulerState) -> Iterator[str]:
    """Yield what is wrong with the books as they stand."""
    held = dict.fromkeys(state.nodes, 0.0)
    promised = dict.fromkeys(state.nodes, 0.0)
    for job in state.jobs.values():
        yield from _wrong_record(job, state)
        _add(held, held_gpus(job))
        _add(promised, {node: count * job.target.gpu_share for node, count in job.target.slots})
    for what, gpus in (("held", held), ("promised", promised)):
        for node, amount in gpus.items():
            if amount > state.nodes[node].num_gpus + SLACK_GPUS:
                yield f"{amount:g} GPUs of node {node} are {what}, it has {state.nodes[node].num_gpus}"


def _add(sums: dict[NodeId, float], gpus: Mapping[NodeId, float]) -> None:
    for node, amount in gpus.items():
        if node in sums:
            sums[node] += amount


def _wrong_record(job: JobRecord, state: SchedulerState) -> Iterator[str]:
    holds, ended = bool(job.ordered), job.state in ENDED
    if holds is not (job.state in HOLDING):
        yield f"job {job.id} is {job.state} with {job.ordered.num_replicas} replicas ordered"
    if job.allocation and not holds:
        yield f"job {job.id} has replicas on {job.allocation.slots}, but none ordered"
    if ended is not (job.ended_at is not None):
        yield f"job {job.id} is {job.state}, its end is {job.ended_at}"
    if job.target and (ended or job.cancel_requested):
        yield f"job {job.id} is {job.state} or cancelled, and yet has a target"
    if job.order_at is None and job.state in (JobState.STARTING, JobState.RESCALING, JobState.STOPPING):
        yield f"job {job.id} is {job.state}, but waits for no answer"
    if any(node not in state.nodes for node, _ in job.target.slots):
        yield f"job {job.id}: its target {job.target.slots} names a node that is gone"
    limits = job.spec.replicas
    for allocation in (job.ordered, job.target):
        if allocation and not limits.min <= allocation.num_replicas <= limits.max:
            yield f"job {job.id}: {allocation.num_replicas} replicas, allowed {limits.min}..{limits.max}"
    if job.retracting and job.state is not JobState.RESCALING:
        yield f"job {job.id} is {job.state}, there is no order to take back"
    if job.trained > job.generation:
        yield f"job {job.id} trains as generation {job.trained}, the last order is {job.generation}"
    if job.num_rescales_measured > job.generation:
        yield f"job {job.id}: {job.num_rescales_measured} rescales booked in {job.generation} generations"
    if job.num_failures > job.spec.max_failures + 1:
        yield f"job {job.id} failed {job.num_failures} times, allowed {job.spec.max_failures}"
    batch = job.ordered_batch
    bound = job.spec.contract in (RescaleContract.FIXED, RescaleContract.FROZEN)
    if batch is not None and batch.total > job.spec.batch.max_total:
        yield f"job {job.id}: batch {batch.total} was ordered, at most {job.spec.batch.max_total} is allowed"
    if batch is not None and bound and batch.total != job.spec.batch.requested:
        yield f"job {job.id}: batch {batch.total} was ordered, only {job.spec.batch.requested} is allowed"


def _wrong_view(command: Solve, state: SchedulerState) -> Iterator[str]:
    view = command.view
    if command.round != state.round:
        yield f"round {command.round} is solved, the books are in round {state.round}"
    if [node.id for node in view.nodes] != sorted(state.nodes):
        yield f"the view shows nodes {[node.id for node in view.nodes]}, live are {sorted(state.nodes)}"
    shown = {job.id for job in view.jobs}
    active = {job.id for job in state.jobs.values() if job.state not in ENDED and not job.cancel_requested}
    if shown != active:
        yield f"the view shows jobs {sorted(shown)}, active are {sorted(active)}"


def check_world(world: World, state: SchedulerState) -> None:
    """Raise InvariantError unless the ledger is sound and the books know of all that is alive."""
    wrongs = [*_wrong_ledger(world), *_unknown_to_books(world, state)]
    if wrongs:
        raise InvariantError(f"at {state.at}: " + "; ".join(wrongs))


def _wrong_ledger(world: World) -> Iterator[str]:
    alive = world.alive()
    for node_id, held in world.ledger.held.items():
        node = world.ledger.nodes[node_id]
        if sum(held.values()) > node.num_gpus + SLACK_GPUS:
            yield f"the world runs {dict(held)} on node {node_id} of {node.num_gpus} GPUs"
        for job_id in held.keys() - alive.keys():
            yield f"job {job_id} is gone, but holds GPUs of node {node_id} in the world"


def _unknown_to_books(world: World, state: SchedulerState) -> Iterator[str]:
    for job_id, generation in world.alive().items():
        job = state.jobs[job_id]
        if job.state not in HOLDING or job.generation < generation:
            yield (
                f"generation {generation} of job {job_id} is alive, "
                f"the books say {job.state} in generation {job.generation}"
            )
            continue
        if job.state is JobState.RUNNING and job.trained != generation:
            yield f"job {job_id} trains as generation {generation}, the books say {job.trained}"
        booked = held_gpus(job)
        for node_id, held in world.ledger.held.items():
            if held.get(job_id, 0.0) > booked.get(node_id, 0.0) + SLACK_GPUS:
                yield f"job {job_id} holds {held[job_id]:g} GPUs of node {node_id}, booked are {booked}"


def _reachable() -> dict[JobState, frozenset[JobState]]:
    reach = {state: {state} for state in JobState}
    for _ in range(MOVES_PER_EVENT_MAX):
        for states in reach.values():
            states |= {after for (before, _), after in TRANSITIONS.items() if before in states}
    return {state: frozenset(states) for state, states in reach.items()}


REACHABLE = _reachable()
