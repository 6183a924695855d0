"""Which GPUs jobs hold, device by device: whole ones by node, shared ones by node and
label.
"""

# How shares stay sound on devices
#
# A sum of shares per node says nothing about devices: three jobs with 0.6 of a GPU each
# make 1.8 on a node of two GPUs, and yet no two of them fit on one. Rounding up by
# classes of shares is sound for a moment only: when one of two partners leaves, its
# half is free on *that* GPU, and the sum does not know which. So an allocation with a
# share below 1 names its GPUs: one label per replica. Jobs that name the same label on
# the same node sit on one physical GPU, as long as any of them holds it. An executor
# ties a label to a slot when it first appears and unties it when no job holds it any
# more; it never moves one.
#
# With that, what fits is a matter of counting, and the count is exact, now and after
# any partner has left:
#
#   per node:   whole GPUs held + different labels held <= its GPUs
#               (each of both is one physical GPU)
#   per label:  the shares held on it sum to at most 1
#   per job:    its replicas on one node have different labels
#               (Allocation sees to that)
#
# Shares are 1/n for n up to SHARERS_MAX and are counted in PARTS of a GPU, whole
# numbers, so that thirds and sixths add up without rounding.
#
# While an order is not answered a job holds what it had and what it is to get. A
# replica that stays on a node keeps its GPU, so of whole GPUs the job holds the larger
# count; a label in both is one GPU, at the larger share; and a whole GPU never stands
# in for a label, because it is not known which one would become shared.
#
# Tried before: gpu_share as a free fraction, summed per node with a slack for rounding
# (three times 0.6 above); and the ceiling of the sum per class of shares (sound, but it
# strands what leaving partners free).

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from coadapt.model.cluster import (
    SHARERS_MAX,
    Allocation,
    JobId,
    Node,
    NodeId,
    inventory,
)

SharedGpu = tuple[NodeId, int]
"""A node and the label of one GPU of it that jobs share."""

# The least common multiple of 1 to SHARERS_MAX: a share of 1/n is PARTS / n parts,
# without remainder.
PARTS = 840
assert all(PARTS % sharers == 0 for sharers in range(1, SHARERS_MAX + 1))

_NO_PARTS: Mapping[SharedGpu, int] = MappingProxyType(
    {}
)  # of nearly all jobs: one object does


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The GPUs that one job holds.

    whole: GPUs per node. parts: of each shared GPU, the held part out of PARTS.
    """

    whole: Mapping[NodeId, int] = field(default_factory=dict)
    parts: Mapping[SharedGpu, int] = field(default_factory=lambda: _NO_PARTS)

    @property
    def nodes(self) -> set[NodeId]:
        """The nodes of which it has a part."""
        return {*self.whole, *(node for node, _ in self.parts)}

    @property
    def num_gpus(self) -> float:
        """GPUs, a share of one counted as that share."""
        return sum(self.whole.values()) + sum(self.parts.values()) / PARTS

    @property
    def by_node(self) -> dict[NodeId, float]:
        """GPUs per node, a share of one counted as that share."""
        gpus = {node: float(count) for node, count in self.whole.items()}
        for (node, _), parts in self.parts.items():
            gpus[node] = gpus.get(node, 0.0) + parts / PARTS
        return gpus


def holding(*allocations: Allocation) -> Holding:
    """Return what a job holds that has all of `allocations` at once, such as its old
    and its new one.
    """
    if len(allocations) == 1 and not allocations[0].shared:  # nearly always
        return Holding(whole=dict(allocations[0].slots), parts=_NO_PARTS)
    whole: dict[NodeId, int] = {}
    parts: dict[SharedGpu, int] = {}
    for allocation in allocations:
        if allocation.shared:
            each = PARTS // allocation.num_sharers
            for gpu in allocation.shared_gpus():
                parts[gpu] = max(parts.get(gpu, 0), each)
            continue
        for node, count in allocation.slots:
            whole[node] = max(whole.get(node, 0), count)
    return Holding(whole=whole, parts=parts or _NO_PARTS)


NOTHING = Holding()


class FreeGpus:
    """The free GPUs of some nodes, while allocations are taken and given back.

    whole: GPUs per node of which no job holds a share. parts: used shares per shared
    GPU. Both may be read. `take` may bring them below 0 and above PARTS; `overfull`
    then names the node.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._num_gpus = inventory(
            nodes if isinstance(nodes, tuple) else tuple(nodes)
        ).num_gpus
        self.whole = dict(self._num_gpus)
        self.parts: dict[SharedGpu, int] = {}

    def copy(self) -> "FreeGpus":
        """Return an independent copy."""
        other = FreeGpus(())
        other._num_gpus = self._num_gpus
        other.whole = self.whole.copy()
        other.parts = self.parts.copy()
        return other

    def renew(self, nodes: tuple[Node, ...]) -> None:
        """Continue with `nodes`. On nodes that are new, gone or changed, no GPU may be
        taken.
        """
        had = self._num_gpus
        self._num_gpus = inventory(nodes).num_gpus
        left = self.whole
        self.whole = {
            node: left[node] if had.get(node) == count else count
            for node, count in self._num_gpus.items()
        }

    def take(self, wanted: Holding, already: Holding = NOTHING) -> None:
        """Take the GPUs of `wanted` that are not in `already`, which is taken. Nodes
        that are gone are ignored.
        """
        for node, count in wanted.whole.items():
            if node in self.whole:
                self.whole[node] -= max(count - already.whole.get(node, 0), 0)
        for gpu, parts in wanted.parts.items():
            if gpu[0] not in self.whole:
                continue
            if gpu not in self.parts:
                self.whole[gpu[0]] -= 1
                self.parts[gpu] = 0
            self.parts[gpu] += max(parts - already.parts.get(gpu, 0), 0)

    def take_allocation(self, allocation: Allocation) -> None:
        """Take the GPUs of `allocation`: a faster `take(holding(allocation))`."""
        if allocation.shared:
            self.take(holding(allocation))
            return
        whole = self.whole
        for node, count in allocation.slots:
            if node in whole:
                whole[node] -= count

    def give(self, held: Holding) -> None:
        """Give back the GPUs of one job that were taken for it alone. Nodes that are
        gone are ignored.
        """
        for node, count in held.whole.items():
            if node in self.whole:
                self.whole[node] += count
        for gpu, parts in held.parts.items():
            if gpu not in self.parts:
                continue
            self.parts[gpu] -= parts
            if not self.parts[gpu]:
                del self.parts[gpu]
                self.whole[gpu[0]] += 1

    def fits(self, wanted: Holding, already: Holding = NOTHING) -> bool:
        """Return whether the GPUs of `wanted` that are not in `already`, which is
        taken, are free on live nodes.
        """
        need = {
            node: count - already.whole.get(node, 0)
            for node, count in wanted.whole.items()
        }
        for gpu, parts in wanted.parts.items():
            if gpu not in self.parts:
                need[gpu[0]] = max(need.get(gpu[0], 0), 0) + 1
            elif self.parts[gpu] + parts - already.parts.get(gpu, 0) > PARTS:
                return False
        return all(
            node in self.whole and count <= self.whole[node]
            for node, count in need.items()
        )

    def num_new(self, wanted: Holding) -> int:
        """Return how many untouched GPUs `wanted` needs."""
        return sum(wanted.whole.values()) + sum(
            gpu not in self.parts for gpu in wanted.parts
        )

    def open_labels(self, node: NodeId, sharers: int) -> list[int]:
        """Return the labels on `node` that one more job with a share of 1/`sharers` may
        use.

        Labels of GPUs that other jobs share come first, then one per free GPU, by
        number.
        """
        known = {
            label: parts for (name, label), parts in self.parts.items() if name == node
        }
        shared = [
            label for label in sorted(known) if known[label] + PARTS // sharers <= PARTS
        ]
        num_free = self.whole.get(node, 0)
        new = [label for label in range(len(known) + num_free) if label not in known]
        return shared + new[:num_free]

    def overfull(self) -> Iterator[str]:
        """Yield a text for each node and each shared GPU of which more is taken than
        exists.
        """
        short = (
            min(self.whole.values(), default=0) < 0
        )  # nearly never, of thousands of nodes
        for node, left in self.whole.items() if short else ():
            if left < 0:
                most = self._num_gpus[node]
                labels = sum(gpu[0] == node for gpu in self.parts)
                shared = f", {labels} of them shared" if labels else ""
                yield f"node {node!r}: {most - left} GPUs given{shared}, it has {most}"
        for (node, label), parts in self.parts.items():
            if parts > PARTS:
                yield (
                    f"node {node!r}, shared GPU {label}: shares of {parts / PARTS:g} "
                    f"given, at most 1"
                )


class Holdings:
    """What jobs hold, job by job. free: what they leave of the nodes, to be read."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.free = FreeGpus(nodes)
        self._of: dict[JobId, Holding] = {}
        self._on: dict[NodeId, set[JobId]] = {}

    def put(self, job: JobId, now: Holding) -> None:
        """Take in what `job` holds now."""
        before = self._of.get(job, NOTHING)
        if now is before or now == before:
            return
        self.free.give(before)
        self.free.take(now)
        for node in before.nodes:
            self._on[node].remove(job)
            if not self._on[node]:
                del self._on[node]
        for node in now.nodes:
            self._on.setdefault(node, set()).add(job)
        self._of[job] = now
        if not now.nodes:
            del self._of[job]

    def on(self, node: NodeId) -> list[JobId]:
        """Return the jobs that hold a part of `node`, whether it is there or gone."""
        return sorted(self._on.get(node, ()))

    def renew(self, nodes: tuple[Node, ...], changed: NodeId) -> None:
        """Go on with `nodes`, after the one named `changed` came, went or got another
        number of GPUs.
        """
        there = [self._of[job] for job in self.on(changed)]
        for each in there:
            self.free.give(each)
        self.free.renew(nodes)
        for each in there:
            self.free.take(each)
