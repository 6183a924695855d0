"""Unavailable GPUs: GPUs of the cluster that jobs may not use now. Policies do not see
them.
"""

# A limit on all jobs together (of Kueue's queue, or the operator's) says how many GPUs
# may be used, not which. Policies plan for nodes. So this limit is turned into smaller
# nodes here, once for all policies.
#
# Idle GPUs are hidden first, from the node that has most of them, which costs no job
# anything. If they are not enough, GPUs are hidden one by one under the job that loses
# least by it. The policy then finds this job on a node that is too small for it, and
# shrinks it in place. The loss of a job is the goodput that it loses over its goodput
# on one replica, because the goodputs of two jobs have no unit in common. A job whose
# speed is not known loses 1 for each replica.
#
# Jobs that cannot shrink by one go whole, the youngest first, then frozen ones, and
# shared GPUs last of all.
#
# That a policy sees no more than this has a price: it cannot give GPUs back on another
# node than these, by moving a job. The quota as one more limit in each policy would not
# have it, but half of the policies count GPUs in ways of their own.

from collections.abc import Iterator, Sequence
from dataclasses import replace

from coadapt.goodput.table import goodput_table
from coadapt.model import ClusterView, JobView, NodeId, RescaleContract
from coadapt.model.tenant import EVERYBODY
from coadapt.model.view import current_allocations


def without_unavailable_gpus(view: ClusterView) -> ClusterView:
    """Return the view with as many GPUs as all jobs together may hold; the same view if
    there is no such limit.
    """
    quota = view.quotas().get(EVERYBODY)
    if quota is None:
        return view
    tenants = {
        name: tenant for name, tenant in view.tenants.items() if name != EVERYBODY
    }
    surplus = view.num_gpus - quota
    if surplus <= 0:
        return replace(view, tenants=tenants)
    left = {node.id: node.num_gpus for node in view.nodes}
    for node in _withheld(view, surplus):
        left[node] -= 1
    nodes = tuple(
        replace(node, num_gpus=left[node.id]) for node in view.nodes if left[node.id]
    )
    return replace(view, nodes=nodes, tenants=tenants)


def _withheld(view: ClusterView, count: int) -> Iterator[NodeId]:
    """Yield the node of each of `count` GPUs that are withheld."""
    idle = {
        node: max(free, 0)
        for node, free in current_allocations(view).free.whole.items()
    }
    while count and max(idle.values(), default=0):
        # The most idle node goes on being chosen, so that nodes are withheld whole.
        node = max(idle, key=lambda name: (idle[name], name))
        taken = min(idle.pop(node), count)
        count -= taken
        yield from [node] * taken
    if count:
        yield from _from_jobs(view, count)


def _from_jobs(view: ClusterView, count: int) -> Iterator[NodeId]:
    losers = [
        _Loser(view, job)
        for job in view.jobs
        if job.allocation.slots and not job.allocation.shared
    ]
    while count and losers:
        for node in min(losers, key=lambda each: each.rank).next_nodes()[:count]:
            count -= 1
            yield node
        losers = [each for each in losers if each.num_left]
    shared = sorted(
        {gpu for job in view.jobs for gpu in job.allocation.shared_gpus()}, reverse=True
    )
    yield from [node for node, _ in shared if node in view.inventory.by_id][:count]


class _Loser:
    """A job that may lose GPUs: what it has left of them, by node, and what the next
    one costs it.
    """

    def __init__(self, view: ClusterView, job: JobView) -> None:
        nodes = view.inventory.by_id
        self._job = job
        self._left = {
            node: count for node, count in job.allocation.slots if node in nodes
        }
        self._type = min((nodes[node].gpu_type for node in self._left), default="")
        self._frozen = job.spec.contract is RescaleContract.FROZEN
        self.rank = self._rank()

    @property
    def num_left(self) -> int:
        return sum(self._left.values())

    def next_nodes(self) -> Sequence[NodeId]:
        """Take the next one away, all at once where one is not to be had; return their
        nodes.
        """
        if self._shrinks:
            gone = [self._smallest()]
        else:
            gone = [node for node, count in self._left.items() for _ in range(count)]
        for node in gone:
            self._left[node] -= 1
        self._left = {node: count for node, count in self._left.items() if count}
        self.rank = self._rank()
        return gone

    @property
    def _shrinks(self) -> bool:
        return not self._frozen and self.num_left > self._job.spec.replicas.min

    def _rank(self) -> tuple[bool, bool, float, float, str]:
        """Return a sort key: the job with the least one loses a GPU first."""
        loss = self._loss() if self._shrinks else 0.0
        return (
            self._frozen,
            not self._shrinks,
            loss,
            -self._job.submitted_at,
            self._job.id,
        )

    def _loss(self) -> float:
        """Return what one replica less costs, in units of the goodput on one."""
        count = self.num_left
        num_nodes = len(self._left)
        fewer_nodes = num_nodes - (self._left[self._smallest()] == 1)
        columns = ((1, max(fewer_nodes, 1), num_nodes), (1, count - 1, count))
        one, fewer, now = goodput_table(
            [self._job], *columns, gpu_type=self._type
        ).goodput_JC[0]
        return float((now - fewer) / one) if one > 0.0 else 1.0

    def _smallest(self) -> NodeId:
        """Return the node that holds the fewest of it: it may get rid of that one."""
        return min(self._left, key=lambda node: (self._left[node], node))
