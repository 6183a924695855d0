"""The ground: what follows from the live nodes alone. It is worked out once, not in
each round.
"""

# On 1,024 nodes with a few jobs, half of a decision went into tables over nodes that
# were those of the round before. Nodes come and go seldom, and a view's nodes are the
# same objects until then.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coadapt.model import Allocation, Node, NodeId
from coadapt.policies.castor.times import Shape

SHAPES_MAX = 4_096  # beyond so many allocations all shapes are worked out again (1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The nodes of one GPU type, in the view's order. free: all their GPUs; number:
    each one's place here.

    groups: nodes by the number of their GPUs, ascending, in each rack and, where there
    are several, in all racks together; groups_of: which groups each node is in.
    """

    gpu_type: str
    nodes: tuple[Node, ...]
    number: Mapping[NodeId, int]
    free: Mapping[NodeId, int]
    groups: tuple[Mapping[int, tuple[int, ...]], ...]
    groups_of: tuple[tuple[int, ...], ...]
    rack_gpus: Mapping[str, int]
    node_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The live nodes and their pools, by type. place: each node's pool and rack.
    shapes: as of `shape_of`, by slots, of what stands on several nodes: most stands
    there in many rounds.
    """

    nodes: tuple[Node, ...]
    by_id: Mapping[NodeId, Node]
    pools: tuple[Pool, ...]
    gpu_types: tuple[str, ...]
    place: Mapping[NodeId, tuple[int, str]]
    shapes: dict[tuple[tuple[NodeId, int], ...], tuple[int, Shape] | None] = field(
        default_factory=dict
    )

    def shape_of(self, held: Allocation) -> tuple[int, Shape] | None:
        """Return pool and shape of an allocation; None: no GPUs, or not its own, live
        and of one type.
        """
        place = self.place
        slots = held.slots
        if not slots or held.shared:
            return None
        if len(slots) == 1:  # as most are
            at = place.get(slots[0][0])
            return None if at is None else (at[0], Shape(1, 1, held.num_replicas))
        if slots in self.shapes:
            return self.shapes[slots]
        at_all = {place.get(node) for node, _ in slots}
        number, *others = {None if each is None else each[0] for each in at_all}
        shape = None
        if number is not None and not others:
            shape = number, Shape(len(slots), len(at_all), held.num_replicas)
        if len(self.shapes) >= SHAPES_MAX:
            self.shapes.clear()
        self.shapes[slots] = shape
        return shape


def ground_of(nodes: tuple[Node, ...], known: Ground | None = None) -> Ground:
    """Return the ground of `nodes`: `known` if it is theirs."""
    if known is not None and known.nodes == nodes:
        return known
    by_type: dict[str, list[Node]] = {}
    for node in nodes:
        by_type.setdefault(node.gpu_type, []).append(node)
    pools = tuple(_pool(gpu_type, by_type[gpu_type]) for gpu_type in sorted(by_type))
    return Ground(
        nodes=nodes,
        by_id={node.id: node for node in nodes},
        pools=pools,
        gpu_types=tuple([pool.gpu_type for pool in pools]),
        place={
            node.id: (number, node.rack)
            for number, pool in enumerate(pools)
            for node in pool.nodes
        },
    )


def _pool(gpu_type: str, nodes: Sequence[Node]) -> Pool:
    racks: dict[str, list[int]] = {}
    rack_gpus: dict[str, int] = {}
    for number, node in enumerate(nodes):
        racks.setdefault(node.rack, []).append(number)
        rack_gpus[node.rack] = rack_gpus.get(node.rack, 0) + node.num_gpus
    members = [racks[rack] for rack in sorted(racks)]
    if len(members) > 1:
        members.append(list(range(len(nodes))))
    groups_of: list[list[int]] = [[] for _ in nodes]
    groups: list[dict[int, tuple[int, ...]]] = []
    for group, numbers in enumerate(members):
        by_gpus: dict[int, list[int]] = {}
        for number in numbers:
            groups_of[number].append(group)
            by_gpus.setdefault(nodes[number].num_gpus, []).append(number)
        groups.append({gpus: tuple(each) for gpus, each in by_gpus.items()})
    return Pool(
        gpu_type=gpu_type,
        nodes=tuple(nodes),
        number={node.id: number for number, node in enumerate(nodes)},
        free={node.id: node.num_gpus for node in nodes},
        groups=tuple(groups),
        groups_of=tuple(map(tuple, groups_of)),
        rack_gpus=rack_gpus,
        node_gpus=max(node.num_gpus for node in nodes),
    )
