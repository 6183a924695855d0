"""How many slots jobs wait for, for executors that can get more of them."""

import math

from coadapt.core.accounting import num_gpus_held
from coadapt.core.lifecycle import JobState
from coadapt.core.state import SchedulerState
from coadapt.service.live_loop import LiveLoop


class Demand:
    """Nothing before `loop` is set: an executor is connected before there is a loop."""

    def __init__(self) -> None:
        self.loop: LiveLoop | None = None

    def __call__(self) -> int:
        return 0 if self.loop is None else self.loop.read(wanted_slots)


def wanted_slots(state: SchedulerState) -> int:
    """Return the slots that waiting jobs need at least, beyond those that are free.

    A job that trains wants no more for that: what one more slot would buy it is worth less than a queue's
    patience, and a policy shrinks it as soon as another one waits.
    """
    waiting = [job for job in state.jobs.values() if job.state is JobState.PENDING]
    needed = sum(job.spec.replicas.min for job in waiting if not job.status.cancel_requested)
    total = sum(node.num_gpus for node in state.nodes.values())
    free = total - sum(num_gpus_held(job) for job in state.jobs.values())
    return max(math.ceil(needed - free), 0)
