"""Nodes, what one job holds of them, and what it gets. Values only; no decisions live
here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter

from coadapt.model.batch import BatchConfig

NodeId = str
JobId = str

DEFAULT_GPU_TYPE = "gpu"

# The most jobs on one GPU. Published packing puts two to four on one (Gandiva, OSDI'18;
# AntMan, OSDI'20); NVIDIA's own partitions of a GPU end at seven.
SHARERS_MAX = 8
# How far a share that was written as a decimal fraction may be from 1/n: "0.333" is a
# third.
SHARE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine. Its GPUs are equal, and it belongs to one rack ("": the only rack).

    offer: the offer by which the node was bought (model/offer.py); empty: it was not
    bought.
    """

    id: NodeId
    num_gpus: int
    gpu_type: str = DEFAULT_GPU_TYPE
    rack: str = ""
    offer: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Node.id must not be empty")
        if self.num_gpus < 1:
            raise ValueError(f"Node.num_gpus must be >= 1, got {self.num_gpus}")


@dataclass(frozen=True, slots=True)
class Placement:
    """The shape of an allocation: replicas per node, in rank order, and the number of
    racks.

    Two allocations of equal placement train at the same speed on equal GPUs. `()` means
    that the job waits.
    """

    replicas_per_node: tuple[int, ...] = ()
    num_racks: int = 1

    @property
    def num_nodes(self) -> int:
        return len(self.replicas_per_node)

    @property
    def num_replicas(self) -> int:
        return sum(self.replicas_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:  # noqa: PLW1641  # its dataclass makes the hash, of the same fields
    """The GPUs of one job: replicas per node in rank order (no zeros, no node twice).

    `()` means that the job waits. Rank order is part of the value: the ring that
    replicas form has an order, and measured step times differ between (4, 3, 1) and (3,
    4, 1).

    gpu_share: the fraction of each of its GPUs, 1/n with n up to SHARERS_MAX; 1.0 is
    exclusive. shared: empty if gpu_share is 1, else a label per replica in rank order.
    Jobs with the same label on the same node share one physical GPU. Replicas of one
    job on a node have different labels (see devices.py).
    """

    slots: tuple[tuple[NodeId, int], ...] = ()
    gpu_share: float = 1.0
    shared: tuple[int, ...] = ()
    num_replicas: int = field(init=False, compare=False, repr=False, default=0)
    num_sharers: int = field(init=False, compare=False, repr=False, default=1)

    def __post_init__(self) -> None:
        total = 0
        for node, count in self.slots:
            if count < 1:
                raise ValueError(
                    f"Allocation: replicas on node {node!r} must be >= 1, got {count}"
                )
            total += count
        if len({node for node, _ in self.slots}) != len(self.slots):
            raise ValueError(f"Allocation: a node is named twice in {self.slots}")
        object.__setattr__(self, "num_replicas", total)
        if self.gpu_share != 1.0 or self.shared:
            self._check_share()

    def _check_share(self) -> None:
        sharers = round(1.0 / self.gpu_share) if self.gpu_share > 0.0 else 0
        if not (
            1 <= sharers <= SHARERS_MAX
            and abs(self.gpu_share - 1.0 / sharers) <= SHARE_TOLERANCE
        ):
            raise ValueError(
                f"Allocation.gpu_share must be 1/n with n in 1..{SHARERS_MAX}, got "
                f"{self.gpu_share}"
            )
        object.__setattr__(self, "gpu_share", 1.0 / sharers)
        object.__setattr__(self, "num_sharers", sharers)
        labels = self.num_replicas if sharers > 1 else 0
        if len(self.shared) != labels:
            raise ValueError(
                f"Allocation.shared must name {labels} GPUs for {self.num_replicas} "
                f"replicas with "
                f"{self.gpu_share:g} of a GPU each, got {self.shared}"
            )
        if min(self.shared, default=0) < 0:
            raise ValueError(
                f"Allocation.shared: labels must be >= 0, got {self.shared}"
            )
        if len(set(self.shared_gpus())) < labels:
            raise ValueError(
                f"Allocation.shared: two replicas of one job on one GPU in {self}"
            )

    def __bool__(self) -> bool:
        return bool(self.slots)

    def __eq__(self, other: object) -> bool:
        # From round to round it is nearly always the very same object that is compared.
        if self is other:
            return True
        if not isinstance(other, Allocation):
            return NotImplemented
        return (self.slots, self.gpu_share, self.shared) == (
            other.slots,
            other.gpu_share,
            other.shared,
        )

    @property
    def num_nodes(self) -> int:
        return len(self.slots)

    @property
    def shape(self) -> tuple[int, ...]:
        """Replicas per node, in rank order."""
        return tuple(count for _, count in self.slots)

    @property
    def num_gpus(self) -> float:
        """GPUs that the job holds; a share of a GPU counts as that share."""
        return self.num_replicas / self.num_sharers

    def shared_gpus(self) -> Iterator[tuple[NodeId, int]]:
        """Yield node and label of each replica's shared GPU, in rank order; nothing for
        whole GPUs.
        """
        labels = iter(self.shared)
        for node, count in self.slots:
            for _ in range(count):
                if (label := next(labels, None)) is not None:
                    yield node, label

    def labels_on(self, node: NodeId) -> tuple[int, ...]:
        """Return the labels of its shared GPUs on `node`, in rank order."""
        return tuple(label for name, label in self.shared_gpus() if name == node)

    def on(self, node: NodeId) -> int:
        """Return the number of replicas on `node` (0 if none)."""
        return next((count for name, count in self.slots if name == node), 0)

    def placement(self, nodes: Mapping[NodeId, Node]) -> Placement:
        """Return the shape of this allocation in the cluster `nodes`. Raises KeyError
        for an unknown node.
        """
        racks = {nodes[node].rack for node, _ in self.slots}
        return Placement(self.shape, max(len(racks), 1))


WAITING = Allocation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An allocation and the batch to train with on it. batch None: the job chooses its
    own.
    """

    allocation: Allocation = WAITING
    batch: BatchConfig | None = None

    def __bool__(self) -> bool:
        return bool(self.allocation.slots)

    def satisfies(self, wanted: "Grant") -> bool:
        """Return whether a job with this grant needs no order to get `wanted`. A batch
        of None in `wanted` matches any batch.
        """
        return self.allocation == wanted.allocation and wanted.batch in (
            None,
            self.batch,
        )


NO_GRANT = Grant()


_GPU_TYPE = attrgetter("gpu_type")
_NUM_GPUS = attrgetter("num_gpus")


def gpus_by_type(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the number of GPUs of each type that the nodes have."""
    pools: dict[str, int] = {}
    # Asked for in every round, and nodes of one type stand together: a third of a loop
    # over nodes.
    for gpu_type, alike in groupby(nodes, _GPU_TYPE):
        pools[gpu_type] = pools.get(gpu_type, 0) + sum(map(_NUM_GPUS, alike))
    return pools


# Tuples of nodes that are remembered: that of the cluster, and of parts of it that a
# policy plans alone.
KEPT = 16


class Inventory:
    """Nodes by id, and their GPUs. Read it only: all callers with the same nodes get
    the same object.

    groups: by GPU type and rack, the place of each node in the view's order and its id.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.by_id: Mapping[NodeId, Node] = {node.id: node for node in nodes}
        self.num_gpus: Mapping[NodeId, int] = {
            node.id: node.num_gpus for node in self.by_id.values()
        }

    # When first asked for: while a cluster comes up there is an inventory after each
    # node that joins.
    @cached_property
    def by_type(self) -> Mapping[str, int]:
        return gpus_by_type(self.by_id.values())

    @cached_property
    def groups(self) -> Mapping[str, Mapping[str, Sequence[tuple[int, NodeId]]]]:
        groups: dict[str, dict[str, list[tuple[int, NodeId]]]] = {}
        for index, node in enumerate(self.by_id.values()):
            groups.setdefault(node.gpu_type, {}).setdefault(node.rack, []).append(
                (index, node.id)
            )
        return groups


class _Same:
    """A tuple of nodes as a key that is equal to itself only: hashing hundreds of nodes
    would cost more.
    """

    __slots__ = ("nodes",)

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self.nodes = nodes

    def __hash__(self) -> int:
        return id(self.nodes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.nodes is self.nodes


def inventory(nodes: tuple[Node, ...]) -> Inventory:
    """Return the inventory of `nodes`; for the same tuple object, the same
    inventory.
    """
    return _inventory(_Same(nodes))


@lru_cache(maxsize=KEPT)
def _inventory(same: _Same) -> Inventory:
    return Inventory(same.nodes)
