"""The scheduling core: `handle(event) -> commands`. Sans-I/O: no clock, socket, file, thread or randomness.

State changes only inside `handle`. What an event may do to a job is the table in lifecycle.py; which orders
follow from a plan is converge.py; the books are accounting.py.
"""

import math
from typing import assert_never

from coadapt.core.accounting import accrue, job_view, may_train, note_change, note_report, note_rescale
from coadapt.core.commands import Command, SetAlarm, Solve
from coadapt.core.config import SchedulerConfig
from coadapt.core.converge import RESIZES_FAILED_MAX, converge, note_answer, repeat_order
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
from coadapt.core.lifecycle import ENDED, HOLDING, JobState, Reason, Trigger, advance
from coadapt.core.reasons import failure, release_reason, resize_failure, waiting_reason
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import WAITING, ClusterView, JobId, Node, NodeId, Plan, PlanError, check_plan


class Scheduler:
    """One scheduler's state and the rules that change it. No event makes it raise; a bug of ours may."""

    def __init__(self, config: SchedulerConfig | None = None, state: SchedulerState | None = None) -> None:
        """`config` counts until the first SchedulerConfigured."""
        self._config = config or SchedulerConfig()
        self.state = state or SchedulerState()
        self._active: list[JobId] = _submission_order(self.state)

    @property
    def config(self) -> SchedulerConfig:
        """Return the settings in force."""
        return self.state.config or self._config

    def handle(self, event: Event) -> list[Command]:
        """Book what happened and return the orders that follow from it."""
        # A late message must not turn the books back; its own instant is history.
        self.state.at = at = max(self.state.at, event.at)
        match event:
            case JobSubmitted():
                return self._submitted(event)
            case CancelRequested():
                return self._cancel_requested(event)
            case NodeJoined():
                return self._node_joined(event.node)
            case NodeLost():
                return self._node_lost(event.node)
            case ReplicasStarted():
                return self._started(event)
            case ReplicasKept():
                return self._kept(event)
            case ReplicasRescaled():
                if job := self._training(event.job, event.generation):
                    job.heard_at = at
                    note_rescale(job, event.generation, event.rescale_s, event.pause)
                return []
            case ReplicasExited():
                return self._exited(event)
            case TrainingReported():
                if job := self._training(event.job, event.generation):
                    job.heard_at = at
                    note_report(job, event.report, at)
                return []
            case PlanReady():
                return self._plan_ready(event)
            case PlanFailed():
                if event.round == self.state.round and self.state.solve_at is not None:
                    self.state.solve_at = None
                    self.state.plan_error = event.error
                return []
            case TimerFired():
                return self._timer_fired()
            case SchedulerRestarted():
                return self._restarted()
            case SchedulerConfigured():
                return self._configured(event.config)
            case _:
                assert_never(event)

    def view(self) -> ClusterView:
        """Return the frozen picture of this instant that a policy gets."""
        jobs = [self.state.jobs[job_id] for job_id in self._active]
        return ClusterView(
            at=self.state.at,
            nodes=tuple(self.state.nodes[node] for node in sorted(self.state.nodes)),
            jobs=tuple(
                job_view(job, self.config.rescale_default_s) for job in jobs if not job.cancel_requested
            ),
        )

    # -- users ------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted) -> list[Command]:
        if event.job in self.state.jobs:
            return []
        self.state.jobs[event.job] = JobRecord(
            id=event.job,
            spec=event.spec,
            submitted_at=event.at,
            accounted_at=event.at,
            forecast=event.forecast,
            explanation="waits: submitted, the next round will look at it",
        )
        self._active = _submission_order(self.state)
        return self._wake()

    def _cancel_requested(self, event: CancelRequested) -> list[Command]:
        job = self.state.jobs.get(event.job)
        if job is None or job.state in ENDED or job.cancel_requested:
            return []
        job.cancel_requested = True
        job.target = WAITING
        if job.state is JobState.PENDING:
            self._end(job, Trigger.CANCELLED, Reason.CANCELLED_BY_USER, "cancelled by its user")
            return []
        job.explanation = "is being stopped: cancelled by its user"
        return self._converge()

    # -- nodes ------------------------------------------------------------------------------------------

    def _node_joined(self, node: Node) -> list[Command]:
        known = self.state.nodes.get(node.id)
        if known == node:
            return []
        commands = self._node_lost(node.id) if known else []
        self.state.nodes[node.id] = node
        self.state.solve_at = None
        return commands + self._wake()

    def _node_lost(self, node: NodeId) -> list[Command]:
        if self.state.nodes.pop(node, None) is None:
            return []
        # A plan that is being made for the cluster as it was is void.
        self.state.solve_at = None
        for job in self._active_jobs():
            on_it = job.ordered.on(node) + job.allocation.on(node) if job.state in HOLDING else 0
            if on_it or job.target.on(node):
                job.target = WAITING
                if on_it:
                    job.reason = Reason.NODE_LOST
                    job.explanation = f"stopped: node {node} was lost"
        return self._converge() + self._wake()

    # -- replicas ---------------------------------------------------------------------------------------

    def _started(self, event: ReplicasStarted) -> list[Command]:
        job = self._current(event.job, event.generation)
        if job is None:
            return []
        job.heard_at = self.state.at
        if job.state not in (JobState.STARTING, JobState.RESCALING):
            return []
        accrue(job, self.state.at)
        if job.state is JobState.RESCALING:
            job.num_rescales += job.allocation != job.ordered
            note_change(job, self.state.at)
        job.state = advance(job.state, Trigger.REPLICAS_STARTED)
        job.num_resizes_failed = 0
        note_answer(job)
        return self._converge()

    def _kept(self, event: ReplicasKept) -> list[Command]:
        job = self._current(event.job, event.generation)
        if job is None:
            return []
        job.heard_at = self.state.at
        if job.state is not JobState.RESCALING:
            return []
        accrue(job, self.state.at)
        job.state = advance(job.state, Trigger.REPLICAS_KEPT)
        job.reason = Reason.ALLOCATED
        job.num_resizes_failed += bool(event.detail)
        # Ordered again at once it would fail again; but what took its place meanwhile was asked for later.
        if event.detail and not job.retracting:
            job.waits_for_plan = True
            job.reason = Reason.RESIZE_FAILED
            restarts = job.num_resizes_failed >= RESIZES_FAILED_MAX
            job.explanation = resize_failure(job, event.detail, restarts=restarts)
        job.ordered, job.ordered_batch = job.allocation, job.allocation_batch
        note_answer(job)
        return self._converge()

    def _exited(self, event: ReplicasExited) -> list[Command]:
        job = self._current(event.job, event.generation)
        if job is None:
            return []
        accrue(job, self.state.at)
        # A plan that moves or preempts jobs foresaw the exits that it ordered; any other calls for a new one.
        foreseen = job.state is JobState.STOPPING and event.outcome is Outcome.STOPPED
        foreseen = foreseen and not job.cancel_requested and job.reason is not Reason.NODE_LOST
        job.allocation = job.ordered = WAITING
        note_answer(job)
        node_lost = job.reason is Reason.NODE_LOST
        if event.outcome is Outcome.SUCCEEDED:
            self._end(job, Trigger.SUCCEEDED, Reason.FINISHED, "finished")
        elif job.cancel_requested:
            self._end(job, Trigger.CANCELLED, Reason.CANCELLED_BY_USER, "cancelled by its user")
        elif self._is_failure(job, event.outcome) and job.num_failures + 1 > job.spec.max_failures:
            job.num_failures += 1
            self._end(job, Trigger.GAVE_UP, Reason.TOO_MANY_FAILURES, failure(job, event.detail))
        else:
            job.num_failures += self._is_failure(job, event.outcome)
            job.state = advance(job.state, Trigger.RELEASED)
            if not node_lost:
                job.reason, job.explanation = release_reason(job, event)
        return self._converge() + ([] if foreseen else self._wake())

    def _is_failure(self, job: JobRecord, outcome: Outcome) -> bool:
        if job.reason is Reason.NODE_LOST:
            return False
        # Replicas that vanish again and again before they get anywhere would be restarted for ever.
        nowhere = outcome is Outcome.LOST and job.progress <= job.progress_at_start
        return outcome is Outcome.FAILED or nowhere

    # -- rounds -----------------------------------------------------------------------------------------

    def _timer_fired(self) -> list[Command]:
        state = self.state
        if state.round_due_at is None or state.at < state.round_due_at:
            return []
        state.round_due_at = None
        jobs = self._active_jobs()
        if not jobs:
            return []
        commands = self._repeat_orders(jobs)
        solving = state.solve_at is not None and state.at - state.solve_at < self.config.solve_timeout_s
        if not solving:
            for job in jobs:
                accrue(job, state.at)
            state.round += 1
            state.solve_at = state.at
            commands.append(Solve(round=state.round, view=self.view()))
        state.round_at = state.at
        return commands + self._set_alarm(self._next_round_at())

    def _plan_ready(self, event: PlanReady) -> list[Command]:
        state = self.state
        if event.round != state.round or state.solve_at is None:
            return []
        state.solve_at = None
        view = self.view()
        plan = _without_departed(event.plan, view, state)
        try:
            check_plan(view, plan)
        except PlanError as error:
            state.plan_error = str(error)
            return []
        state.plan_error = ""
        state.diagnostics = plan.diagnostics
        for job in self._active_jobs():
            if not job.cancel_requested:
                self._set_target(job, plan)
        return self._converge()

    def _set_target(self, job: JobRecord, plan: Plan) -> None:
        job.waits_for_plan = False
        job.target = plan.allocations.get(job.id, WAITING)
        job.target_batch = plan.batches.get(job.id)
        if job.target:
            job.explanation = plan.reasons.get(job.id, f"runs on {job.target.num_replicas} GPUs")
            return
        reason, job.explanation = waiting_reason(job, plan, self.state)
        if job.state is not JobState.STOPPING:
            job.reason = reason

    def _restarted(self) -> list[Command]:
        self.state.solve_at = None
        self.state.round_due_at = None
        jobs = self._active_jobs()
        commands = [repeat_order(job, self.state.at) for job in jobs if job.state in HOLDING]
        return commands + (self._wake() if jobs else [])

    def _configured(self, config: SchedulerConfig) -> list[Command]:
        self.state.config = config
        self.state.round_due_at = None
        return self._wake()

    def _repeat_orders(self, jobs: list[JobRecord]) -> list[Command]:
        at, config = self.state.at, self.config
        commands: list[Command] = []
        for job in (job for job in jobs if job.state in HOLDING):
            unanswered = job.order_at is not None and at - job.order_at >= config.retry_s
            silent = job.order_at is None and at - job.heard_at >= config.silence_s
            if unanswered or silent:
                commands.append(repeat_order(job, at))
        return commands

    def _wake(self) -> list[Command]:
        """Bring the next round forward, after something that a plan should react to."""
        if not self._active:
            return []
        reaction_s = self.config.reaction_s
        return self._set_alarm(self._next_round_at() if reaction_s is None else self.state.at + reaction_s)

    def _next_round_at(self) -> float:
        """Return the first whole multiple of round_s that is not before now and after the last round."""
        round_s = self.config.round_s
        return (
            max(math.ceil(self.state.at / round_s), math.floor(self.state.round_at / round_s) + 1) * round_s
        )

    def _set_alarm(self, at: float) -> list[Command]:
        if self.state.round_due_at is not None and self.state.round_due_at <= at:
            return []
        self.state.round_due_at = at
        return [SetAlarm(at=at)]

    # -- shared -----------------------------------------------------------------------------------------

    def _current(self, job_id: JobId, generation: int) -> JobRecord | None:
        """Return the job if `generation` is that of its last order and replicas may be alive, else None."""
        job = self._training(job_id, generation)
        return job if job is not None and job.generation == generation else None

    def _training(self, job_id: JobId, generation: int) -> JobRecord | None:
        """Return the job if replicas of `generation` may train now, else None."""
        job = self.state.jobs.get(job_id)
        if job is None or not may_train(job, generation) or job.state not in HOLDING:
            return None
        return job

    def _active_jobs(self) -> list[JobRecord]:
        return [self.state.jobs[job_id] for job_id in self._active]

    def _converge(self) -> list[Command]:
        return converge(self.state, self._active_jobs(), self.config.resize_in_place)

    def _end(self, job: JobRecord, trigger: Trigger, reason: Reason, explanation: str) -> None:
        job.state = advance(job.state, trigger)
        job.reason = reason
        job.explanation = explanation
        job.ended_at = self.state.at
        job.target = job.ordered = job.allocation = WAITING
        job.target_batch = job.ordered_batch = job.allocation_batch = None
        self._active.remove(job.id)
        if not self._active:
            self.state.round_due_at = None


def _submission_order(state: SchedulerState) -> list[JobId]:
    active = [job for job in state.jobs.values() if job.state not in ENDED]
    return [job.id for job in sorted(active, key=lambda job: (job.submitted_at, job.id))]


def _without_departed(plan: Plan, view: ClusterView, state: SchedulerState) -> Plan:
    """Return `plan` without jobs that ended or were cancelled while it was made; unknown ones stay in."""
    present = {job.id for job in view.jobs}

    def keep(job_id: JobId) -> bool:
        return job_id in present or job_id not in state.jobs

    return Plan(
        allocations={key: value for key, value in plan.allocations.items() if keep(key)},
        batches={key: value for key, value in plan.batches.items() if keep(key)},
        reasons={key: value for key, value in plan.reasons.items() if keep(key)},
        diagnostics=plan.diagnostics,
    )
