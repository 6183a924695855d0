"""Nodes, GPU types, and what one job holds of them. Values only; no decisions live here."""

from collections.abc import Mapping
from dataclasses import dataclass, field

NodeId = str
JobId = str

DEFAULT_GPU_TYPE = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A kind of accelerator. `memory_gib` is None where it was not measured."""

    name: str = DEFAULT_GPU_TYPE
    memory_gib: float | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("GpuType.name must not be empty")
        if self.memory_gib is not None and self.memory_gib <= 0:
            raise ValueError(f"GpuType.memory_gib must be > 0, got {self.memory_gib}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine: its GPUs are alike, and it belongs to one rack ("" = the only rack)."""

    id: NodeId
    num_gpus: int
    gpu_type: str = DEFAULT_GPU_TYPE
    rack: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Node.id must not be empty")
        if self.num_gpus < 1:
            raise ValueError(f"Node.num_gpus must be >= 1, got {self.num_gpus}")


@dataclass(frozen=True, slots=True)
class Placement:
    """The shape of an allocation: replicas per node, in rank order, and the number of racks spanned.

    Two allocations of equal placement run at equal speed on equal GPUs. `()` means that the job waits.
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
class Allocation:
    """What one job holds: replicas per node in rank order (no zeros, no node twice); `()` means it waits.

    Rank order is part of the value: the ring that replicas form has an order, and measured step times
    differ between (4, 3, 1) and (3, 4, 1). `gpu_share` is the fraction of each GPU; 1.0 is exclusive.
    """

    slots: tuple[tuple[NodeId, int], ...] = ()
    gpu_share: float = 1.0
    num_replicas: int = field(init=False, compare=False, repr=False, default=0)

    def __post_init__(self) -> None:
        total = 0
        for node, count in self.slots:
            if count < 1:
                raise ValueError(f"Allocation: replicas on node {node!r} must be >= 1, got {count}")
            total += count
        if len({node for node, _ in self.slots}) != len(self.slots):
            raise ValueError(f"Allocation: a node is named twice in {self.slots}")
        if not 0.0 < self.gpu_share <= 1.0:
            raise ValueError(f"Allocation.gpu_share must be in (0, 1], got {self.gpu_share}")
        object.__setattr__(self, "num_replicas", total)

    def __bool__(self) -> bool:
        return bool(self.slots)

    @property
    def num_nodes(self) -> int:
        return len(self.slots)

    @property
    def shape(self) -> tuple[int, ...]:
        """Replicas per node, in rank order."""
        return tuple(count for _, count in self.slots)

    def on(self, node: NodeId) -> int:
        """Return the number of replicas on `node` (0 if none)."""
        return next((count for name, count in self.slots if name == node), 0)

    def placement(self, nodes: Mapping[NodeId, Node]) -> Placement:
        """Return the shape of this allocation in the cluster `nodes`. Raises KeyError for an unknown node."""
        racks = {nodes[node].rack for node, _ in self.slots}
        return Placement(self.shape, max(len(racks), 1))


WAITING = Allocation()
