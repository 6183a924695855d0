"""How many slots jobs wait for, and how many they use well, for executors that can get
more of them.
"""

import math
from dataclasses import replace

import numpy as np

from coadapt.core.accounting import job_view, num_gpus_held
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import SchedulerState
from coadapt.executors.host import SlotUse
from coadapt.goodput.table import goodput_table
from coadapt.model import JobView, RescaleContract
from coadapt.model.tenant import EVERYBODY, quotas_of
from coadapt.service.live_loop import LiveLoop

# A slot is worth borrowing if it brings at least this part of what the job's first slot
# brings.
WORTH_MIN = 0.5
# A job's predicted speed counts up to this many times the replicas that it was timed
# on, as in policies.
BELIEVED = 2
# Of one job: beyond, a table of its goodput costs more than the answer is worth.
COUNTED_MAX = 64


class Demand:
    """Nothing before `loop` is set: an executor is connected before there is a loop."""

    def __init__(self) -> None:
        self.loop: LiveLoop | None = None

    def __call__(self) -> int:
        return 0 if self.loop is None else self.loop.read(wanted_slots)

    def slot_use(self) -> SlotUse:
        if self.loop is None:
            return SlotUse()
        use, views, node_slots = self.loop.read(_picture)
        return replace(
            use, useful=sum(useful_slots(view, node_slots) for view in views)
        )


def wanted_slots(state: SchedulerState) -> int:
    """Return the slots that waiting jobs need at least, beyond those that are free.

    A job that trains wants no more for that: what one more slot would buy it is worth
    less than a queue's patience, and a policy shrinks it as soon as another one waits.
    """
    waiting = [job for job in state.jobs.values() if job.state is JobState.PENDING]
    needed = sum(
        job.spec.replicas.min for job in waiting if not job.status.cancel_requested
    )
    total = sum(node.num_gpus for node in state.nodes.values())
    free = total - sum(num_gpus_held(job) for job in state.jobs.values())
    quota = quotas_of(state.tenants.values()).get(EVERYBODY)
    most = math.inf if quota is None else quota - total  # more than that would be idle
    return max(math.ceil(min(needed - free, most)), 0)


def useful_slots(job: JobView, node_slots: int) -> int:
    """Return how many slots `job` uses well, by the goodput that each more of them
    brings.

    A job whose speed is not known, or that may not be rescaled, uses what it has, or
    its fewest replicas.
    """
    limits = job.spec.replicas
    held = job.allocation.num_replicas
    gpu_type, profile = min(job.measured.by_type.items(), default=("", None))
    if profile is None or job.spec.contract is RescaleContract.FROZEN:
        return held or limits.min
    most = min(
        limits.max,
        max(BELIEVED * profile.num_replicas_profiled, limits.min),
        COUNTED_MAX,
    )
    counts = np.arange(1, most + 1)
    goodput = goodput_table(
        [job], -(-counts // node_slots), counts, gpu_type=gpu_type
    ).goodput_JC[0]
    poor = np.flatnonzero(np.diff(goodput) < WORTH_MIN * goodput[0])
    return max(int(poor[0]) + 1 if poor.size else most, limits.min)


def _picture(state: SchedulerState) -> tuple[SlotUse, list[JobView], int]:
    """Return what is held, the jobs that live, and the slots of the largest node."""
    live = [job for job in state.jobs.values() if job.state not in ENDED]
    held = sum(max(num_gpus_held(job), job.target.allocation.num_gpus) for job in live)
    use = SlotUse(
        held=math.ceil(held), quota=quotas_of(state.tenants.values()).get(EVERYBODY)
    )
    views = [job_view(job, 0.0) for job in live if not job.status.cancel_requested]
    return use, views, max((node.num_gpus for node in state.nodes.values()), default=1)
