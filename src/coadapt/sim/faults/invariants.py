"""The rules that must hold after every event, whatever went wrong: in the scheduler's
state, in the ledger of the simulated world, and between the two. These checks share no
code with the code that they check.
"""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from operator import attrgetter

from coadapt.core.accounting import held as held_by
from coadapt.core.commands import (
    BuyNodes,
    Command,
    GiveBack,
    Rescale,
    RetractRescale,
    SetAlarm,
    Size,
    Solve,
    Start,
    Stop,
)
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    NodeNoticed,
    OfferChanged,
    OffersConfigured,
    Outcome,
    PlanFailed,
    PlanReady,
    PricesConfigured,
    PriorityChanged,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    SchedulerConfigured,
    SchedulerRestarted,
    SetupStarted,
    SizingFailed,
    SizingReady,
    StudyRemoved,
    StudyResumed,
    StudyStopped,
    StudySubmitted,
    TenantConfigured,
    TimerFired,
    TrainerSeen,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import ENDED, HOLDING, TRANSITIONS, JobState, Reason
from coadapt.core.node_buying import Buying
from coadapt.core.state import JobRecord, OrderKind, SchedulerState
from coadapt.model import Allocation, JobId, Node, NodeId, RescaleContract
from coadapt.sim.world import World

SLACK_GPUS = 1e-6  # sums of fractional GPU shares have rounding errors
MOVES_PER_EVENT_MAX = (
    2  # an event frees a job's GPUs, and the same event starts it again
)


class InvariantError(AssertionError):
    """Something happened that must never happen. The text names it, and the job."""


# Commands about nodes that any event may cause, because time has passed.
_ABOUT_NODES = (Size, GiveBack, SetAlarm)
# Fields of a job's record that must never decrease.
GROWING = (
    "order.generation",
    "running.generation",
    "measured.progress",
    "measured.samples",
    "measured.num_replicas_profiled",
    "usage.attained_service_gpu_s",
    "usage.num_starts",
    "usage.num_rescales",
    "usage.num_failures",
    "usage.costs.total_s",
    "usage.costs.num_measured",
    "usage.costs.num_in_place",
)

# The answers to an order, by the state of a job that waits for one.
ANSWERS: Mapping[
    JobState, tuple[type[ReplicasStarted | ReplicasKept | ReplicasExited], ...]
] = {
    JobState.STARTING: (ReplicasStarted, ReplicasExited),
    JobState.RESCALING: (ReplicasStarted, ReplicasKept, ReplicasExited),
    JobState.STOPPING: (ReplicasExited,),
}


class BookChecker:
    """An observer of the runtime that raises InvariantError as soon as the scheduler's
    state breaks a rule.

    solve_timeout_s: the scheduler's setting. state: the state at the beginning, if it
    is not empty.
    """

    def __init__(
        self, solve_timeout_s: float, state: SchedulerState | None = None
    ) -> None:
        self._solve_timeout_s = solve_timeout_s
        self._before = _copied(state or SchedulerState())
        self._excused: set[tuple[JobId, int]] = set()
        self._solved_for: dict[int, tuple[Node, ...]] = {}

    def __call__(
        self, event: Event, commands: Sequence[Command], state: SchedulerState
    ) -> None:
        before = self._before
        wrongs = [
            *wrong_books(state),
            *_wrong_steps(before, event, state),
            *self._wrong_failures(event, state),
            *self._wrong_orders(event, commands, state),
        ]
        others = [each for each in commands if not isinstance(each, _ABOUT_NODES)]
        if self._means_nothing(event) and (others or not _equal(before, state)):
            wrongs.append(
                f"it should have meant nothing, but changed the books or led to "
                f"{commands}"
            )
        if wrongs:
            raise InvariantError(f"after {event}: " + "; ".join(wrongs))
        self._before = _copied(state)

    def _means_nothing(self, event: Event) -> bool:
        """Return whether the event must have no effect: it is a repeat, it is late, or
        it is about something that does not exist (any more).
        """
        before = self._before
        job = before.jobs.get(getattr(event, "job", ""))
        match event:
            case JobSubmitted():
                return job is not None or event.job in before.ended
            case CancelRequested() | PriorityChanged():
                return job is None or _is_so(event, job)
            case NodeJoined():
                return before.nodes.get(event.node.id) == event.node
            case NodeLost():
                return event.node not in before.nodes
            case ReplicasStarted() | ReplicasKept() | ReplicasExited() | SetupStarted():
                return (
                    job is None
                    or job.generation != event.generation
                    or job.state not in HOLDING
                )
            case TrainingResumed() | TrainingReported() | TrainerSeen():
                known = () if job is None else (job.running.generation, job.generation)
                return (
                    job is None
                    or event.generation not in known
                    or job.state not in HOLDING
                )
            case PlanReady() | PlanFailed():
                nodes_now = tuple(_in_use(before))
                made_for = self._solved_for.get(event.round, nodes_now)
                return (
                    event.round != before.round
                    or before.solve_at is None
                    or made_for != nodes_now
                )
            case TimerFired():
                return before.round_due_at is None or event.at < before.round_due_at
            case TenantConfigured():
                return before.tenants.get(event.tenant.id) == event.tenant
            case SizingReady() | SizingFailed() | OfferChanged() | NodeNoticed():
                return before.buying is None or _buys_nothing(event, before.buying)
            case StudySubmitted() | StudyStopped() | StudyResumed() | StudyRemoved():
                there = event.study in before.studies
                return there is isinstance(event, StudySubmitted)
            case (
                SchedulerRestarted()
                | SchedulerConfigured()
                | OffersConfigured()
                | PricesConfigured()
            ):
                return False

    def _wrong_failures(self, event: Event, state: SchedulerState) -> Iterator[str]:
        """Yield an error if a failure is counted that is not the job's fault: a lost
        node, or replicas that were lost after they made progress.
        """
        if isinstance(event, NodeLost):
            for job in self._before.jobs.values():
                if job.state in HOLDING and event.node in held_by(job).by_node:
                    self._excused.add((job.id, job.generation))
        if not isinstance(event, ReplicasExited) or event.job not in self._before.jobs:
            return
        job = self._before.jobs[event.job]
        advanced = (
            event.outcome is Outcome.LOST
            and job.measured.progress > job.running.progress_at_start
        )
        excused = advanced or (event.job, event.generation) in self._excused
        if (
            excused
            and state.jobs[event.job].usage.num_failures > job.usage.num_failures
        ):
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
                    if (
                        asked_at is not None
                        and state.at - asked_at < self._solve_timeout_s
                    ):
                        yield (
                            f"round {command.round} is solved while the one before "
                            f"is being solved"
                        )
                case SetAlarm():
                    if command.at < state.at:
                        yield f"the alarm is set to {command.at}, which has passed"
                case GiveBack():
                    if any(
                        command.node in held_by(job).by_node
                        for job in state.jobs.values()
                        if job.state not in ENDED
                    ):
                        yield f"node {command.node} is given back while jobs hold it"
                case Size() | BuyNodes():
                    if state.buying is None:
                        yield f"{command} without offers"
                case Start() | Rescale() | RetractRescale() | Stop():
                    if command.job in ordered:
                        yield f"job {command.job} got two orders at once"
                    ordered.add(command.job)
                    before = self._before.jobs.get(command.job)
                    yield from _wrong_order(
                        event, command, before, state.jobs[command.job]
                    )


def _buys_nothing(
    event: SizingReady | SizingFailed | OfferChanged | NodeNoticed, buying: Buying
) -> bool:
    """Return whether an event about nodes for sale must have no effect: it is late, or
    a repeat.
    """
    if isinstance(event, OfferChanged):
        return False
    if isinstance(event, NodeNoticed):
        node = buying.nodes.get(event.node)
        return node is None or node.noticed
    return event.number != buying.number


def _is_so(event: CancelRequested | PriorityChanged, job: JobRecord) -> bool:
    """Return whether the user's request changes nothing about the job."""
    if isinstance(event, CancelRequested):
        return job.status.cancel_requested
    return job.spec.priority == event.priority


def _copied(state: SchedulerState) -> SchedulerState:
    """Return a copy of the state. Records change by assignment only, so shallow copies
    are enough.
    """
    live = {
        job_id: copy.copy(job)
        for job_id, job in state.jobs.items()
        if job.state not in ENDED
    }
    # The core forgets the jobs that ended with this event when it handles the next
    # event.
    left = {
        job_id: job.state for job_id, job in state.jobs.items() if job.state in ENDED
    }
    return replace(
        state,
        nodes=dict(state.nodes),
        tenants=dict(state.tenants),
        jobs=live,
        ended={**state.ended, **left},
        buying=None if state.buying is None else state.buying.copy(),
        spent=dict(state.spent),
    )


def _equal(before: SchedulerState, state: SchedulerState) -> bool:
    """Return whether both states are equal, apart from the time and from the state of
    node buying. The latter may change with every event: the core may ask the sizer, or
    repeat that a node is given back.
    """
    return replace(before, at=state.at, buying=None) == replace(state, buying=None)


def _in_use(state: SchedulerState) -> list[Node]:
    """Return the live nodes that policies may use, sorted by id. Nodes that leave are
    not among them.
    """
    leaving = {} if state.buying is None else state.buying.leaving
    return [state.nodes[node] for node in sorted(state.nodes) if node not in leaving]


def _wrong_steps(
    before: SchedulerState, event: Event, state: SchedulerState
) -> Iterator[str]:
    if state.at < before.at or state.at < event.at:
        yield f"the books' clock stands at {state.at}"
    if state.ended != before.ended:
        yield f"of how jobs ended the books say {state.ended}, they said {before.ended}"
    for job_id in sorted(state.jobs.keys() & before.ended.keys()):
        yield f"job {job_id} had ended, and is there again"
    for job_id, old in before.jobs.items():
        job = state.jobs.get(job_id)
        if job is None:
            yield f"job {job_id} vanished"
            continue
        if job.state not in REACHABLE[old.state]:
            yield f"job {job_id} went from {old.state} to {job.state}"
        for name in GROWING:
            was = attrgetter(name)(old)
            now = attrgetter(name)(job)
            if now < was:
                yield f"job {job_id}: {name} fell from {was} to {now}"
        yield from _wrong_change(old, event, job)
        yield from _unanswered(old, event, job)


def _wrong_change(old: JobRecord, event: Event, job: JobRecord) -> Iterator[str]:
    """Yield an error if the allocation on which a job trains, or its count of rescales,
    changes without a start of replicas, or if the allocation is not the ordered one.
    """
    started = isinstance(event, ReplicasStarted) and (event.job, event.generation) == (
        job.id,
        old.generation,
    )
    fresh = job.usage.num_starts > old.usage.num_starts
    if job.usage.num_rescales > old.usage.num_rescales and not started and not fresh:
        yield f"job {job.id}: a rescale was counted that did not come about"
    if job.trains_on and job.trains_on != old.trains_on and not started and not fresh:
        yield f"job {job.id} trains on {job.trains_on.slots}, which was not reported"
    if old.state is JobState.RESCALING and started and job.trains_on != old.ordered:
        yield (
            f"job {job.id} was to change to {old.ordered.slots}, it is on "
            f"{job.trains_on.slots}"
        )
    if job.state is JobState.RUNNING and job.trains_on != job.ordered:
        yield (
            f"job {job.id} runs on {job.trains_on.slots}, but {job.ordered.slots} "
            f"are held for it as well"
        )


def _unanswered(old: JobRecord, event: Event, job: JobRecord) -> Iterator[str]:
    """Yield an error if the answer to an order came, and the job still waits for it."""
    answers = ANSWERS.get(old.state, ())
    if not isinstance(event, answers):
        return
    if (event.job, event.generation) != (job.id, old.generation):
        return
    if (job.state, job.generation) == (old.state, old.generation):
        yield f"job {job.id} is still {job.state}, though its order was answered"


def _wrong_order(
    event: Event,
    command: Start | Rescale | RetractRescale | Stop,
    before: JobRecord | None,
    job: JobRecord,
) -> Iterator[str]:
    if command.generation != job.generation:
        yield (
            f"job {job.id}: order of generation {command.generation}, the books say "
            f"{job.generation}"
        )
    if isinstance(command, Stop):
        if job.state is not JobState.STOPPING:
            yield f"job {job.id} is ordered to stop, but is {job.state}"
        return
    if isinstance(command, RetractRescale):
        if (
            job.state is not JobState.RESCALING
            or job.order.kind is not OrderKind.RETRACT
        ):
            yield f"job {job.id} is {job.state}, but its order is taken back"
        return
    if command.allocation != job.ordered or not command.allocation:
        yield (
            f"job {job.id}: order for {command.allocation.slots}, the books say "
            f"{job.ordered.slots}"
        )
    if before is None or command.generation == before.generation:
        return
    exited = isinstance(event, ReplicasExited) and (event.job, event.generation) == (
        job.id,
        before.generation,
    )
    if (
        isinstance(command, Start)
        and before.state is not JobState.PENDING
        and not exited
    ):
        yield (
            f"job {job.id} is started while replicas of generation "
            f"{before.generation} may be alive"
        )
    if isinstance(command, Rescale) and job.spec.contract is RescaleContract.FROZEN:
        yield f"job {job.id} is frozen, but rescaled"


def wrong_books(state: SchedulerState) -> Iterator[str]:
    """Yield each rule that the present state breaks."""
    for job in state.jobs.values():
        yield from _wrong_record(job, state)
    holders = [job for job in state.jobs.values() if job.state in HOLDING]
    yield from _wrong_devices(
        "held", state, [(job.trains_on, job.ordered) for job in holders]
    )
    yield from _wrong_devices(
        "promised", state, [(job.target.allocation,) for job in state.jobs.values()]
    )
    if state.buying is not None:
        yield from _wrong_nodes(state, state.buying)


def _wrong_nodes(state: SchedulerState, buying: Buying) -> Iterator[str]:
    """Yield contradictions in the records of bought nodes."""
    live = {node.id for node in state.nodes.values() if node.offer in buying.offers}
    if buying.nodes.keys() != live:
        yield f"nodes {sorted(live)} are live, bought are {sorted(buying.nodes)}"
    if unknown := buying.leaving.keys() - buying.nodes.keys():
        yield f"nodes {sorted(unknown)} leave, and are not there"
    if negative := {name for name, count in buying.ordered.items() if count < 0}:
        yield f"fewer than no nodes are ordered of {sorted(negative)}"


def _wrong_devices(
    what: str, state: SchedulerState, by_job: Sequence[tuple[Allocation, ...]]
) -> Iterator[str]:
    """Yield each node and each shared GPU of which jobs use more than exists."""
    whole: Counter[NodeId] = Counter()
    shares: defaultdict[tuple[NodeId, int], Fraction] = defaultdict(Fraction)
    for allocations in by_job:
        for node in {
            node for allocation in allocations for node, _ in allocation.slots
        }:
            whole[node] += max(
                0 if each.shared else each.on(node) for each in allocations
            )
        mine: dict[tuple[NodeId, int], Fraction] = {}
        for allocation in allocations:
            for gpu in allocation.shared_gpus():
                mine[gpu] = max(
                    Fraction(1, allocation.num_sharers), mine.get(gpu, Fraction(0))
                )
        for gpu, share in mine.items():
            shares[gpu] += share
    for gpu, share in shares.items():
        whole[gpu[0]] += 1
        if share > 1 and gpu[0] in state.nodes:
            yield f"{share} of the GPU of node {gpu[0]} with label {gpu[1]} are {what}"
    for node, num_gpus in whole.items():
        if node in state.nodes and num_gpus > state.nodes[node].num_gpus:
            yield (
                f"{num_gpus} GPUs of node {node} are {what}, it has "
                f"{state.nodes[node].num_gpus}"
            )


def _wrong_record(job: JobRecord, state: SchedulerState) -> Iterator[str]:
    yield from _wrong_state(job)
    yield from _wrong_allocations(job, state)
    yield from _wrong_batch(job)
    yield from _wrong_counts(job)


def _wrong_state(job: JobRecord) -> Iterator[str]:
    """Yield what contradicts the job's state."""
    holds = bool(job.ordered)
    ended = job.state in ENDED
    if holds is not (job.state in HOLDING):
        yield (
            f"job {job.id} is {job.state} with {job.ordered.num_replicas} replicas "
            f"ordered"
        )
    if job.trains_on and not holds:
        yield f"job {job.id} has replicas on {job.trains_on.slots}, but none ordered"
    if ended is not (job.ended_at is not None):
        yield f"job {job.id} is {job.state}, its end is {job.ended_at}"
    if job.target and (ended or job.status.cancel_requested):
        yield f"job {job.id} is {job.state} or cancelled, and yet has a target"
    if job.order.sent_at is None and job.state in (
        JobState.STARTING,
        JobState.RESCALING,
        JobState.STOPPING,
    ):
        yield f"job {job.id} is {job.state}, but waits for no answer"
    if job.order.kind is OrderKind.RETRACT and job.state is not JobState.RESCALING:
        yield f"job {job.id} is {job.state}, there is no order to take back"


def _wrong_allocations(job: JobRecord, state: SchedulerState) -> Iterator[str]:
    """Yield each rule about nodes, limits or GPU types that the ordered or planned
    allocation breaks.
    """
    if any(node not in state.nodes for node, _ in job.target.allocation.slots):
        yield (
            f"job {job.id}: its target {job.target.allocation.slots} names a node "
            f"that is gone"
        )
    limits = job.spec.replicas
    for allocation in (job.ordered, job.target.allocation):
        if allocation and not limits.min <= allocation.num_replicas <= limits.max:
            yield (
                f"job {job.id}: {allocation.num_replicas} replicas, allowed "
                f"{limits.min}..{limits.max}"
            )
        on = [
            state.nodes[node].gpu_type
            for node, _ in allocation.slots
            if node in state.nodes
        ]
        if len(set(on)) > 1:
            yield (
                f"job {job.id}: GPU types {sorted(set(on))} at once in "
                f"{allocation.slots}"
            )


def _wrong_counts(job: JobRecord) -> Iterator[str]:
    """Yield counters that are higher than is possible."""
    if job.running.generation > job.generation:
        yield (
            f"job {job.id} trains as {job.running.generation}, the last order is "
            f"{job.generation}"
        )
    if job.usage.costs.num_measured > job.generation:
        yield (
            f"job {job.id}: {job.usage.costs.num_measured} rescales booked in "
            f"{job.generation} generations"
        )
    if job.usage.num_failures > job.spec.max_failures + 1:
        yield (
            f"job {job.id} failed {job.usage.num_failures} times, allowed "
            f"{job.spec.max_failures}"
        )


def _wrong_batch(job: JobRecord) -> Iterator[str]:
    batch = job.order.grant.batch
    if batch is not None and job.spec.batch_is_own:
        yield (
            f"job {job.id}: batch {batch.total} was ordered, but it sets its batch "
            f"by itself"
        )
    bound = job.spec.contract in (RescaleContract.FIXED, RescaleContract.FROZEN)
    if batch is not None and batch.total > job.spec.batch.max_total:
        yield (
            f"job {job.id}: batch {batch.total} was ordered, at most "
            f"{job.spec.batch.max_total} is allowed"
        )
    if batch is not None and bound and batch.total != job.spec.batch.requested:
        yield (
            f"job {job.id}: batch {batch.total} was ordered, only "
            f"{job.spec.batch.requested} is allowed"
        )


def _wrong_view(command: Solve, state: SchedulerState) -> Iterator[str]:
    view = command.view
    if command.round != state.round:
        yield f"round {command.round} is solved, the books are in round {state.round}"
    in_use = [node.id for node in _in_use(state)]
    if [node.id for node in view.nodes] != in_use:
        yield (
            f"the view shows nodes {[node.id for node in view.nodes]}, live and not "
            f"leaving are {in_use}"
        )
    shown = {job.id for job in view.jobs}
    active = {
        job.id
        for job in state.jobs.values()
        if not (job.state in ENDED or job.status.cancel_requested or job.retry_at)
        and not _waits_for_budget(job)
    }
    if shown != active:
        yield f"the view shows jobs {sorted(shown)}, active are {sorted(active)}"


def _waits_for_budget(job: JobRecord) -> bool:
    """Return whether the job waits for a budget. The cost ledger checks whether it has
    to.
    """
    return job.reason is Reason.BUDGET and job.state is JobState.PENDING


def check_world(world: World, state: SchedulerState) -> None:
    """Raise InvariantError unless the world's ledger is consistent, and the scheduler's
    state has all replicas that are alive.
    """
    wrongs = [*_wrong_ledger(world), *_unknown_to_books(world, state)]
    if wrongs:
        raise InvariantError(f"at {state.at}: " + "; ".join(wrongs))


def _wrong_ledger(world: World) -> Iterator[str]:
    alive = world.alive()
    for node_id, held in world.ledger.held.items():
        node = world.ledger.nodes[node_id]
        if sum(held.values()) > node.num_gpus + SLACK_GPUS:
            yield (
                f"the world runs {dict(held)} on node {node_id} of {node.num_gpus} GPUs"
            )
        for job_id in held.keys() - alive.keys():
            yield f"job {job_id} is gone, but holds GPUs of node {node_id} in the world"


def _unknown_to_books(world: World, state: SchedulerState) -> Iterator[str]:
    for job_id, generation in world.alive().items():
        job = state.jobs.get(job_id)
        if job is None:
            yield (
                f"generation {generation} of job {job_id} is alive, the books say "
                f"{state.ended.get(job_id)}"
            )
            continue
        if job.state not in HOLDING or job.generation < generation:
            yield (
                f"generation {generation} of job {job_id} is alive, "
                f"the books say {job.state} in generation {job.generation}"
            )
            continue
        if job.state is JobState.RUNNING and job.running.generation != generation:
            yield (
                f"job {job_id} trains as generation {generation}, the books say "
                f"{job.running.generation}"
            )
        booked = held_by(job).by_node
        for node_id, held in world.ledger.held.items():
            if held.get(job_id, 0.0) > booked.get(node_id, 0.0) + SLACK_GPUS:
                yield (
                    f"job {job_id} holds {held[job_id]:g} GPUs of node {node_id}, "
                    f"booked are {booked}"
                )
        known = {
            gpu for each in (job.trains_on, job.ordered) for gpu in each.shared_gpus()
        }
        for gpu in world.ledger.shared_gpus(job_id).keys() - known:
            yield f"job {job_id} is on the shared GPU {gpu}, booked are {sorted(known)}"


def _reachable() -> dict[JobState, frozenset[JobState]]:
    reach = {state: {state} for state in JobState}
    for _ in range(MOVES_PER_EVENT_MAX):
        for states in reach.values():
            states |= {
                after for (before, _), after in TRANSITIONS.items() if before in states
            }
    return {state: frozenset(states) for state, states in reach.items()}


REACHABLE = _reachable()
