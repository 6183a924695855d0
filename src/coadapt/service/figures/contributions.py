"""Sums over live jobs: states, waiting reasons, GPU use; updated at each change."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from coadapt.core.accounting import held
from coadapt.core.lifecycle import JobState
from coadapt.core.state import JobRecord
from coadapt.model import Node, NodeId, Usage

USES = {
    JobState.STARTING: "startup",
    JobState.RESCALING: "rescale",
    JobState.STOPPING: "stopping",
}
PRODUCTIVE = "productive"
UNREPORTED = "unreported"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContribution:
    """One live job's contribution to the sums. num_gpus: GPUs that it holds on nodes
    that are up. num_held: GPUs that it holds on all nodes.
    """

    usage: Usage
    state: JobState
    waits: tuple[str, str] | None
    use: str
    num_gpus: float
    num_held: float


def contribution_of(job: JobRecord, nodes: Mapping[NodeId, Node]) -> JobContribution:
    """Return the contribution of a job that has not ended. nodes: nodes that are up."""
    holding = held(job)
    trains = UNREPORTED if job.running.reported_at is None else PRODUCTIVE
    state = job.state
    return JobContribution(
        usage=job.usage,
        state=state,
        waits=(job.reason.value, job.spec.tenant)
        if state is JobState.PENDING
        else None,
        use=USES.get(state, trains),
        # GPUs of a lost node do not count, although it is not known yet that its
        # replicas have ended.
        num_gpus=sum(gpus for node, gpus in holding.by_node.items() if node in nodes),
        num_held=holding.num_gpus,
    )


class Sums:
    """The sums over the contributions that were put in and not taken out."""

    def __init__(self) -> None:
        self.by_state: Counter[JobState] = Counter()
        self.waiting: Counter[tuple[str, str]] = Counter()
        """Pending jobs by reason and tenant."""
        self.num_held = 0.0
        """GPUs that jobs hold."""
        self.num_gpus = dict.fromkeys((*USES.values(), PRODUCTIVE, UNREPORTED), 0.0)
        """Those on nodes that are there, by use."""
        self._num_holding: Counter[str] = Counter()

    def put(self, job: JobContribution) -> None:
        self._add(job, 1)

    def take(self, job: JobContribution) -> None:
        self._add(job, -1)

    def _add(self, job: JobContribution, sign: int) -> None:
        self.by_state[job.state] += sign
        if job.waits is not None:
            self.waiting[job.waits] += sign
            if not self.waiting[job.waits]:
                del self.waiting[job.waits]  # tenants come and go
        if not job.num_held:
            return
        self.num_held += sign * job.num_held
        self.num_gpus[job.use] += sign * job.num_gpus
        self._num_holding[job.use] += sign
        # Shares of GPUs are no whole numbers, and what rounding leaves behind must not
        # stay for good.
        if not self._num_holding[job.use]:
            self.num_gpus[job.use] = 0.0
        if not self._num_holding.total():
            self.num_held = 0.0
