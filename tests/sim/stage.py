"""A stage for the simulated world: an application that can be worked out by hand, and
every event kept.
"""

from dataclasses import dataclass, field

from coadapt.core.commands import Rescale, RetractRescale, Start, Stop
from coadapt.core.events import Event, ReplicasExited
from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    GradStats,
    JobSpec,
    Node,
    Placement,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.agent import Oracle
from coadapt.sim.applications import Setting
from coadapt.sim.clock import VirtualClock
from coadapt.sim.colocation import kept_speed
from coadapt.sim.workload import TraceJob
from coadapt.sim.world import World
from coadapt.sim.world_config import WorldConfig


@dataclass(frozen=True)
class Toy:
    """Three epochs of 100 steps at the initial batch of 8. A step takes 1 s on one node
    and 2 s on several; half of it is synchronising where there is more than one
    replica. The noise scale is 8 `var` samples: by default a step at batch 16 makes the
    progress of 4/3 steps.
    """

    name: str = "toy"
    limits: BatchLimits = field(
        default_factory=lambda: BatchLimits(
            initial=8, max_total=64, min_atomic=2, max_atomic=16
        )
    )
    num_epochs: int = 3
    var: float = 1.0

    gpu_types: tuple[str, ...] = ()
    load: float = 1.0
    own: tuple[int | None, ...] = (None, None, None)

    def step_time(self, setting: Setting, atomic: int) -> tuple[float, float]:
        step_s = 1.0 if setting.placement.num_nodes == 1 else 2.0
        step_s /= kept_speed(self.load, setting.neighbours)
        return step_s, step_s / 2 if setting.placement.num_replicas > 1 else 0.0

    def max_atomic(self, setting: Setting) -> int | None:
        return self.limits.max_atomic

    def own_batch(self, epoch: int) -> int | None:
        return self.own[epoch]

    def grad_stats(self, total: int, epoch: int) -> GradStats:
        return GradStats(sqr=1.0, var=self.var)

    def progress_at(self, epoch: int) -> float:
        return 100.0 * epoch

    def steps(self, total: int, epoch: int) -> float:
        return self.progress_at(epoch) * (1 + 8 / total) / 2


TOY = Toy()
NODES = tuple(Node(id=f"n{index}", num_gpus=4) for index in range(3))


def spec(
    contract: RescaleContract = RescaleContract.ADAPTIVE,
    *,
    most: int = 8,
    total: int = 8,
) -> JobSpec:
    limits = BatchLimits(
        initial=8, requested=total, max_total=64, min_atomic=2, max_atomic=16
    )
    return JobSpec(
        name="job",
        application="toy",
        batch=limits,
        replicas=ReplicaLimits(max=most),
        contract=contract,
    )


def at(*shape: int, racks: int = 1) -> Setting:
    return Setting(Placement(shape, racks))


def trace_job(
    job_id: str = "a", at: float = 0.0, job_spec: JobSpec | None = None
) -> TraceJob:
    return TraceJob(id=job_id, at=at, application="toy", spec=job_spec or spec())


def on(**slots: int) -> Allocation:
    return Allocation(slots=tuple(slots.items()))


class Stage:
    """A world of three nodes of four GPUs and jobs a, b and c; `told` is what it
    posted, nodes left out.
    """

    def __init__(self, config: WorldConfig | None = None) -> None:
        self.clock = VirtualClock()
        jobs = [trace_job(job_id) for job_id in "abc"]
        self.world = World(self.clock, jobs, {"toy": TOY}, Oracle(4, 12), config)
        self.told: list[Event] = []
        for node in NODES:
            self.world.restore_node(node, self.told.append)
        self.told.clear()

    def start(
        self, job: str, generation: int, allocation: Allocation, total: int = 8
    ) -> None:
        batch = BatchConfig(
            total=total, atomic=max(total // allocation.num_replicas, 1)
        )
        order = Start(
            job=job,
            generation=generation,
            spec=spec(),
            allocation=allocation,
            batch=batch,
        )
        self.world.execute(order, self.told.append)

    def rescale(
        self, job: str, generation: int, allocation: Allocation, total: int = 8
    ) -> None:
        batch = BatchConfig(
            total=total, atomic=max(total // allocation.num_replicas, 1)
        )
        order = Rescale(
            job=job,
            generation=generation,
            spec=spec(),
            allocation=allocation,
            batch=batch,
        )
        self.world.execute(order, self.told.append)

    def retract(self, job: str, generation: int) -> None:
        self.world.execute(
            RetractRescale(job=job, generation=generation), self.told.append
        )

    def stop(self, job: str, generation: int) -> None:
        self.world.execute(Stop(job=job, generation=generation), self.told.append)

    def until(self, at: float) -> list[Event]:
        """Let time pass, and return what was told since the last look."""
        self.clock.run(until=at)
        told = list(self.told)
        self.told[:] = []
        return told

    def exits(self, job: str = "a") -> list[ReplicasExited]:
        """Play to the end and return how the job's generations ended from here on."""
        self.clock.run()
        return [
            event
            for event in self.told
            if isinstance(event, ReplicasExited) and event.job == job
        ]
