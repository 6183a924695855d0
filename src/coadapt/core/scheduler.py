"""The scheduling core: `handle(event) -> commands`. It is sans-I/O: it uses no clock,
socket, file, thread or randomness.

The state changes only inside `handle`. lifecycle.py has the table of what an event may
do to a job, converge.py the orders that follow from a plan, accounting.py what jobs
hold and use.
"""

import dataclasses
import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from coadapt.core.accounting import held, hold, job_view, may_train
from coadapt.core.commands import (
    BuyNodes,
    Command,
    GiveBack,
    SetAlarm,
    Size,
    Solve,
)
from coadapt.core.config import SchedulerConfig
from coadapt.core.converge import (
    RESCALES_FAILED_MAX,
    answered,
    come_about,
    converge,
    repeat_order,
    stop,
)
from coadapt.core.costs import (
    SPENT,
    begin_periods,
    book_after,
    budget_levels,
    budget_text,
    max_cost_text,
    set_prices,
    spent_up,
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
from coadapt.core.growth import (
    after_failed_joiner,
    after_failure,
    after_kept,
    after_step,
    cut,
    growth_failure_text,
    plural,
    set_aside_text,
    size_of,
    within,
)
from coadapt.core.hindrances import (
    AWAY_KEPT,
    AwayNode,
    Hindrances,
    with_own_words,
)
from coadapt.core.instants import next_multiple
from coadapt.core.lifecycle import ENDED, HOLDING, JobState, Reason, Trigger
from coadapt.core.lost_first import with_lost_first
from coadapt.core.node_buying import Buying
from coadapt.core.reasons import (
    RETRY_MOST_S,
    blocked_reason,
    failure,
    hang,
    release_reason,
    rescale_failure,
    retry_delay_s,
    setup_runs,
    waiting_reason,
)
from coadapt.core.settling import settling
from coadapt.core.state import (
    ENDED_KEPT,
    FailedRescales,
    JobRecord,
    OrderKind,
    SchedulerState,
    Status,
)
from coadapt.core.studies import note_study
from coadapt.core.unfit_nodes import moved
from coadapt.core.worklist import Worklist
from coadapt.model import (
    NO_GRANT,
    WAITING,
    ClusterView,
    Grant,
    JobId,
    Measured,
    Node,
    NodeId,
    Plan,
    PlanError,
    RescaleContract,
    Tenant,
    TenantId,
    Usage,
    check_plan,
    holding,
)
from coadapt.model.offer import SizingError, SizingView, check_sizing
from coadapt.model.view import JobViews, current_allocations

# If more jobs than this have changed, their views are renewed before the next round, so
# that the round itself is quick.
VIEWS_BEHIND_MAX = 100
# Events that change neither what jobs hold nor their targets, so the last view stays.
_KEEP_VIEW = (TrainingReported, PlanReady)


class Scheduler:
    """The scheduler's state and the rules that change it. No event makes it raise."""

    def __init__(
        self, config: SchedulerConfig | None = None, state: SchedulerState | None = None
    ) -> None:
        """`config` applies until the first SchedulerConfigured."""
        self._config = config or SchedulerConfig()
        self.state = state or SchedulerState()
        # Whether waiting jobs get an explanation. Explanations affect no decision.
        # Forecasts and simulations that only count do not read them. Under `fifo` they
        # take a third of a simulation's time.
        self.explains = True
        live = [job for job in self.state.jobs.values() if job.state not in ENDED]
        self.state.active = sorted(live, key=_submission_order)
        self._departed = [
            job.id for job in self.state.jobs.values() if job.state in ENDED
        ]
        self._view: ClusterView | None = (
            None  # the last view, while holdings and targets have not changed
        )
        self._plan: Plan | None = (
            None  # the last accepted plan, while the nodes have not changed
        )
        self._rebuild()

    @property
    def config(self) -> SchedulerConfig:
        """Return the settings in force."""
        return self.state.config or self._config

    def handle(self, event: Event) -> list[Command]:
        """Update the state with `event`, and return the commands that follow."""
        # Time never goes back: a late event counts at the instant of the latest one.
        self.state.at = max(self.state.at, event.at)
        renewed = begin_periods(self.state)
        commands = self._handle(event)
        if renewed:
            commands += self._check_budgets()
        if self.state.prices is not None:
            book_after(event, commands, self.state)
        if self.state.buying is None:
            return commands
        return self._update_buying(event, commands, self.state.buying)

    def _handle(self, event: Event) -> list[Command]:  # noqa: C901, PLR0912  # one case per event
        if self._departed:
            self._forget_departed()
        self.state.changed = set()
        self._view = self._view if isinstance(event, _KEEP_VIEW) else None
        match event:
            case (
                TrainingReported() | TrainingResumed()
            ):  # first, because nearly all events are
                return self._reported(event)
            case JobSubmitted():
                return self._submitted(event)
            case CancelRequested():
                return self._cancel_requested(event)
            case PriorityChanged():
                return self._priority_changed(event)
            case NodeJoined():
                return self._node_joined(event.node)
            case NodeLost():
                return self._node_lost(event.node, event.why)
            case ReplicasStarted():
                return self._started(event)
            case SetupStarted():
                return self._setting_up(event)
            case TrainerSeen():
                return self._trainer_seen(event)
            case ReplicasKept():
                return self._kept(event)
            case ReplicasExited():
                return self._exited(event)
            case PlanReady():
                return self._plan_ready(event)
            case PlanFailed():
                return self._plan_failed(event)
            case TimerFired():
                return self._timer_fired()
            case SchedulerRestarted():
                return self._restarted()
            case SchedulerConfigured():
                return self._configured(event.config)
            case TenantConfigured():
                return self._tenant_configured(event.tenant)
            case PricesConfigured():
                set_prices(self.state, event.prices)
                return self._check_budgets()
            case OffersConfigured():
                return self._offers_configured(event)
            case OfferChanged():
                if self.state.buying is not None:
                    self.state.buying.change(event.offer, self.state.at)
                return []
            case SizingReady():
                return self._sizing_ready(event)
            case SizingFailed():
                self._sizing_failed(event.number, event.error)
                return []
            case NodeNoticed():
                return self._node_noticed(event.node)
            case StudySubmitted() | StudyStopped() | StudyResumed() | StudyRemoved():
                note_study(self.state.studies, event)
                return []
            case _:
                assert_never(event)

    def view(self) -> ClusterView:
        """Return the frozen view of this instant for a policy."""
        self._renew_views()
        self._view = self._views.view(
            self.state.at, dict(sorted(self.state.tenants.items()))
        )
        return self._view

    def _renew_views(self) -> None:
        """Renew the views of the jobs that changed."""
        views = self._views
        cost_s = self.config.rescale_default_s
        jobs = self.state.jobs
        outdated = self._work.unseen
        self._work.unseen = {}
        for job_id in outdated:
            job = jobs.get(job_id)
            if job is not None and (job.retry_at or spent_up(job, self.state)):
                job = None  # no plan may have a place for it
            if job is None or job.status.state in ENDED or job.status.cancel_requested:
                views.drop(job_id)
            else:
                views.put(job_view(job, cost_s, views.views.get(job_id)))

    # -- users
    # ----------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted) -> list[Command]:
        if event.job in self.state.jobs or event.job in self.state.ended:
            return []
        job = self.state.jobs[event.job] = JobRecord(
            id=event.job,
            spec=event.spec,
            submitted_at=event.at,
            status=Status(
                explanation="waits: submitted, the next round will look at it"
            ),
            measured=Measured(forecast=event.forecast),
            usage=Usage(accounted_at=event.at),
        )
        insort(self.state.active, job, key=_submission_order)
        self._work.note(job)
        self._explain_budget(job)
        return self._wake()

    def _priority_changed(self, event: PriorityChanged) -> list[Command]:
        job = self.state.jobs.get(event.job)
        if job is None or job.state in ENDED or job.spec.priority == event.priority:
            return []
        job.spec = replace(job.spec, priority=event.priority)
        self._work.note(job)
        return self._wake()

    def _cancel_requested(self, event: CancelRequested) -> list[Command]:
        job = self.state.jobs.get(event.job)
        if job is None or job.status.cancel_requested:
            return []
        cancelled = f"cancelled: {event.why}" if event.why else "cancelled on request"
        return self._cancel(job, cancelled)

    def _cancel(
        self, job: JobRecord, why: str, reason: Reason = Reason.CANCELLED
    ) -> list[Command]:
        """Stop the job's replicas, which save their state, and then end the job.

        why: the explanation of its end.
        """
        job.target = NO_GRANT
        job.status = replace(
            job.status,
            cancel_requested=True,
            cancel_why=why,
            cancel_reason=reason,
            explanation=f"is being stopped: {why.removeprefix('stopped: ')}",
        )
        if reason is not Reason.CANCELLED:
            job.status = replace(job.status, reason=reason)
        if job.state is JobState.PENDING:
            self._end(job, Trigger.CANCELLED, reason, why)
            return []
        return self._converge(job)

    # -- costs
    # ----------------------------------------------------------------------------------

    def _enforce_costs(self) -> list[Command]:
        """Stop the jobs that have reached their max_cost, and check the tenants'
        budgets.
        """
        commands: list[Command] = []
        if self.state.prices is None:
            return commands
        for job in list(self.state.active):
            if job.status.cancel_requested:
                continue
            if why := max_cost_text(job, self.state):
                self.state.changed.add(job.id)
                commands += self._cancel(job, f"stopped: {why}", Reason.MAX_COST)
        return commands + self._check_budgets()

    def _check_budgets(self) -> list[Command]:
        """Update how much of its budget each tenant has spent.

        Jobs that have not started do not start while their tenant's budget is spent.
        """
        state = self.state
        before = state.budget_levels
        state.budget_levels = budget_levels(state)
        concerned = {
            name
            for name in {*before, *state.budget_levels}
            if (before.get(name) == SPENT)
            is not (state.budget_levels.get(name) == SPENT)
        }
        if not concerned:
            return []
        # A plan that is being computed for the earlier budgets is void.
        state.solve_at = None
        self._plan = None
        self._view = None
        texts = {name: budget_text(name, state) for name in state.budget_levels}
        for job in state.active:
            may_wait = job.state is JobState.PENDING and job.usage.started_at is None
            if may_wait and not job.status.cancel_requested:
                self._explain_budget(job, texts)
        return self._wake()

    def _explain_budget(
        self, job: JobRecord, texts: Mapping[TenantId, str] | None = None
    ) -> None:
        """Explain that a job that has not started waits for its tenant's budget, or no
        longer does.

        texts: explanations by tenant, computed once if many jobs need them.
        """
        name = spent_up(job, self.state)
        if name is not None:
            job.target = NO_GRANT
            text = budget_text(name, self.state) if texts is None else texts[name]
            _explain(job, Reason.BUDGET, f"waits: {text}")
        elif job.reason is Reason.BUDGET:
            _explain(job, Reason.SUBMITTED, "waits: the next round will look at it")
        else:
            return
        self._work.note(job)
        self.state.changed.add(job.id)

    # -- nodes
    # ----------------------------------------------------------------------------------

    def _node_joined(self, node: Node) -> list[Command]:
        known = self.state.nodes.get(node.id)
        if known == node:
            return []
        # If the node only has more GPUs now, or fewer idle ones, or is an offer's from
        # now on, no job loses any.
        idle = self._work.holdings.free.whole.get(node.id, 0)
        keeps = known and node == replace(
            known,
            num_gpus=max(node.num_gpus, known.num_gpus - idle),
            offer=known.offer or node.offer,
        )
        commands = self._node_lost(node.id) if known and not keeps else []
        self.state.nodes[node.id] = node
        self.state.away.pop(node.id, None)
        if self.state.buying is not None:
            self.state.buying.joined(node, self.state.at)
        self._nodes_changed(node.id)
        return commands + self._wake()

    def _node_lost(self, node: NodeId, what: str = "was lost") -> list[Command]:
        gone = self.state.nodes.pop(node, None)
        if gone is None:
            return []
        self.state.last_lost = f"node {node} {what}"
        self.state.away[node] = AwayNode(node=gone, why=what)
        if len(self.state.away) > AWAY_KEPT:
            del self.state.away[next(iter(self.state.away))]
        if self.state.buying is not None:
            self.state.buying.gone(node, self.state.at)
        self._nodes_changed(node)
        there = [self.state.jobs[job_id] for job_id in self._work.holdings.on(node)]
        for job in there:
            why = f"stopped: node {node} {what}"
            job.lost_node = True
            job.status = replace(job.status, reason=Reason.NODE_LOST, explanation=why)
        expected = [
            job for job in self._work.unlike_plan if job.target.allocation.on(node)
        ]
        for job in (*there, *expected):
            job.target = NO_GRANT
            self.state.changed.add(job.id)
        return self._converge(*there, *expected) + self._wake()

    def _nodes_changed(self, changed: NodeId) -> None:
        """Update what depends on the nodes, after node `changed` joined or was lost."""
        # A plan that is being computed for the earlier nodes is void.
        self.state.solve_at = None
        self._plan = None
        self._renew_views()
        nodes = self._nodes()
        there = self._work.holdings.on(changed)
        self._work.holdings.renew(nodes, changed)
        self._views.renew(self._nodes_to_use(), there)

    # -- nodes that are bought ---------------------------------------------------------

    def _offers_configured(self, event: OffersConfigured) -> list[Command]:
        if self.state.buying is None:
            self.state.buying = Buying(booked_at=self.state.at)
        self.state.buying.configure(event.offers, event.sizing_s, self.state.at)
        for node in self._nodes():
            self.state.buying.joined(node, self.state.at)
        return []

    def _sizing_ready(self, event: SizingReady) -> list[Command]:
        buying = self.state.buying
        if buying is None or event.number != buying.number or buying.asked_at is None:
            return []
        buying.asked_at = None
        buying.book(self.state.at)
        try:
            check_sizing(self._sizing_view(buying), event.sizing)
        except SizingError as error:
            buying.error = str(error)
            return []
        buying.error = ""
        buying.reason = event.sizing.reason
        before = set(buying.leaving)
        total = buying.take(
            event.sizing.nodes, self._gpus_held(), self._frozen_on(), self.state.at
        )
        commands = self._leaving_changed(before, set(buying.leaving))
        return [*commands, BuyNodes(number=event.number, nodes=total)]

    def _sizing_failed(self, number: int, error: str) -> None:
        buying = self.state.buying
        if buying is not None and number == buying.number:
            buying.asked_at = None
            buying.error = error

    def _node_noticed(self, node: NodeId) -> list[Command]:
        buying = self.state.buying
        if buying is None:
            return []
        before = set(buying.leaving)
        if not buying.notice(node):
            return []
        for job_id in self._work.holdings.on(node):
            self.state.jobs[job_id].lost_node = True
        return self._leaving_changed(before, set(buying.leaving))

    def _leaving_changed(self, before: set[NodeId], now: set[NodeId]) -> list[Command]:
        """Update what depends on the nodes, after the set of leaving nodes changed.

        before, now: the leaving nodes.
        """
        if before == now:
            return []
        self.state.solve_at = None
        self._plan = None
        self._renew_views()
        there: set[JobId] = set()
        for node in before ^ now:
            there.update(self._work.holdings.on(node))
        self._views.renew(self._nodes_to_use(), sorted(there))
        waiting = [
            job
            for job in self._work.unlike_plan
            if any(job.target.allocation.on(node) for node in now)
        ]
        for job in waiting:
            job.target = NO_GRANT if job.state is JobState.PENDING else job.target
            self.state.changed.add(job.id)
        # A round is due now: a node on notice must not wait for the usual one.
        alarm = self._set_alarm(self.state.at) if self.state.active else []
        return self._converge(*waiting) + alarm

    def _gpus_held(self) -> dict[NodeId, float]:
        """Return the GPUs that jobs hold on each node."""
        gpus: dict[NodeId, float] = {}
        for job in self.state.active:
            for node, count in held(job).by_node.items():
                gpus[node] = gpus.get(node, 0.0) + count
        return gpus

    def _frozen_on(self) -> set[NodeId]:
        """Return the nodes of frozen jobs, which cannot be rescaled."""
        return {
            node
            for job in self.state.active
            if job.spec.contract is RescaleContract.FROZEN
            for node in held(job).by_node
        }

    def _sizing_view(self, buying: Buying) -> SizingView:
        pools = buying.pools(lambda node: not self._work.holdings.on(node))
        return SizingView(cluster=self.view(), pools=pools, spent=buying.spent)

    def _update_buying(
        self, event: Event, commands: list[Command], buying: Buying
    ) -> list[Command]:
        """Ask the sizer if it is due, return empty nodes, and set one alarm for the
        next round and the next sizing.
        """
        at = self.state.at
        # Before BuyNodes: its totals are without these nodes.
        going = buying.give_back(lambda node: not self._work.holdings.on(node))
        commands += [GiveBack(node=node) for node in going]
        if isinstance(event, SchedulerRestarted):
            buying.asked_at = None
            buying.alarm_at = None
            buying.wake(at, at_once=True)
            if buying.offers:
                # The last order may have been lost with the scheduler.
                commands.append(BuyNodes(number=buying.number, nodes=buying.totals))
        elif isinstance(event, TimerFired):
            buying.alarm_at = None
        elif isinstance(event, JobSubmitted | NodeJoined | NodeLost | OfferChanged):
            buying.wake(at, at_once=not self.state.nodes)
        if buying.is_due(at):
            buying.book(at)
            buying.number += 1
            buying.asked_at = at
            commands.append(Size(number=buying.number, view=self._sizing_view(buying)))
            buying.ask_next(at, is_active=bool(self.state.active))
        alarms = [
            when
            for when in (self.state.round_due_at, buying.ask_at)
            if when is not None
        ]
        if not alarms:
            return commands
        asked = any(isinstance(each, SetAlarm) for each in commands)
        wanted = min(alarms)
        if asked or buying.alarm_at is None or wanted < buying.alarm_at:
            commands = [each for each in commands if not isinstance(each, SetAlarm)]
            commands.append(SetAlarm(at=wanted))
            buying.alarm_at = wanted
        return commands

    # -- replicas
    # ----------------------------------------------------------------------------------

    def _started(self, event: ReplicasStarted) -> list[Command]:
        job = self._answered(event.job, event.generation)
        if job is None:
            return []
        at = job.heard_at = self.state.at
        if job.state not in (JobState.STARTING, JobState.RESCALING):
            job.status = replace(job.status, unseen=event.unseen)
            return []
        rescaled = job.state is JobState.RESCALING
        moved = rescaled and job.trains_on != job.ordered
        running = come_about(job, at) if rescaled else job.running
        status = job.status.after(Trigger.REPLICAS_STARTED)
        hold(job, at, status=status, order=answered(job.order), running=running)
        if moved:
            job.usage = job.usage.after_rescale()
        job.failed_rescales = replace(job.failed_rescales, num_in_row=0)
        return self._converge(job)

    def _setting_up(self, event: SetupStarted) -> list[Command]:
        job = self._answered(event.job, event.generation)
        if job is None or job.state is not JobState.STARTING:
            return []
        job.heard_at = self.state.at
        limit_s = None if job.spec.launch is None else job.spec.launch.setup_timeout_s
        why = setup_runs(event.since, limit_s)
        job.status = replace(job.status, preparing=why)
        return []

    def _trainer_seen(self, event: TrainerSeen) -> list[Command]:
        job = self._training(event.job, event.generation)
        if job is None:
            return []
        job.running = replace(job.running, is_plain=not event.seen)
        return self._converge(job)

    def _reported(self, event: TrainingReported | TrainingResumed) -> list[Command]:
        """Update the job with a report of its replicas.

        Once replicas have taken a step, plans may change the job again.
        """
        job = self._training(event.job, event.generation)
        if job is None:
            return []
        at = job.heard_at = self.state.at
        if len(self._work.unseen) > VIEWS_BEHIND_MAX:
            self._renew_views()
        job.running = running = replace(job.running, reported_at=at)
        self._work.hear(job)
        if isinstance(event, TrainingReported):
            job.measured = job.measured.after(event.report, at)
        else:
            job.usage = job.usage.after_cost(
                event.generation, event.rescale_s, event.pause
            )
        trains_as_ordered = event.generation == running.generation
        known = event.generation == job.growth.known
        if known and (running.has_trained or not trains_as_ordered):  # the usual case
            return []
        if (
            isinstance(event, TrainingReported)
            and event.report.progress <= running.progress_at_start
        ):
            return []
        if not known:
            self._note_size(job, event.generation)
        if running.has_trained or not trains_as_ordered:
            return []
        job.running = replace(running, has_trained=True)
        return self._converge(job)

    def _note_size(self, job: JobRecord, generation: int) -> None:
        """Record that replicas of `generation` train at their size."""
        if not self.config.growth_trial_s:
            return
        before = generation == job.running.generation
        grant = job.running.grant if before else job.order.grant
        job.growth = after_step(
            job.growth,
            size_of(grant.allocation),
            generation,
            self.state.at,
            self.config.growth_trial_s,
        )

    def _kept(self, event: ReplicasKept) -> list[Command]:
        job = self._answered(event.job, event.generation)
        if job is None:
            return []
        at = job.heard_at = self.state.at
        if job.state is not JobState.RESCALING:
            return []
        status = job.status.after(Trigger.REPLICAS_KEPT, Reason.ALLOCATED)
        # If a joining replica failed by itself, it does not count: a stop and a start
        # would only end the other replicas.
        counts = bool(event.detail) and not self._spoils_growth(job, event)
        num_in_row = job.failed_rescales.num_in_row + counts
        # The same order would fail again, so the next plan decides. If the order was
        # already being retracted, its target is newer and stays.
        waits = bool(event.detail) and job.order.kind is not OrderKind.RETRACT
        if waits:
            why = rescale_failure(
                job, event.detail, restarts=num_in_row >= RESCALES_FAILED_MAX
            )
            why = self._note_kept(job, event) or why
            status = replace(status, reason=Reason.RESCALE_FAILED, explanation=why)
        job.failed_rescales = FailedRescales(
            num_in_row=num_in_row, waits_for_plan=waits
        )
        hold(
            job,
            at,
            status=status,
            order=replace(answered(job.order), grant=job.running.grant),
        )
        return self._converge(job)

    def _spoils_growth(self, job: JobRecord, event: ReplicasKept) -> bool:
        """Return whether a replica that was to join a larger job failed by itself."""
        larger = job.growth.is_attempt(size_of(job.ordered))
        return event.joiner_failed and larger and self.config.growth_trial_s > 0.0

    def _note_kept(self, job: JobRecord, event: ReplicasKept) -> str:
        """Record a rescale that failed before it began.

        Return the explanation if its size is set aside, else "".
        """
        if not self.config.growth_trial_s:
            return ""
        size = size_of(job.ordered)
        if not self._spoils_growth(job, event):
            job.growth = after_kept(job.growth, size, event.detail)
            return ""
        least = job.spec.replicas.min
        job.growth = after_failed_joiner(
            job.growth, size, event.detail, self._largest_node, least
        )
        failed = job.growth.refuses(size)
        return (
            "" if failed is None else f"trains on as before, {set_aside_text(failed)}"
        )

    @property
    def _largest_node(self) -> int:
        """GPUs of the largest node."""
        return max((node.num_gpus for node in self._nodes()), default=0)

    def _exited(self, event: ReplicasExited) -> list[Command]:
        job = self._answered(event.job, event.generation)
        if job is None:
            return []
        # An exit that a plan ordered is part of this plan. Any other exit needs a new
        # plan.
        foreseen = job.state is JobState.STOPPING and event.outcome is Outcome.STOPPED
        foreseen = (
            foreseen
            and not job.status.cancel_requested
            and job.reason is not Reason.NODE_LOST
        )
        if event.outcome is Outcome.SUCCEEDED:
            why = f"finished; {event.detail}" if event.detail else "finished"
            self._end(job, Trigger.SUCCEEDED, Reason.FINISHED, why)
        elif job.status.cancel_requested:
            # Snapshots of earlier versions have no reason.
            why = job.status.cancel_why or "cancelled on request"
            self._end(job, Trigger.CANCELLED, job.status.cancel_reason, why)
        else:
            self._release(job, event)
        commands = self._converge(job) + ([] if foreseen else self._wake())
        if job.state not in ENDED and job.retry_at:
            commands += self._set_alarm(job.retry_at)
        return commands

    def _release(self, job: JobRecord, event: ReplicasExited) -> None:
        """Release the job's GPUs. The job runs again unless it failed too often."""
        if event.unfit_node and event.unfit_node not in job.unfit_nodes:
            self._avoid(job, event.unfit_node, event.detail)
            return
        if self._is_failed_growth(job, event.outcome):
            self._shrink_to_trained_size(job, event.detail)
            return
        if self._is_failure(job, event.outcome):
            job.usage = job.usage.after_failure()
            if job.usage.num_failures > job.spec.max_failures:
                self._end(
                    job,
                    Trigger.GAVE_UP,
                    Reason.TOO_MANY_FAILURES,
                    failure(job, event.detail),
                )
                return
        rest_s = self._backoff_s(job, event.outcome)
        if event.outcome is Outcome.STOPPED and job.state is not JobState.STOPPING:
            # No stop was ordered: the job could not begin there. The next plan decides.
            job.target = NO_GRANT
        why = (
            release_reason(job, event, rest_s)
            if job.reason is not Reason.NODE_LOST
            else (None, None)
        )
        _end_replicas(job, self.state.at, job.status.after(Trigger.RELEASED, *why))
        if rest_s:
            job.target = NO_GRANT
            job.retry_at = self.state.at + rest_s

    def _backoff_s(self, job: JobRecord, outcome: Outcome) -> float:
        """Return the seconds before a job that failed at once may run again (backoff).

        It is 0 if the job made progress or ran for RETRY_MOST_S.
        """
        got_on = job.measured.progress > job.running.progress_at_start
        ran_s = self.state.at - job.running.since
        if got_on or ran_s >= RETRY_MOST_S or not self._is_failure(job, outcome):
            return 0.0
        return retry_delay_s(job.usage.num_failures, self.config.backoff_first_s)

    def _is_failure(self, job: JobRecord, outcome: Outcome) -> bool:
        if job.reason is Reason.NODE_LOST:
            return False
        # Replicas that are lost or hang without any progress count as failures, else
        # they could be restarted for ever.
        gone = outcome is Outcome.LOST or job.reason is Reason.HUNG
        nowhere = gone and job.measured.progress <= job.running.progress_at_start
        return outcome is Outcome.FAILED or nowhere

    def _avoid(self, job: JobRecord, node: NodeId, detail: str) -> None:
        """Exclude a node that lacks what the job needs. This is no failure of the
        job.
        """
        why = detail.split("\n", 1)[0]
        job.unfit_nodes = {**job.unfit_nodes, node: why}
        job.target = NO_GRANT
        text = (
            f"goes on elsewhere, node {node} is not used for this job any more: {why}"
        )
        status = job.status.after(Trigger.RELEASED, Reason.NODE_UNFIT, text)
        _end_replicas(job, self.state.at, status)

    def _is_failed_growth(self, job: JobRecord, outcome: Outcome) -> bool:
        if job.reason is Reason.NODE_LOST or not self.config.growth_trial_s:
            return False
        hung = job.reason is Reason.HUNG
        lost = outcome is Outcome.LOST and job.state is not JobState.STOPPING
        broke = outcome is Outcome.FAILED or lost or hung
        proven = job.growth.known == job.generation
        return broke and not proven and job.growth.is_attempt(size_of(job.ordered))

    def _shrink_to_trained_size(self, job: JobRecord, detail: str) -> None:
        """After a failure at a larger size, return to the size at which the job last
        trained.
        """
        size = size_of(job.ordered)
        least = job.spec.replicas.min
        if job.reason is Reason.HUNG:
            detail = "it had not reported for too long"
        job.growth = after_failure(job.growth, size, detail, self._largest_node, least)
        assert job.growth.trained is not None
        job.target = cut(job.target, job.growth.trained, least)
        why = growth_failure_text(job.growth, size, detail)
        status = job.status.after(Trigger.RELEASED, Reason.GROWTH_FAILED, why)
        _end_replicas(job, self.state.at, status)
        # A plan that is being computed for the earlier limits is void.
        self.state.solve_at = None

    # -- rounds
    # ----------------------------------------------------------------------------------

    def _timer_fired(self) -> list[Command]:
        state = self.state
        if state.round_due_at is None or state.at < state.round_due_at:
            return []
        state.round_due_at = None
        if not self.state.active:
            return []
        # If a plan is being computed, wait for it, even if a spent budget makes it void
        # below. The next round asks again.
        solving = (
            state.solve_at is not None
            and state.at - state.solve_at < self.config.solve_timeout_s
        )
        # Stop jobs for their costs first. They then have a new order, and no older one
        # is repeated.
        commands = self._enforce_costs()
        if not state.active:
            return commands
        commands += self._check_replicas()
        self._end_backoffs()
        if not solving:
            state.round = state.round + 1
            state.solve_at = state.at
            commands.append(Solve(round=state.round, view=self.view()))
        state.round_at = state.at
        rests = (job.retry_at for job in state.active if job.retry_at)
        return commands + self._set_alarm(min([self._next_round_at(), *rests]))

    def _end_backoffs(self) -> None:
        """Allow plans for the jobs whose backoff after a failure is over."""
        for job in self.state.active:
            if 0.0 < job.retry_at <= self.state.at:
                job.retry_at = 0.0
                self._work.note(job)
                self.state.changed.add(job.id)

    def _plan_ready(self, event: PlanReady) -> list[Command]:
        state = self.state
        if event.round != state.round or state.solve_at is None:
            return []
        state.solve_at = None
        view = self._view or self.view()
        held = current_allocations(view)
        # Remove jobs that ended or were cancelled while the plan was computed. Unknown
        # jobs stay in, so that the check rejects the plan.
        plan = event.plan
        known = event.plan.names_only(held)
        if not known:
            plan = plan.without(
                lambda job: job in state.jobs or job in state.ended,
                beside=held.jobs.keys(),
            )
        try:
            check_plan(view, plan, names_known=known)
        except PlanError as error:
            state.plan_error = str(error)
            return []
        state.plan_error = ""
        plan = self._with_lost_first(plan, view)
        state.diagnostics = plan.diagnostics
        replanned = state.jobs.keys() if self._plan is None else plan.unlike(self._plan)
        state.changed = self._work.unplanned.union(replanned)
        self._work.unplanned = set()
        concerned = [
            state.jobs[job_id] for job_id in state.changed if job_id in state.jobs
        ]
        plan = self._without_unfit(plan, view, concerned)
        for job in concerned:
            barred = job.retry_at or spent_up(job, state)
            if not (job.status.cancel_requested or barred):
                self._set_target(job, plan)
        if self.explains:
            self._explain_waiting(plan, view, concerned)
        self._plan = plan
        self._explain_settling()
        commands = self._converge()
        self._note_blocked()
        return commands

    def _explain_settling(self) -> None:
        """Explain for each job that has not trained since its last change that it gets
        its target later.
        """
        state = self.state
        for job_id in settling(state, self._work.unlike_plan, self.config.settle_s):
            job = state.jobs[job_id]
            if not job.status.cancel_requested and not job.order.grant.satisfies(
                job.target
            ):
                why = f"takes its first step before anything else: {job.explanation}"
                job.status = replace(
                    job.status, reason=Reason.ALLOCATED, explanation=why
                )
                self._work.note(job)
                state.changed.add(job.id)

    def _plan_failed(self, event: PlanFailed) -> list[Command]:
        if event.round == self.state.round and self.state.solve_at is not None:
            self.state.solve_at = None
            self.state.plan_error = event.error
        return []

    def _note_blocked(self) -> None:
        """Explain for each job that waits for GPUs of its target which jobs hold
        them.
        """
        for job in self._work.jobs:
            if job.state is not JobState.PENDING:
                continue
            why = blocked_reason(
                job, self._holders(job), self.state.at, self.config.settle_s
            )
            if why != job.status.blocked:
                job.status = replace(job.status, blocked=why)
                self.state.changed.add(job.id)

    def _holders(self, job: JobRecord) -> list[JobRecord]:
        """Return the jobs that hold more GPUs than their target on a node of `job`'s
        target.
        """
        found: dict[JobId, JobRecord] = {}
        for node in holding(job.target.allocation).nodes:
            for holder_id in self._work.holdings.on(node):
                holder = self.state.jobs[holder_id]
                wanted = holding(holder.target.allocation).by_node.get(node, 0.0)
                if held(holder).by_node.get(node, 0.0) > wanted:
                    found[holder_id] = holder
        return sorted(found.values(), key=_submission_order)

    def _with_lost_first(self, plan: Plan, view: ClusterView) -> Plan:
        """Return the plan in which jobs that lost a node start before jobs that
        wait.
        """
        lost = {job.id: job for job in self.state.active if job.lost_node}
        if lost and self.config.lost_node_first:
            unfit = {job_id: job.unfit_nodes for job_id, job in lost.items()}
            plan = with_lost_first(plan, view, lost.keys(), unfit)
        for job_id, job in lost.items():
            job.lost_node = not plan.allocations.get(job_id)
        return plan

    def _without_unfit(
        self, plan: Plan, view: ClusterView, jobs: list[JobRecord]
    ) -> Plan:
        """Return the plan with no job of `jobs` on a node that is excluded for it."""
        avoiding = [job for job in jobs if job.unfit_nodes]
        if not avoiding:
            return plan
        free = {node.id: node.num_gpus for node in view.nodes}
        for allocation in plan.allocations.values():
            for node, gpus in holding(allocation).by_node.items():
                free[node] -= math.ceil(gpus)
        allocations = dict(plan.allocations)
        batches = dict(plan.batches)
        reasons = dict(plan.reasons)
        for job in sorted(avoiding, key=_submission_order):
            planned = allocations.get(job.id, WAITING)
            given = moved(
                planned,
                job.ordered,
                job.unfit_nodes,
                view.inventory.by_id,
                free=free,
                least=job.spec.replicas.min,
            )
            if given == planned:
                continue
            allocations[job.id] = given
            if given.num_replicas != planned.num_replicas:
                batches.pop(job.id, None)
            if not given:
                del allocations[job.id]
                reasons.pop(job.id, None)
        return dataclasses.replace(
            plan, allocations=allocations, batches=batches, reasons=reasons
        )

    def _set_target(self, job: JobRecord, plan: Plan) -> None:
        if job.failed_rescales.waits_for_plan:
            job.failed_rescales = replace(job.failed_rescales, waits_for_plan=False)
            self._work.note(job)
        target = job.target
        allocation = plan.allocations.get(job.id, WAITING)
        batch = plan.batches.get(job.id)
        wanted = Grant(allocation=allocation, batch=batch)
        given = wanted
        if job.growth.failed and allocation != job.ordered:
            given = within(job.growth, wanted, job.spec.replicas.min)
        if given != target:
            job.target = given
            self._work.note(job)
        reason = job.reason
        count = plural(allocation.num_replicas, "GPU")
        why = plan.reasons.get(job.id) or f"runs on {count}"
        if not allocation.slots:
            return  # _explain_waiting explains it, once all targets are known
        if given != wanted:
            aside = job.growth.refuses(size_of(allocation))
            assert aside is not None  # else it may have what was planned
            what = "gets fewer GPUs than planned" if given else "waits"
            why = f"{what}: {set_aside_text(aside)}"
            reason = Reason.GROWTH_FAILED
        _explain(job, reason, why)

    def explain_waiting(self) -> None:
        """Explain for each job that waits what prevents its start, although `explains`
        is off.
        """
        if self._plan is not None:
            self._explain_waiting(self._plan, self.view(), [])

    def _explain_waiting(
        self, plan: Plan, view: ClusterView, concerned: list[JobRecord]
    ) -> None:
        """Explain for each job that gets no GPUs, or fewer than before, what prevents
        more.
        """
        views = current_allocations(view).jobs
        state = self.state
        given = [
            (each, state.jobs[job_id].target.allocation)
            for job_id, each in views.items()
            if job_id in state.jobs
        ]
        smaller = [
            (job, views[job.id])
            for job in concerned
            if job.id in views
            and job.reason is not Reason.GROWTH_FAILED
            and job.target.allocation.num_replicas > 0
            and job.target.allocation.num_replicas
            < views[job.id].allocation.num_replicas
        ]
        if not smaller and all(allocation.slots for _, allocation in given):
            return
        hindrances = Hindrances(
            view, given, state.away, "" if state.nodes else state.last_lost
        )
        for seen, allocation in given:
            job = state.jobs[seen.id]
            if allocation.slots or plan.allocations.get(job.id):
                continue
            if job.status.cancel_requested or job.retry_at:
                continue
            reason, why = waiting_reason(job, seen, plan, hindrances)
            reason = job.reason if job.state is JobState.STOPPING else reason
            if _explain(job, reason, why):
                state.changed.add(job.id)
        for job, seen in smaller:
            if why := hindrances.of_smaller(seen, job.target.allocation):
                own = plan.reasons.get(job.id, "")
                _explain(job, job.reason, with_own_words(why, own))

    def _restarted(self) -> list[Command]:
        self.state.solve_at = None
        self.state.round_due_at = None
        jobs = self.state.active
        commands = [
            repeat_order(job, self.state.at) for job in jobs if job.state in HOLDING
        ]
        for job in jobs:
            if job.running.reported_at is not None:
                # Reports during the restart are lost: the hang timeout starts again.
                job.running = replace(job.running, reported_at=self.state.at)
            self._work.hear(job)
        return commands + (self._wake() if jobs else [])

    def _configured(self, config: SchedulerConfig) -> list[Command]:
        self.state.config = config
        self._rebuild()  # the default rescale time may differ
        self.state.round_due_at = None
        return self._wake()

    def _tenant_configured(self, tenant: Tenant) -> list[Command]:
        if self.state.tenants.get(tenant.id) == tenant:
            return []
        self.state.tenants[tenant.id] = tenant
        # A plan that is being computed for the earlier quotas is void. The next plan is
        # compared with none, because quotas decide why each job waits.
        self.state.solve_at = None
        self._plan = None
        return self._check_budgets() + self._wake()

    def _check_replicas(self) -> list[Command]:
        """Stop hung jobs. Repeat orders that have no answer, and the last orders of
        jobs whose heartbeat has timed out.
        """
        at = self.state.at
        retry_s = self.config.retry_s
        silence_s = self.config.silence_s
        concerned = {*self._work.moving, *self._work.heartbeats.timed_out(at)}
        jobs = sorted(
            (self.state.jobs[job_id] for job_id in concerned), key=_submission_order
        )
        holding = [job for job in jobs if job.status.state in HOLDING]
        commands = self._stop_hung(holding)
        for job in holding:
            sent_at = job.order.sent_at
            since, most_s = (
                (job.heard_at, silence_s) if sent_at is None else (sent_at, retry_s)
            )
            if at - since >= most_s:
                commands.append(repeat_order(job, at))
                self._work.hear(job)
        return commands

    def _stop_hung(self, jobs: list[JobRecord]) -> list[Command]:
        """Stop jobs that have reported, but not within their hang_timeout. They may
        start again at once.
        """
        at = self.state.at
        commands: list[Command] = []
        for job in jobs:
            allowed_s = job.spec.hang_timeout_s
            last_at = job.running.reported_at
            if (
                last_at is None
                or at - last_at < allowed_s
                or job.state is not JobState.RUNNING
            ):
                continue
            commands.append(stop(job, at))
            job.status = replace(
                job.status,
                reason=Reason.HUNG,
                explanation=hang(at - last_at, allowed_s),
            )
            self._work.note(job)
        return commands

    def _wake(self) -> list[Command]:
        """Bring the next round forward after an event that a plan should react to."""
        reaction_s = self.config.reaction_s
        at = self._next_round_at() if reaction_s is None else self.state.at + reaction_s
        return self._set_alarm(at) if self.state.active else []

    def _next_round_at(self) -> float:
        """Return the first whole multiple of round_s that is not before now and after
        the last round.
        """
        return next_multiple(
            self.config.round_s, after=self.state.round_at, not_before=self.state.at
        )

    def _set_alarm(self, at: float) -> list[Command]:
        if self.state.round_due_at is not None and self.state.round_due_at <= at:
            return []
        self.state.round_due_at = at
        return [SetAlarm(at=at)]

    # -- shared
    # ----------------------------------------------------------------------------------

    def _answered(self, job_id: JobId, generation: int) -> JobRecord | None:
        """Return the job if `generation` is that of its last order and its replicas
        may be alive, else None.
        """
        job = self._training(job_id, generation)
        return job if job is not None and job.generation == generation else None

    def _training(self, job_id: JobId, generation: int) -> JobRecord | None:
        """Return the job if replicas of `generation` may train now, else None."""
        job = self.state.jobs.get(job_id)
        trains = (
            job is not None
            and job.status.state in HOLDING
            and may_train(job, generation)
        )
        return job if trains else None

    def _rebuild(self) -> None:
        """Recompute what depends on the nodes and on what jobs hold."""
        nodes = self._nodes()
        self._work = Worklist(nodes, self.state.active, self.config.silence_s)
        self._views = JobViews(self._nodes_to_use())

    def _nodes(self) -> tuple[Node, ...]:
        return tuple(self.state.nodes[node] for node in sorted(self.state.nodes))

    def _nodes_to_use(self) -> tuple[Node, ...]:
        """Return the nodes that policies see: all but those that are leaving."""
        nodes = self._nodes()
        buying = self.state.buying
        if buying is None or not buying.leaving:
            return nodes
        return tuple(node for node in nodes if node.id not in buying.leaving)

    def _converge(self, *changed: JobRecord) -> list[Command]:
        self._view = None
        for job in changed:
            if job.state not in ENDED:
                self._work.note(job)
        return converge(self.state, self._work, self.config)

    def _end(
        self, job: JobRecord, trigger: Trigger, reason: Reason, explanation: str
    ) -> None:
        _end_replicas(
            job, self.state.at, job.status.after(trigger, reason, explanation)
        )
        job.ended_at = self.state.at
        job.target = NO_GRANT
        del self.state.active[
            bisect_left(
                self.state.active, _submission_order(job), key=_submission_order
            )
        ]
        self._work.forget(job.id)
        self._departed.append(job.id)
        if not self.state.active:
            self.state.round_due_at = None

    def _forget_departed(self) -> None:
        """Remove the jobs that ended with the last event. The ids and final states of
        the last ENDED_KEPT jobs are kept.
        """
        jobs = self.state.jobs
        ended = self.state.ended
        ended.update((job_id, jobs.pop(job_id).state) for job_id in self._departed)
        self._departed = []
        while len(ended) > ENDED_KEPT:
            del ended[next(iter(ended))]


def _explain(job: JobRecord, reason: Reason, why: str) -> bool:
    """Set the job's reason and explanation, and return whether they changed."""
    if (reason, why, "") == (job.reason, job.explanation, job.status.blocked):
        return False
    job.status = replace(job.status, reason=reason, explanation=why, blocked="")
    return True


def _end_replicas(job: JobRecord, at: float, status: Status) -> None:
    """Record that `job` has no replicas and no open order from instant `at` on."""
    order = replace(answered(job.order), grant=NO_GRANT)
    hold(
        job,
        at,
        status=status,
        order=order,
        running=replace(job.running, grant=NO_GRANT),
    )


def _submission_order(job: JobRecord) -> tuple[float, JobId]:
    """Return the sort key of the order of submission."""
    return (job.submitted_at, job.id)
