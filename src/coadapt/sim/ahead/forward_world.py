"""The executor of a forecast: jobs progress at the rates known of them, and end."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from coadapt.core.commands import JobCommand, Rescale, RetractRescale, Start, Stop
from coadapt.core.events import (
    Outcome,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import HOLDING, JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import Allocation, JobId, Node, NodeId, TrainingReport
from coadapt.model.prices import HOUR_S
from coadapt.runtime.ports import Cancel, Post
from coadapt.sim.ahead.remainder import Remainder, Source
from coadapt.sim.clock import VirtualClock

# Reports take most of the time of a forecast. They tell the scheduler that a job lives,
# and the progress of one whose step times were measured; that of another one is not
# known between its start and its end. So its reports become rare. In a forecast for
# many jobs, all are rarer.
#
# A live job reports every 30 s. Where several rigid jobs have about equally much left,
# castor stops the one that seems to have more, so the age of reports matters. With the
# true lengths, six moments of the rigid mix under castor and 18 starts: with reports
# every 15 s each start was forecast to the minute; every 30 s, two were 19 and 20 min
# late; every 120 s, another one came 64 min too early, too.
REPORT_S = 15.0
REPORT_PER_JOB_S = 0.3
REPORT_LATER_S = 300.0
REPORT_RARE_S = 1_800.0
# In the first hour minutes matter.
SOON_S = 3_600.0
# What a start or a rescale costs a job where none of any live job was measured.
START_S = 15.0


@dataclass(slots=True, kw_only=True)
class _Alive:
    """A generation that trains from `since` (s) on, at `rate` units a second.

    It has held its GPUs since `held_since` (s), at a price of `per_h` an hour.
    """

    generation: int
    allocation: Allocation
    held_since: float
    per_h: float
    since: float
    rate: float
    cancel_end: Cancel
    cancel_report: Cancel


class ForwardWorld:
    """The port Executor over a virtual clock, from a live state on.

    started_at, ended_at: of jobs whose replicas started, or ended well, s. sizes: the
    replicas that each job had, in order. costs: of the GPUs that each job held until it
    ended, where prices are known.
    """

    def __init__(
        self,
        clock: VirtualClock,
        state: SchedulerState,
        remainders: MutableMapping[JobId, Remainder],
    ) -> None:
        self.started_at: dict[JobId, float] = {}
        self.ended_at: dict[JobId, float] = {}
        self.sizes: dict[JobId, list[int]] = {}
        self.costs: dict[JobId, float] = {}
        self._prices = state.prices
        self._clock = clock
        self._begun_at = clock.now()
        # The scheduler's own: nodes may come and go.
        self._nodes: Mapping[NodeId, Node] = state.nodes
        self._remainders = remainders
        self._left: dict[JobId, float] = {}
        self._done: dict[JobId, float] = {}
        self._alive: dict[JobId, _Alive] = {}
        self._report_s = max(REPORT_S, REPORT_PER_JOB_S * len(state.active))
        self._report_s = min(self._report_s, REPORT_LATER_S)
        self._start_s = _mean_start_s(state)
        self.rescales_in_place = state.config is None or state.config.rescale_in_place

    def expect(self, job: JobId, left: float) -> None:
        """Note what is left of a job, in its own units, before its replicas start."""
        self._left[job] = left
        self._done[job] = 0.0

    def adopt(self, state: SchedulerState, post: Post) -> None:
        """Take over the replicas that train already."""
        for job in state.active:
            trains = job.status.state in HOLDING and job.trains_on
            if trains and job.status.state is not JobState.STARTING:
                delay_s = self._delay_s(job)
                self._run(job.id, job.running.generation, job.trains_on, delay_s, post)

    def _delay_s(self, job: JobRecord) -> float:
        """Return the seconds until replicas that run already train; negative if they
        have trained since the report that says what is left of the job.
        """
        now = self._clock.now()
        reported_at = job.running.reported_at
        if reported_at is None:
            train_at = job.running.since + self._cost_s(job.id)
            return max(train_at - now, 0.0)
        is_timed = self._remainders[job.id].source is Source.TIMED
        return min(reported_at - now, 0.0) if is_timed else 0.0

    def execute(self, command: JobCommand, post: Post) -> None:
        """Carry out an order; answer a repeated one with its generation's state."""
        alive = self._alive.get(command.job)
        match command:
            case Start():
                self._start(alive, command, post)
            case Rescale():
                self._rescale(alive, command, post)
            case RetractRescale():
                kept = ReplicasKept(
                    at=self._clock.now(), job=command.job, generation=command.generation
                )
                post(kept)
            case Stop():
                self._halt(command.job)
                self._exit(command.job, command.generation, Outcome.STOPPED, post)

    def _start(self, alive: _Alive | None, command: Start, post: Post) -> None:
        if alive is not None:
            self._answer_started(command.job, alive.generation, post)
            return
        delay_s = self._cost_s(command.job)
        self._run(command.job, command.generation, command.allocation, delay_s, post)
        self._answer_started(command.job, command.generation, post)
        self._resume_later(command.job, command.generation, delay_s, post)

    def _cost_s(self, job: JobId) -> float:
        measured_s = self._remainders[job].view.usage.costs.mean_s
        return self._start_s if measured_s is None else measured_s

    def _rescale(self, alive: _Alive | None, command: Rescale, post: Post) -> None:
        if alive is None:
            self._exit(command.job, command.generation, Outcome.STOPPED, post)
            return
        if alive.generation != command.generation:
            self._halt(command.job)
            delay_s = self._cost_s(command.job)
            self._run(
                command.job, command.generation, command.allocation, delay_s, post
            )
            self._resume_later(command.job, command.generation, delay_s, post)
        self._answer_started(command.job, command.generation, post)

    def _run(
        self,
        job: JobId,
        generation: int,
        allocation: Allocation,
        delay_s: float,
        post: Post,
    ) -> None:
        now = self._clock.now()
        self.started_at.setdefault(job, now)
        self.sizes.setdefault(job, []).append(allocation.num_replicas)
        rate = self._remainders[job].rate(allocation, self._nodes)
        since = now + delay_s
        alive = _Alive(
            generation=generation,
            allocation=allocation,
            held_since=now,
            per_h=self._per_h(allocation),
            since=since,
            rate=rate,
            cancel_end=_nothing,
            cancel_report=_nothing,
        )
        self._alive[job] = alive
        self._end_later(job, alive, post)
        spec = self._remainders[job].view.spec
        first_s = min(self._report_s, spec.hang_timeout_s / 2.0)
        self._report_later(job, alive, first_s, post)

    def _per_h(self, allocation: Allocation) -> float:
        """Return what an allocation costs per hour; 0 where no prices are known."""
        if self._prices is None:
            return 0.0
        gpus: dict[str, float] = {}
        for node_id, count in allocation.slots:
            node = self._nodes.get(node_id)
            gpu_type = "" if node is None else node.gpu_type
            held = gpus.get(gpu_type, 0.0)
            gpus[gpu_type] = held + count * allocation.gpu_share
        return self._prices.per_h(gpus)

    def _report_later(
        self, job: JobId, alive: _Alive, apart_s: float, post: Post
    ) -> None:
        def report() -> None:
            self._book(job, alive)
            self._grow(job, alive, post)
            measured = self._remainders[job].view.measured
            timed = bool(measured.by_type)
            progress = measured.progress + (self._done[job] if timed else 0.0)
            post(
                TrainingReported(
                    at=self._clock.now(),
                    job=job,
                    generation=alive.generation,
                    report=TrainingReport(
                        progress=progress,
                        progress_target=measured.progress_target,
                        by_type=measured.by_type,
                        grad=measured.grad,
                    ),
                )
            )
            if self._alive.get(job) is alive:
                self._report_later(job, alive, self._next_apart_s(job, apart_s), post)

        when = max(self._clock.now(), alive.since + apart_s)
        alive.cancel_report = self._clock.call_at(when, report)

    def _next_apart_s(self, job: JobId, apart_s: float) -> float:
        """Return the seconds to the next report, after one that came `apart_s` after
        the one before it.
        """
        view = self._remainders[job].view
        longest_s = REPORT_RARE_S
        if view.measured.by_type:
            soon = self._clock.now() - self._begun_at < SOON_S
            longest_s = self._report_s if soon else REPORT_LATER_S
        # A job that is silent for longer is stopped.
        longest_s = min(longest_s, view.spec.hang_timeout_s / 2.0)
        return min(2.0 * apart_s, longest_s)

    def _end_later(self, job: JobId, alive: _Alive, post: Post) -> None:
        """Let a job end at its present speed, if it has one."""
        alive.cancel_end()
        alive.cancel_end = _nothing
        if alive.rate > 0.0:
            left = max(self._left[job] - self._done[job], 0.0)
            when = alive.since + left / alive.rate
            alive.cancel_end = self._clock.call_at(when, partial(self._end, job, post))

    def _grow(self, job: JobId, alive: _Alive, post: Post) -> None:
        """Give a job the gradient noise that it has by now, and the speed with it."""
        known = self._remainders[job]
        left = self._left[job]
        share = min(self._done[job] / left, 1.0) if left else 1.0
        grown = known.grown(share)
        if grown is not known:
            self._remainders[job] = grown
            alive.rate = grown.rate(alive.allocation, self._nodes)
            self._end_later(job, alive, post)

    def _book(self, job: JobId, alive: _Alive) -> None:
        now = self._clock.now()
        trained_s = max(now - alive.since, 0.0)
        self._done[job] += trained_s * alive.rate
        alive.since = max(now, alive.since)

    def _halt(self, job: JobId) -> None:
        alive = self._alive.pop(job, None)
        if alive is not None:
            self._book(job, alive)
            held_h = (self._clock.now() - alive.held_since) / HOUR_S
            self.costs[job] = self.costs.get(job, 0.0) + alive.per_h * held_h
            alive.cancel_end()
            alive.cancel_report()

    def _end(self, job: JobId, post: Post) -> None:
        generation = self._alive[job].generation
        self._halt(job)
        self.ended_at[job] = self._clock.now()
        self._exit(job, generation, Outcome.SUCCEEDED, post)

    def _exit(self, job: JobId, generation: int, outcome: Outcome, post: Post) -> None:
        if job in self.ended_at:
            outcome = Outcome.SUCCEEDED
        post(
            ReplicasExited(
                at=self._clock.now(), job=job, generation=generation, outcome=outcome
            )
        )

    def _answer_started(self, job: JobId, generation: int, post: Post) -> None:
        post(ReplicasStarted(at=self._clock.now(), job=job, generation=generation))

    def _resume_later(
        self, job: JobId, generation: int, delay_s: float, post: Post
    ) -> None:
        def resumed() -> None:
            alive = self._alive.get(job)
            if alive is not None and alive.generation == generation:
                post(
                    TrainingResumed(
                        at=self._clock.now(),
                        job=job,
                        generation=generation,
                        rescale_s=delay_s,
                    )
                )

        self._clock.call_at(self._clock.now() + delay_s, resumed)


def _mean_start_s(state: SchedulerState) -> float:
    """Return what a start or a rescale cost the live jobs, on average over the jobs."""
    known = [job.usage.costs.mean_s for job in state.active]
    measured = [each for each in known if each is not None]
    return fmean(measured) if measured else START_S


def _nothing() -> None:
    """Cancel nothing."""
