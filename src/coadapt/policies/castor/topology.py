"""Cluster topology: GPU types, jobs that the plan may not move, and the configurations
of a round.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from coadapt.model import (
    Allocation,
    ClusterView,
    JobId,
    JobView,
    Node,
    NodeId,
    RescaleContract,
    TenantId,
)
from coadapt.policies.allocation.capacity import FreeNodes, gpu_type_held
from coadapt.policies.predictors.best_goodputs import Configs
from coadapt.policies.predictors.measured_step_times import Shape
from coadapt.policies.solvers.arrays import BoolArray, IntArray, JobBools

# Sizes in whole nodes: each is at least this factor larger than the one before, so that
# their number grows with the logarithm of the cluster. Every number of nodes up to 17
# is a size. Chosen by hand, not measured.
GROWTH = 1.0 + 1.0 / 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """The nodes of one GPU type, in the view's order, and the GPUs that a plan may use.

    taken: GPUs of fixed jobs, by node. num_gpus: the other GPUs. node_gpus: GPUs of the
    largest node. rack_gpus: GPUs that a plan may use in the rack that has most of them.
    """

    name: str
    nodes: tuple[Node, ...]
    taken: Mapping[NodeId, int]
    num_gpus: int
    node_gpus: int
    rack_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The GPU types of the cluster, in order of their names, and the fixed jobs.

    place: the number of the GPU type, and the rack, of each node. kept: frozen jobs
    that keep their allocations. stranded: frozen jobs that cannot stay where they are.
    quota_left: GPUs that the other jobs of each tenant with a quota may hold.
    """

    gpu_types: tuple[GpuType, ...]
    place: Mapping[NodeId, tuple[int, str]]
    kept: Mapping[JobId, Allocation]
    stranded: frozenset[JobId]
    quota_left: Mapping[TenantId, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the GPU types."""
        return tuple(each.name for each in self.gpu_types)

    @property
    def gpus_by_type(self) -> IntArray:
        """The GPUs of each type that a plan may use, (T,)."""
        return np.array([each.num_gpus for each in self.gpu_types], dtype=np.int64)

    def shape_of(self, held: Allocation) -> tuple[int, Shape] | None:
        """Return the number of the GPU type and the shape of an allocation.

        None if it has no GPUs, shares of GPUs, a lost node, or GPUs of several types.
        """
        if not held.slots or held.shared:
            return None
        places = {self.place.get(node) for node, _ in held.slots}
        number, *others = {None if each is None else each[0] for each in places}
        if number is None or others:
            return None
        return number, Shape(len(held.slots), len(places), held.num_replicas)


@dataclass(slots=True)
class _Fixed:
    """The frozen jobs of a view, and what they leave. Fields as in Topology."""

    free: FreeNodes
    quota_left: dict[TenantId, float]
    kept: dict[JobId, Allocation] = field(default_factory=dict)
    stranded: set[JobId] = field(default_factory=set)

    def add(self, job: JobView, gpu_type: str | None) -> None:
        """Add a frozen job that holds GPUs of this type; None: of no single one."""
        held = job.allocation
        limits = job.spec.replicas
        tenant = job.spec.tenant
        allowed = gpu_type is not None and limits.allows_type(gpu_type)
        allowed = allowed and limits.min <= held.num_replicas <= limits.max
        allowed = allowed and held.num_gpus <= self.quota_left.get(tenant, np.inf)
        if not (allowed and self.free.take(held)):
            self.stranded.add(job.id)
            return
        self.kept[job.id] = held
        if tenant in self.quota_left:
            self.quota_left[tenant] -= held.num_gpus


def _fixed(view: ClusterView, by_id: Mapping[NodeId, Node]) -> _Fixed:
    quota_left = {tenant: float(quota) for tenant, quota in view.quotas().items()}
    fixed = _Fixed(FreeNodes(by_id), quota_left)
    for job in view.jobs:
        if job.spec.contract is RescaleContract.FROZEN and job.allocation.slots:
            fixed.add(job, gpu_type_held(job, by_id))
    return fixed


def topology_of(view: ClusterView) -> Topology:
    """Return the topology of a view. Frozen jobs stay where they are if they may."""
    by_id = {node.id: node for node in view.nodes}
    fixed = _fixed(view, by_id)
    used = {node for each in fixed.kept.values() for node, _ in each.slots}
    taken = {node: by_id[node].num_gpus - fixed.free.gpus[node] for node in used}
    gpu_types = _gpu_types(view.nodes, taken)
    return Topology(
        gpu_types=gpu_types,
        place={
            node.id: (number, node.rack)
            for number, each in enumerate(gpu_types)
            for node in each.nodes
        },
        kept=fixed.kept,
        stranded=frozenset(fixed.stranded),
        quota_left={tenant: int(left) for tenant, left in fixed.quota_left.items()},
    )


def _gpu_types(
    nodes: Sequence[Node], taken: Mapping[NodeId, int]
) -> tuple[GpuType, ...]:
    """Return the GPU types of all nodes, in order of their names."""
    by_type: dict[str, list[Node]] = {}
    for node in nodes:
        by_type.setdefault(node.gpu_type, []).append(node)
    return tuple(_gpu_type(name, by_type[name], taken) for name in sorted(by_type))


def _gpu_type(name: str, nodes: Sequence[Node], taken: Mapping[NodeId, int]) -> GpuType:
    racks: dict[str, int] = {}
    for node in nodes:
        left = node.num_gpus - taken.get(node.id, 0)
        racks[node.rack] = racks.get(node.rack, 0) + left
    return GpuType(
        name=name,
        nodes=tuple(nodes),
        taken={node.id: taken[node.id] for node in nodes if node.id in taken},
        num_gpus=sum(racks.values()),
        node_gpus=max(node.num_gpus for node in nodes),
        rack_gpus=max(racks.values()),
    )


def configurations(
    gpu_types: Sequence[GpuType],
    span_J2: IntArray,
    timed: JobBools,
    allowed_JT: BoolArray,
) -> tuple[Configs, BoolArray]:
    """Return all configurations, by type and size, and which each job may have, (J, C).

    span_J2: the least and the most replicas of each job. timed: whether the job was
    timed; other jobs stay within a node. allowed_JT: the GPU types that it may use.

    The least and the most replicas of a job are sizes for that job alone, unless they
    are common sizes. Sizes that no job may have are left out: on a large cluster most
    sizes are such.
    """
    configs, common_C = _all_configurations(gpu_types, set(span_J2.ravel().tolist()))
    node_T = np.array([each.node_gpus for each in gpu_types], dtype=np.int64)
    size_C = configs.gpus_C
    low_J1 = span_J2[:, :1]
    high_J1 = span_J2[:, 1:]
    is_size_JC = common_C | (size_C == low_J1) | (size_C == high_J1)
    one_node_C = size_C <= node_T[configs.type_C]
    within_JC = timed[:, None] | one_node_C | (size_C == low_J1)
    may_JC: BoolArray = is_size_JC & within_JC & (size_C >= low_J1)
    may_JC &= (size_C <= high_J1) & allowed_JT[:, configs.type_C]
    return configs, may_JC


def _all_configurations(
    gpu_types: Sequence[GpuType], own: Set[int]
) -> tuple[Configs, BoolArray]:
    """Return all configurations, and which of them are common sizes. own: sizes of
    single jobs.
    """
    largest = max(own, default=1)
    columns: list[tuple[int, int, int, int]] = []
    common: list[bool] = []
    for number, each in enumerate(gpu_types):
        possible = _sizes(each.num_gpus, each.node_gpus)
        sizes = {size for size in possible if size <= largest}
        for size in sorted(sizes | {size for size in own if size <= each.num_gpus}):
            racks = 1
            if size > each.rack_gpus:
                racks = -(-size // max(each.rack_gpus, 1))
            columns.append((number, -(-size // each.node_gpus), racks, size))
            common.append(size in sizes)
    configs = Configs(*np.array(columns, dtype=np.int64).reshape(-1, 4).T.copy())
    return configs, np.array(common, dtype=np.bool_)


def _sizes(num_gpus: int, node_gpus: int) -> list[int]:
    """Return the common sizes: each number of GPUs within a node, then numbers of whole
    nodes.
    """
    sizes = list(range(1, node_gpus))
    count = 1
    while count * node_gpus <= num_gpus:
        sizes.append(count * node_gpus)
        count = int(np.ceil(count * GROWTH))
    return sizes
