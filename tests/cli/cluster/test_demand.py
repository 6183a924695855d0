"""How many slots jobs wait for beyond those that are free."""

from coadapt.cli.cluster.demand import Demand, wanted_slots
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, NodeJoined
from coadapt.core.scheduler import Scheduler
from coadapt.model import BatchLimits, JobSpec, Node, ReplicaLimits


def submitted(job: str, least: int) -> JobSubmitted:
    spec = JobSpec(name=job, batch=BatchLimits(initial=8), replicas=ReplicaLimits(min=least, max=8))
    return JobSubmitted(at=0.0, job=job, spec=spec)


def test_what_waiting_jobs_need_at_least_beyond_the_free_slots_is_wanted() -> None:
    scheduler = Scheduler(SchedulerConfig())
    assert wanted_slots(scheduler.state) == 0
    scheduler.handle(submitted("a", 2))
    scheduler.handle(submitted("b", 3))
    assert wanted_slots(scheduler.state) == 5
    scheduler.handle(NodeJoined(at=0.0, node=Node(id="n", num_gpus=4)))
    assert wanted_slots(scheduler.state) == 1
    scheduler.handle(NodeJoined(at=0.0, node=Node(id="m", num_gpus=4)))
    assert wanted_slots(scheduler.state) == 0


def test_without_a_loop_nothing_is_wanted() -> None:
    assert Demand()() == 0
