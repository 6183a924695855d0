"""A stage for core stories: short words for events, and every command kept as it came
out.
"""

from dataclasses import replace

from coadapt.core.commands import Command, Solve
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Outcome,
    PlanReady,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    SchedulerConfigured,
    TimerFired,
    TrainingReported,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord
from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    JobSpec,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    TrainingReport,
)


def spec(
    gpus: tuple[int, int] = (1, 4),
    *,
    contract: RescaleContract = RescaleContract.ADAPTIVE,
    max_failures: int = 3,
    tenant: str = "default",
) -> JobSpec:
    return JobSpec(
        name="job",
        batch=BatchLimits(initial=8, max_total=64),
        replicas=ReplicaLimits(min=gpus[0], max=gpus[1]),
        contract=contract,
        max_failures=max_failures,
        tenant=tenant,
    )


def on(**slots: int) -> Allocation:
    return Allocation(slots=tuple(slots.items()))


class Stage:
    """A scheduler with nodes n0 and n1 of four GPUs; the clock is `at`."""

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        num_nodes: int = 2,
        *,
        settle_s: float = 0.0,
    ) -> None:
        """Plans change jobs that have not taken a step yet, unless `settle_s` says
        otherwise.
        """
        self.scheduler = Scheduler()
        self.at = 0.0
        self.journal: list[Event] = []
        self._records: dict[str, JobRecord] = {}
        config = replace(config or SchedulerConfig(), settle_s=settle_s)
        self.handle(SchedulerConfigured(at=0.0, config=config))
        for index in range(num_nodes):
            self.handle(NodeJoined(at=0.0, node=Node(id=f"n{index}", num_gpus=4)))

    def handle(self, event: Event) -> list[Command]:
        self.journal.append(event)
        commands = self.scheduler.handle(event)
        self._records.update(self.scheduler.state.jobs)
        return commands

    def job(self, job: str = "a") -> JobRecord:
        """Return the job's record, the last one if it has ended."""
        return self._records[job]

    def submit(self, job: str = "a", job_spec: JobSpec | None = None) -> list[Command]:
        return self.handle(JobSubmitted(at=self.at, job=job, spec=job_spec or spec()))

    def cancel(self, job: str = "a") -> list[Command]:
        return self.handle(CancelRequested(at=self.at, job=job))

    def lose(self, node: str) -> list[Command]:
        return self.handle(NodeLost(at=self.at, node=node))

    def timer(self, at: float) -> list[Command]:
        self.at = at
        return self.handle(TimerFired(at=at))

    def plan(
        self,
        allocations: dict[str, Allocation],
        batches: dict[str, BatchConfig] | None = None,
        set_aside: dict[str, float] | None = None,
    ) -> list[Command]:
        plan = Plan(
            allocations=allocations, batches=batches or {}, set_aside=set_aside or {}
        )
        return self.handle(
            PlanReady(at=self.at, round=self.scheduler.state.round, plan=plan)
        )

    def round(
        self, at: float, allocations: dict[str, Allocation], **plan: object
    ) -> list[Command]:
        """Let the timer fire and answer the Solve; return what follows from the
        plan.
        """
        assert any(isinstance(command, Solve) for command in self.timer(at))
        return self.plan(allocations, **plan)  # type: ignore[arg-type]

    def started(self, job: str = "a", generation: int = 1) -> list[Command]:
        return self.handle(ReplicasStarted(at=self.at, job=job, generation=generation))

    def kept(
        self,
        job: str = "a",
        generation: int = 2,
        detail: str = "",
        *,
        joiner_failed: bool = False,
    ) -> list[Command]:
        return self.handle(
            ReplicasKept(
                at=self.at,
                job=job,
                generation=generation,
                detail=detail,
                joiner_failed=joiner_failed,
            )
        )

    def exited(
        self, outcome: Outcome, job: str = "a", generation: int = 1, detail: str = ""
    ) -> list[Command]:
        return self.handle(
            ReplicasExited(
                at=self.at,
                job=job,
                generation=generation,
                outcome=outcome,
                detail=detail,
            )
        )

    def reported(
        self, report: TrainingReport, job: str = "a", generation: int = 1
    ) -> list[Command]:
        return self.handle(
            TrainingReported(at=self.at, job=job, generation=generation, report=report)
        )

    def running(
        self, job: str = "a", allocation: Allocation | None = None, at: float = 60.0
    ) -> None:
        """Submit one job and bring it to RUNNING in the round at `at`."""
        self.submit(job)
        self.round(at, {job: allocation or on(n0=2)})
        self.started(job)
