"""The round loop of the Shockwave artifact (NSDI'23), for policies that answer views:
whole steps and all.

Our own simulator trains in continuous time; this one counts iterations as the artifact
does, so that what it publishes must come out where a policy decides as its own does.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import mean

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    BatchMode,
    ClusterView,
    Forecast,
    Grant,
    JobId,
    JobSpec,
    JobView,
    Measured,
    Node,
    ReplicaLimits,
    RescaleContract,
    Usage,
)
from coadapt.policies import Policy
from coadapt.sim.metrics import UNFAIR_ABOVE
from coadapt.sim.traces.batch_schedules import LARGEST, batches
from coadapt.sim.traces.shockwave import (
    DATASET,
    FORCED_END,
    ROUND_S,
    Kind,
    SelfPacedApplication,
    Throughputs,
)
from coadapt.sim.workload import Workload

# A start costs 20 s of a round in which the job trains for longer than 115 s, but for
# the first two rounds.
START_S = 20.0
SHORT_S = 115.0
TABLE_EPOCHS = 760  # how far the artifact evaluates a noise-scale schedule
NUM_FAILURES_MAX = 5  # rounds without a step after which a job is ended


@dataclass(slots=True)
class _Job:
    """One job. Steps are iterations, summed over its GPUs; time_s: of training, starts
    left out.
    """

    id: str
    kind: Kind
    at: float
    batch: int
    total: int
    limits: BatchLimits
    done: int = 0
    run_s: float = 0.0
    wanted: int | None = None
    num_failures: int = 0
    allocation: Allocation = field(default_factory=Allocation)
    started_at: float | None = None
    num_starts: int = 0
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What the artifact publishes of a run. rho_max: by time alone
    (sim/static_fairness.py); shares in [0, 1].
    """

    makespan_s: float
    jct_s: float
    rho_max: float
    unfair: float
    utilisation: float


class Rounds:
    """One run: the clock, the jobs, and the rules by which both go on.

    decision_s: the CPU seconds of each decision.
    """

    def __init__(
        self,
        workload: Workload,
        applications: Mapping[str, SelfPacedApplication],
        num_gpus: int,
    ) -> None:
        """Raises ValueError for a workload without jobs."""
        first = next((applications[job.application] for job in workload.jobs), None)
        if first is None:
            raise ValueError(f"{workload.name}: no jobs")
        self.table: Throughputs = first.throughputs
        self.node = Node(id="n", num_gpus=num_gpus)
        self.jobs = [
            _job(
                job.id,
                applications[job.application].kind,
                job.at,
                applications[job.application].limits,
            )
            for job in workload.jobs
        ]
        self.decision_s: list[float] = []
        self._alone_s: dict[Kind, int] = {}
        self.clock = 0.0
        self.num_rounds = 0
        self.num_recomputed = 0
        self.busy_s = 0.0

    def play(self, policy: Policy) -> Figures:
        """Let `policy` decide until all jobs have ended, and return what the artifact's
        figures are.
        """
        before: set[str] = set()
        while any(job.ended_at is None for job in self.jobs):
            active = [
                job
                for job in self.jobs
                if job.ended_at is None and job.at <= self.clock
            ]
            asked_s = time.process_time()
            plan = policy.allocate(self._view(active))
            self.decision_s.append(time.process_time() - asked_s)
            for job in active:
                job.allocation = plan.allocations.get(job.id, Allocation())
            ran = [job for job in active if job.allocation]
            ends = [self._train(job, started=job.id not in before) for job in ran]
            before = {job.id for job in ran if job.ended_at is None}
            later = [job.at for job in self.jobs if job.at > self.clock]
            self.clock = max(ends) if ends else min(later, default=self.clock + ROUND_S)
            for job in ran:
                if job.ended_at is None and job.wanted is not None:
                    self._change_batch(job, job.wanted)
            for job in active:
                if job.ended_at is None:
                    job.wanted = _wanted(job)
            self.num_rounds += 1
        return self._figures()

    def _train(self, job: _Job, *, started: bool) -> float:
        """Train `job` for a round; return when it ends."""
        if job.started_at is None:
            job.started_at = self.clock
        job.num_starts += started
        rate = self.table[job.kind.model, job.batch, job.kind.num_gpus]
        steps = min(int(rate * ROUND_S), job.total - job.done)
        if steps <= 0:
            job.num_failures += 1
            self.num_recomputed += 1
            if job.num_failures == NUM_FAILURES_MAX:
                job.ended_at = self.clock
            return self.clock
        job.num_failures = 0
        run_s = steps / rate
        ends_at = self.clock + run_s
        if started and self.num_rounds > 1 and run_s > SHORT_S:
            steps = int(steps * ((run_s - START_S) / run_s))
            run_s -= START_S
        job.done += steps
        job.run_s += run_s
        self.busy_s += run_s * job.kind.num_gpus
        if job.done >= job.total or job.run_s > int(FORCED_END * self.alone_s(job)):
            job.ended_at = ends_at
        return ends_at

    def _change_batch(self, job: _Job, batch: int) -> None:
        job.wanted = None
        if self.table.get((job.kind.model, batch, job.kind.num_gpus), 0.0) <= 0.0:
            return
        old = job.kind.steps_per_epoch(job.batch)
        new = job.kind.steps_per_epoch(batch)
        num_epochs = math.ceil(job.total / old)
        total = math.ceil(job.total * job.batch / batch)
        job.total = total if math.ceil(total / new) == num_epochs else new * num_epochs
        job.done = math.ceil(job.done / old) * new
        job.batch = batch

    def alone_s(self, job: _Job) -> float:
        """Return the run time alone as the artifact's profile has it, in whole
        seconds.
        """
        if job.kind not in self._alone_s:
            self._alone_s[job.kind] = _alone_s(job.kind, self.table)
        return self._alone_s[job.kind]

    def _view(self, active: list[_Job]) -> ClusterView:
        # Another rack makes it another cluster: what the artifact calls a need to
        # recompute.
        node = Node(id="n", num_gpus=self.node.num_gpus, rack=f"r{self.num_recomputed}")
        return ClusterView(
            at=self.clock, nodes=(node,), jobs=tuple(map(self._job_view, active))
        )

    def _job_view(self, job: _Job) -> JobView:
        num_gpus = job.kind.num_gpus
        rate = self.table[job.kind.model, job.batch, num_gpus]
        return JobView(
            id=job.id,
            spec=JobSpec(
                name=job.id,
                batch=job.limits,
                replicas=ReplicaLimits(min=num_gpus, max=num_gpus),
                contract=RescaleContract.SELF,
            ),
            submitted_at=job.at,
            grant=Grant(allocation=job.allocation),
            measured=Measured(
                batch=BatchConfig(
                    total=job.batch * num_gpus, atomic=job.batch, accumulation=0
                ),
                progress=float(job.done * job.batch),
                progress_target=float(job.total * job.batch),
                # What is left at the present batch; later changes of the batch are not
                # known.
                forecast=Forecast(
                    remaining_steps=(job.total - job.done) / num_gpus,
                    step_time_s=(num_gpus / rate,) * num_gpus,
                ),
            ),
            usage=Usage(attained_service_gpu_s=job.run_s * num_gpus),
            rescale_s=0.0,
        )

    def rho(self, job: _Job) -> float:
        """Return ρ as the artifact has it: completion time over time alone times jobs
        per GPU.
        """
        contention = max(1.0, len(self.jobs) / self.node.num_gpus)
        return ((job.ended_at or 0.0) - job.at) / (self.alone_s(job) * contention)

    def _figures(self) -> Figures:
        jct = {job.id: (job.ended_at or 0.0) - job.at for job in self.jobs}
        num_gpus = self.node.num_gpus
        rho = [self.rho(job) for job in self.jobs]
        return Figures(
            makespan_s=self.clock,
            jct_s=mean(jct.values()),
            rho_max=max(rho),
            unfair=sum(each > UNFAIR_ABOVE for each in rho) / len(rho),
            utilisation=self.busy_s / num_gpus / self.clock,
        )


class PlannedRounds(Rounds):
    """The same loop with all inputs of Shockwave's planner: rounds, epochs, modes,
    measured rates.
    """

    def __init__(
        self,
        workload: Workload,
        applications: Mapping[str, SelfPacedApplication],
        num_gpus: int,
    ) -> None:
        super().__init__(workload, applications, num_gpus)
        self._rates: dict[JobId, float] = {}  # samples per second, in the last round

    def profiles(self) -> dict[JobId, tuple[int, ...]]:
        """Return the total batch of each job's epochs, as profiled."""
        return {
            job.id: tuple(batch * job.kind.num_gpus for batch in _profiled(job.kind))
            for job in self.jobs
        }

    def _train(self, job: _Job, *, started: bool) -> float:
        done = job.done
        run_s = job.run_s
        ends_at = super()._train(job, started=started)
        trained_s = job.run_s - run_s
        self._rates[job.id] = (
            (job.done - done) * job.batch / trained_s if trained_s else 0.0
        )
        return ends_at

    def _view(self, active: list[_Job]) -> ClusterView:
        # The planner counts rounds: the clock, a little short of 120 s a round, is not
        # its.
        return replace(super()._view(active), at=self.num_rounds * ROUND_S)

    def _job_view(self, job: _Job) -> JobView:
        view = super()._job_view(job)
        kind = job.kind
        rate = self._rates.get(job.id, 0.0)
        forecast = view.measured.forecast
        assert forecast is not None, "every job has one"
        modes = tuple(
            BatchMode(
                total=batch * kind.num_gpus,
                epoch_s=DATASET[kind.model]
                / batch
                / self.table[kind.model, batch, kind.num_gpus],
            )
            for batch in sorted(set(_profiled(kind)))
        )
        measured = replace(
            view.measured,
            progress=min(job.done / kind.steps_per_epoch(job.batch), kind.num_epochs)
            * DATASET[kind.model],
            progress_target=float(kind.num_epochs * DATASET[kind.model]),
            step_time_s=job.batch * kind.num_gpus / rate if rate else None,
            forecast=replace(forecast, num_epochs=kind.num_epochs, modes=modes),
        )
        return replace(view, measured=measured)


def _job(job_id: str, kind: Kind, at: float, limits: BatchLimits) -> _Job:
    return _Job(
        id=job_id,
        kind=kind,
        at=at,
        batch=kind.batch,
        total=kind.total_steps,
        limits=limits,
    )


def _wanted(job: _Job) -> int | None:
    """Return the batch that the job asks for, as its schedule says for the epoch that
    it is in.
    """
    kind = job.kind
    if kind.batch == LARGEST[kind.model]:
        return None
    epoch = math.ceil(job.done / kind.steps_per_epoch(job.batch))
    table = _trained(kind)
    now = table[epoch]
    soon = table[epoch + 1]
    if kind.mode == "gns":
        return 2 * job.batch if max(now, soon) > job.batch else None
    return now if now != job.batch else None


@cache
def _trained(kind: Kind) -> tuple[int, ...]:
    return batches(
        kind.mode,
        kind.model,
        kind.batch,
        num_gpus=kind.num_gpus,
        num_epochs=max(TABLE_EPOCHS, kind.num_epochs) + 2,
    )


def _alone_s(kind: Kind, table: Throughputs) -> int:
    samples = DATASET[kind.model]
    return int(
        sum(
            samples / size / table[kind.model, size, kind.num_gpus]
            for size in _profiled(kind)
        )
    )


@cache
def _profiled(kind: Kind) -> tuple[int, ...]:
    """Return the batch per GPU of each epoch of the profile."""
    sizes = kind.batch_by_epoch(profile=True)
    if kind.mode == "gns" and len(set(sizes)) > 2:
        return (
            *sizes[:-1],
            kind.batch,
        )  # the last epoch of a schedule of several stages reverts
    return sizes
