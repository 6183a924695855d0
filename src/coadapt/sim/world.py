"""The simulated executor: it trains jobs by the true speeds of their applications, and
keeps its own ledger of GPUs.

It talks to the core only through the ports of `runtime.ports`, as a real executor does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import assert_never

from coadapt.core.commands import JobCommand, Rescale, RetractRescale, Start, Stop
from coadapt.core.events import (
    NodeJoined,
    NodeLost,
    Outcome,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.instants import next_multiple
from coadapt.model import Allocation, ApplicationTimes, JobId, Node, NodeId
from coadapt.model.checkpoint_period import checkpoint_period_s
from coadapt.model.measured import SAVE_S
from coadapt.runtime.ports import Cancel, Clock, Post
from coadapt.sim.agent import (
    Assignment,
    ForecastAt,
    Oracle,
    Segment,
    Training,
    advance,
    assign,
    assignment,
    report,
)
from coadapt.sim.applications import Application, Neighbour, Setting
from coadapt.sim.ledger import Ledger
from coadapt.sim.workload import TraceJob
from coadapt.sim.world_config import WorldConfig


@dataclass(slots=True, kw_only=True)
class _Replicas:
    """The live replicas of a job, of one generation.

    training: the training at instant `since`. segment: the training after it, computed
    ahead at `speed`. cancel_exit, cancel_rescaled: cancel planned events.
    cancel_change: cancels a change for which joining replicas prepare. hung: the
    replicas hold their GPUs and do not train.
    """

    generation: int
    assigned: Assignment
    allocation: Allocation
    post: Post
    training: Training
    since: float
    speed: float = 1.0
    segment: Segment | None = None
    cancel_exit: Cancel | None = None
    cancel_rescaled: Cancel | None = None
    cancel_change: Cancel | None = None
    hung: bool = False


@dataclass(slots=True, kw_only=True)
class _Job:
    """One job of the simulation.

    generation: the highest one seen. replicas: None if none live. outcome: how the last
    replicas ended. detail: why they ended, or why a change did not come about. saved:
    the last checkpoint.
    """

    trace: TraceJob
    application: Application
    forecast: ForecastAt
    generation: int = 0
    replicas: _Replicas | None = None
    outcome: Outcome = Outcome.STOPPED
    detail: str = ""
    saved: Training = field(default_factory=Training)
    saved_at: float = 0.0


@dataclass(slots=True)
class _Ahead:
    """How far training is computed ahead.

    until: the instant of the next reports, None if nothing is computed. unsettled: jobs
    whose future must be computed again.
    """

    until: float | None = None
    unsettled: dict[JobId, _Job] = field(default_factory=dict)


class World:
    """The port Executor over a virtual clock, with methods that inject faults.

    Each job's training is computed ahead from one report to the next, by pure
    functions. If something disturbs the job earlier, its training is computed again up
    to that instant.
    """

    def __init__(
        self,
        clock: Clock,
        jobs: Sequence[TraceJob],
        applications: Mapping[str, Application],
        oracle: Oracle,
        config: WorldConfig | None = None,
    ) -> None:
        self.config = config or WorldConfig()
        self.ledger = Ledger()
        # Jobs whose rescales fail during their preparation.
        self.joiners_fail: set[JobId] = set()
        # Step times of the application in the answer to a report.
        self.application_times_of: Callable[[JobId], ApplicationTimes | None] = (
            lambda _: None
        )
        # Expected losses of any node of the job in an hour, in the answer to a report.
        self.hazard_of: Callable[[JobId], float] = lambda _: 0.0
        self._clock = clock
        self._oracle = oracle
        self._jobs = {
            job.id: _Job(
                trace=job,
                application=application,
                forecast=oracle.of(application, job.spec),
            )
            for job, application in (
                (job, applications[job.application]) for job in jobs
            )
        }
        self._running: dict[JobId, _Job] = {}
        self._sharing: set[JobId] = set()  # the running jobs that share GPUs
        self._ahead = _Ahead()

    # -- the port
    # ----------------------------------------------------------------------------------

    @property
    def rescales_in_place(self) -> bool:
        return self.config.rescales_in_place

    def execute(self, command: JobCommand, post: Post) -> None:
        """Carry out an order at once.

        A repeated order is answered with the present state of its generation. An order
        of an older generation is ignored.
        """
        job = self._jobs[command.job]
        if command.generation < job.generation:
            return
        repeated = command.generation == job.generation
        job.generation = command.generation
        if job.replicas is not None and not repeated:
            job.detail = ""
        match command:
            case Stop():
                self._stop(job, post)
            case RetractRescale():
                self._keep(job)
                self._answer(job, post)
            case _ if repeated:
                self._answer(job, post)
            case Start():
                assert job.replicas is None, (
                    f"two generations of job {command.job} at once"
                )
                self._start(job, command, post)
            case Rescale():
                self._rescale(job, command, post)
            case _:
                assert_never(command)

    # -- fault injection
    # ----------------------------------------------------------------------

    def crash(
        self, job_id: JobId, outcome: Outcome = Outcome.LOST, detail: str = "crashed"
    ) -> bool:
        """End the job's replicas at once. Training since the last checkpoint is lost.

        Return False if the job has no replicas.
        """
        job = self._jobs[job_id]
        if job.replicas is None:
            return False
        self._answer(job, self._end(job, outcome, detail))
        return True

    def hang(self, job_id: JobId) -> None:
        """Hang the job's replicas: until they end they neither train nor report."""
        job = self._jobs[job_id]
        assert job.replicas is not None
        self._cut(job)
        job.replicas.hung = True
        if job.replicas.cancel_rescaled is not None:
            job.replicas.cancel_rescaled()
        if job.replicas.cancel_change is not None:
            self._fail_to_join(job, job.replicas.post)

    def lose_node(
        self, node_id: NodeId, post: Post, why_lost: str = "was lost"
    ) -> None:
        """Remove a node. Jobs that train on it end, and prepared changes that need it
        are given up.
        """
        why = f"node {node_id} went away"
        touched = [
            self._jobs[job_id] for job_id in sorted(self.ledger.jobs_on(node_id))
        ]
        posts = []
        for job in touched:
            assert job.replicas is not None
            posts.append(job.replicas.post)
            if job.replicas.allocation.on(node_id):
                self._end(job, Outcome.LOST, why)
            else:
                self._keep(job, why)
        self.ledger.remove(node_id)
        post(NodeLost(at=self._clock.now(), node=node_id, why=why_lost))
        for job, job_post in zip(touched, posts, strict=True):
            self._answer(job, job_post)

    def restore_node(self, node: Node, post: Post) -> None:
        """Add an empty node, at the beginning or after it was lost."""
        self.ledger.add(node)
        post(NodeJoined(at=self._clock.now(), node=node))

    def alive(self) -> dict[JobId, int]:
        """Return the generation that trains of each job that has replicas."""
        return {
            job_id: job.replicas.generation
            for job_id, job in self._running.items()
            if job.replicas is not None
        }

    def num_replicas(self, job_id: JobId) -> int:
        """Return how many replicas of the job live."""
        replicas = self._jobs[job_id].replicas
        return 0 if replicas is None else replicas.allocation.num_replicas

    # -- orders
    # ----------------------------------------------------------------------------------

    def _start(self, job: _Job, command: Start, post: Post) -> None:
        if missing := self.ledger.missing(command.allocation):
            job.outcome = Outcome.LOST
            job.detail = f"node {missing[0]} is down"
            self._answer(job, post)
            return
        self._run(job, command, self._checkpoint(job), self._rescale_s(job), post)
        self._measure_rescale(job, self._rescale_s(job), post)
        self._answer(job, post)

    def _rescale(self, job: _Job, command: Rescale, post: Post) -> None:
        replicas = job.replicas
        if replicas is None:
            self._answer(job, post)
            return
        if missing := self.ledger.missing(command.allocation):
            job.detail = f"node {missing[0]} is down"
            self._answer(job, post)
            return
        if replicas.hung:
            job.detail = "its replicas do not answer"
            self._answer(job, post)
        elif self.config.prepare_s:
            self._prepare(job, replicas, command, post)
        else:
            self._change(job, replicas, command, post)

    def _prepare(
        self, job: _Job, replicas: _Replicas, command: Rescale, post: Post
    ) -> None:
        """Hold the GPUs of both allocations while joining replicas prepare.

        Then the change happens. If the joining replicas fail, they do so halfway.
        """
        prepare_s = self.config.prepare_s
        job_id = job.trace.id
        self.ledger.take_more(job_id, command.allocation)
        self._disturb_neighbours()
        ready_at = self._clock.now() + prepare_s
        change = partial(self._change, job, replicas, command, post)
        if job_id in self.joiners_fail:
            ready_at -= prepare_s / 2.0
            change = partial(self._fail_to_join, job, post)
        replicas.cancel_change = self._clock.call_at(ready_at, change)

    def _fail_to_join(self, job: _Job, post: Post) -> None:
        self._keep(job, "a replica that was to join failed")
        self._answer(job, post)

    def _keep(self, job: _Job, detail: str = "") -> None:
        """Retract the change that is being prepared, if there is one."""
        replicas = job.replicas
        if replicas is None or replicas.cancel_change is None:
            return
        replicas.cancel_change()
        replicas.cancel_change = None
        job.detail = detail
        self.ledger.release(job.trace.id)
        self.ledger.take(job.trace.id, replicas.allocation)
        self._disturb_neighbours()

    def _change(
        self, job: _Job, replicas: _Replicas, command: Rescale, post: Post
    ) -> None:
        training = self._cut(job)
        self._forget(job)
        same = command.allocation == replicas.allocation
        delay_s = training.delay_s if same else self._rescale_s(job)
        self._run(job, command, training, delay_s, post)
        if delay_s or not same:
            self._measure_rescale(job, delay_s, post)
        self._answer(job, post)

    def _stop(self, job: _Job, post: Post) -> None:
        if job.replicas is None:
            self._answer(job, post)
            return
        if not job.replicas.hung:
            job.saved = self._cut(job)
            job.saved_at = self._clock.now()
        self._end(job, Outcome.STOPPED)
        self._answer(job, post)

    def _run(
        self,
        job: _Job,
        command: Start | Rescale,
        training: Training,
        delay_s: float,
        post: Post,
    ) -> None:
        now = self._clock.now()
        allocation = command.allocation
        self.ledger.take(command.job, allocation)
        assigned = assignment(
            job.application,
            command.spec,
            self._setting(command.job, allocation),
            command.batch,
        ).with_times(self.application_times_of(command.job))
        job.replicas = _Replicas(
            generation=command.generation,
            assigned=assigned,
            allocation=allocation,
            post=post,
            training=assign(job.application, assigned, training, delay_s),
            since=now,
        )
        self._running[command.job] = job
        if allocation.shared:
            self._sharing.add(command.job)
        self._unsettle(job)
        self._disturb_neighbours()

    def _measure_rescale(self, job: _Job, delay_s: float, post: Post) -> None:
        """Post the cost of the rescale when its delay is over."""
        assert job.replicas is not None
        rescaled = TrainingResumed(
            at=self._clock.now() + delay_s,
            job=job.trace.id,
            generation=job.generation,
            rescale_s=self._rescale_s(job),
        )
        job.replicas.cancel_rescaled = self._clock.call_at(
            rescaled.at, lambda: post(rescaled)
        )

    def _rescale_s(self, job: _Job) -> float:
        own_s = job.trace.rescale_s
        return self.config.rescale_s if own_s is None else own_s

    def _checkpoint(self, job: _Job) -> Training:
        """Return the training to start from.

        If the cluster has several GPU types, a new job was timed on each of them.
        """
        types = self.ledger.gpu_types
        if len(types) < 2 or job.saved.learned.timed:
            return job.saved
        return replace(
            job.saved, learned=self._oracle.first_look(job.application, types)
        )

    def _answer(self, job: _Job, post: Post) -> None:
        """Post the present state of the job's generation, unless a change is still
        being prepared.
        """
        now = self._clock.now()
        job_id = job.trace.id
        generation = job.generation
        detail = job.detail
        if job.replicas is None:
            post(
                ReplicasExited(
                    at=now,
                    job=job_id,
                    generation=generation,
                    outcome=job.outcome,
                    detail=detail,
                )
            )
        elif job.replicas.generation == generation:
            post(ReplicasStarted(at=now, job=job_id, generation=generation))
        elif job.replicas.cancel_change is None:
            post(ReplicasKept(at=now, job=job_id, generation=generation, detail=detail))

    def _end(self, job: _Job, outcome: Outcome, detail: str = "") -> Post:
        """End the job's replicas, and return where to post that."""
        assert job.replicas is not None
        post = job.replicas.post
        self._forget(job)
        job.outcome = outcome
        job.detail = detail
        return post

    def _forget(self, job: _Job) -> None:
        """Remove the job's replicas and free their GPUs."""
        assert job.replicas is not None
        replicas = job.replicas
        for cancel in (
            replicas.cancel_exit,
            replicas.cancel_rescaled,
            replicas.cancel_change,
        ):
            if cancel is not None:
                cancel()
        job.replicas = None
        del self._running[job.trace.id]
        self._sharing.discard(job.trace.id)
        self.ledger.release(job.trace.id)
        self._disturb_neighbours()

    # -- time
    # ----------------------------------------------------------------------------------

    def _disturb_neighbours(self) -> None:
        """Recompute the future of jobs whose speed changed because another job on their
        nodes or GPUs started or ended.
        """
        if not (self.config.interference or self._sharing):
            return
        for job_id, job in self._running.items():
            replicas = job.replicas
            if replicas is None:
                continue
            slowed = bool(self.config.interference) and replicas.speed != self._speed(
                replicas.allocation
            )
            if slowed or replicas.assigned.setting.neighbours != self._neighbours(
                job_id, replicas.allocation
            ):
                self._cut(job)
                self._unsettle(job)

    def _cut(self, job: _Job) -> Training:
        """Bring the job's training to the present instant, and return it."""
        replicas = job.replicas
        now = self._clock.now()
        assert replicas is not None
        if replicas.hung:
            return replicas.training
        if replicas.cancel_exit is not None:
            replicas.cancel_exit()
            replicas.cancel_exit = None
        if now > replicas.since:
            assert replicas.segment is not None, "every instant ends settled"
            if now != self._ahead.until:
                replicas.segment = self._advance(job, replicas, now - replicas.since)
            replicas.training = replicas.segment.training
            replicas.since = now
        replicas.segment = None
        return replicas.training

    def _unsettle(self, job: _Job) -> None:
        # Futures are computed at the end of the instant, after all orders, so that few
        # are computed in vain.
        if not self._ahead.unsettled:
            self._clock.call_at(self._clock.now(), self._settle, last=True)
        self._ahead.unsettled[job.trace.id] = job

    def _settle(self) -> None:
        """Compute the jobs' training up to the next report, and schedule the exits of
        jobs that end before it.
        """
        unsettled, self._ahead.unsettled = self._ahead.unsettled, {}
        now = self._clock.now()
        if self._ahead.until is None:
            self._ahead.until = next_multiple(self.config.report_s, after=now)
            self._clock.call_at(self._ahead.until, self._report)
        for job in unsettled.values():
            if (replicas := job.replicas) is not None and not replicas.hung:
                if self.config.interference:
                    replicas.speed = self._speed(replicas.allocation)
                if replicas.allocation.shared:
                    self._see_neighbours(job, replicas)
                replicas.segment = segment = self._advance(
                    job, replicas, self._ahead.until - now
                )
                if segment.finished_s is not None:
                    replicas.cancel_exit = self._clock.call_at(
                        now + segment.finished_s, partial(self._succeed, job)
                    )

    def _advance(self, job: _Job, replicas: _Replicas, seconds: float) -> Segment:
        return advance(
            job.application,
            replicas.assigned,
            replicas.training,
            seconds,
            replicas.speed,
        )

    def _speed(self, allocation: Allocation) -> float:
        """Return a job's speed over its full speed, by the distributed jobs on its
        nodes.
        """
        if not self.config.interference or allocation.num_nodes < 2:
            return 1.0
        distributed = {
            job_id
            for job_id, job in self._running.items()
            if job.replicas is not None and job.replicas.allocation.num_nodes > 1
        }
        shares = any(
            len(self.ledger.jobs_on(node) & distributed) > 1
            for node, _ in allocation.slots
        )
        return 1.0 - self.config.interference if shares else 1.0

    def _setting(self, job_id: JobId, allocation: Allocation) -> Setting:
        """Return where the job trains. Every valid plan uses one GPU type per job."""
        return Setting(
            placement=allocation.placement(self.ledger.nodes),
            gpu_type=self.ledger.nodes[allocation.slots[0][0]].gpu_type,
            gpu_share=allocation.gpu_share,
            neighbours=self._neighbours(job_id, allocation),
        )

    def _neighbours(
        self, job_id: JobId, allocation: Allocation
    ) -> tuple[Neighbour, ...]:
        """Return the neighbours on the most loaded GPU of `allocation`, for which all
        replicas wait.
        """
        if not allocation.shared:
            return ()
        by_gpu = [
            tuple(
                Neighbour(other.application.name, other.application.load)
                for other in (self._jobs[each] for each in on_gpu)
            )
            for on_gpu in self.ledger.neighbours(job_id, allocation)
        ]
        return max(by_gpu, key=lambda beside: sum(each.load for each in beside))

    def _see_neighbours(self, job: _Job, replicas: _Replicas) -> None:
        setting = replicas.assigned.setting
        neighbours = self._neighbours(job.trace.id, replicas.allocation)
        if setting.neighbours != neighbours:
            beside = replace(setting, neighbours=neighbours)
            replicas.assigned = replicas.assigned.with_setting(beside)

    def _succeed(self, job: _Job) -> None:
        assert job.replicas is not None
        assert job.replicas.segment is not None
        job.saved = job.replicas.segment.training
        self._answer(job, self._end(job, Outcome.SUCCEEDED))

    def _report(self) -> None:
        """Let all running jobs save and report, and schedule the next reports."""
        now = self._clock.now()
        for job in list(self._running.values()):
            replicas = job.replicas
            if (
                replicas is None
                or replicas.segment is None
                or replicas.segment.finished_s is not None
            ):
                continue  # it ends at this very instant
            training = self._cut(job)
            self._unsettle(job)
            forecast = job.forecast(training.epoch, training.progress, training.samples)
            measured = report(job.application, replicas.assigned, training, forecast)
            if now - job.saved_at >= self._period_s(job.trace.id):
                self._save(job, replicas)
            if self.config.save_s:
                metrics = {**measured.metrics, SAVE_S: self.config.save_s}
                measured = replace(measured, metrics=metrics)
            replicas.post(
                TrainingReported(
                    at=now,
                    job=job.trace.id,
                    generation=replicas.generation,
                    report=measured,
                )
            )
            replicas.assigned = replicas.assigned.with_times(
                self.application_times_of(job.trace.id)
            )
        self._ahead.until = None

    def _period_s(self, job_id: JobId) -> float:
        """Return the least time between two checkpoints of a job."""
        hazard_per_h = self.hazard_of(job_id) if self.config.save_s else 0.0
        if not hazard_per_h:
            return self.config.checkpoint_s
        best_s = checkpoint_period_s(self.config.save_s, hazard_per_h)
        return max(best_s, self.config.checkpoint_s)

    def _save(self, job: _Job, replicas: _Replicas) -> None:
        """Take a checkpoint of the job's training at this instant."""
        job.saved = replicas.training
        job.saved_at = self._clock.now()
        if self.config.save_s:
            delay_s = replicas.training.delay_s + self.config.save_s
            replicas.training = replace(replicas.training, delay_s=delay_s)
