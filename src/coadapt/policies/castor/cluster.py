"""The cluster as a plan sees it: GPU types, and the configurations that jobs may be
given in a round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import Allocation, ClusterView, JobId, NodeId, RescaleContract
from coadapt.policies.allocation.capacity import FreeNodes, gpu_type_held
from coadapt.policies.castor.arrays import BoolArray, IntArray
from coadapt.policies.castor.facts import Numbers
from coadapt.policies.castor.ground import Ground, Pool, ground_of
from coadapt.policies.castor.rates import Configs

# Up to so many whole nodes every number is a size; beyond, each is at least by this
# factor larger (1).
EACH_NODE_UPTO = 16
GROWTH = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The GPUs of one type that a plan may use. taken: GPUs of its nodes that it may
    not.

    node_gpus: of the largest node; rack_gpus: of a rack.
    """

    pool: Pool
    taken: Mapping[NodeId, int]
    num_gpus: int
    node_gpus: int
    rack_gpus: int

    @property
    def gpu_type(self) -> str:
        return self.pool.gpu_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a round may not change. kept: frozen jobs that run and may; stranded: those
    that cannot stay.

    quota_left: GPUs that tenants with a quota may hold besides.
    """

    ground: Ground
    kinds: tuple[Kind, ...]
    kept: Mapping[JobId, Allocation]
    stranded: frozenset[JobId]
    quota_left: Mapping[str, int]


def standing(view: ClusterView, known: Ground | None = None) -> Standing:
    """Return what of `view` stays, and what is left to plan with, by GPU type. known:
    an earlier ground.
    """
    ground = ground_of(view.nodes, known)
    quota_left = {tenant: float(quota) for tenant, quota in view.quotas().items()}
    runs = [
        job for job in view.jobs if job.grant.allocation.slots
    ]  # few, where jobs are many
    frozen = [job for job in runs if job.spec.contract is RescaleContract.FROZEN]
    kept: dict[JobId, Allocation] = {}
    stranded = set()
    free = FreeNodes(ground.by_id) if frozen else None
    for job in frozen:
        held = gpu_type_held(job, ground.by_id)
        limits = job.spec.replicas
        tenant = job.spec.tenant
        allowed = held is not None and limits.allows_type(held)
        allowed = allowed and limits.min <= job.allocation.num_replicas <= limits.max
        allowed = allowed and job.allocation.num_gpus <= quota_left.get(tenant, np.inf)
        if not (allowed and free is not None and free.take(job.allocation)):
            stranded.add(job.id)
            continue
        kept[job.id] = job.allocation
        if tenant in quota_left:
            quota_left[tenant] -= job.allocation.num_gpus
    taken: list[dict[NodeId, int]] = [{} for _ in ground.pools]
    for node in {node for allocation in kept.values() for node, _ in allocation.slots}:
        if free is not None:
            taken[ground.place[node][0]][node] = (
                ground.by_id[node].num_gpus - free.gpus[node]
            )
    return Standing(
        ground=ground,
        kinds=tuple(
            _kind(pool, each) for pool, each in zip(ground.pools, taken, strict=True)
        ),
        kept=kept,
        stranded=frozenset(stranded),
        quota_left={tenant: int(left) for tenant, left in quota_left.items()},
    )


def _kind(pool: Pool, taken: Mapping[NodeId, int]) -> Kind:
    racks = dict(pool.rack_gpus)
    for node, count in taken.items():
        racks[pool.nodes[pool.number[node]].rack] -= count
    return Kind(
        pool=pool,
        taken=taken,
        num_gpus=sum(racks.values()),
        node_gpus=pool.node_gpus,
        rack_gpus=max(racks.values()),
    )


def configurations(kinds: Sequence[Kind], known: Numbers) -> tuple[Configs, BoolArray]:
    """Return all configurations, by type and size, and which of them each job may have
    (jobs, configs).

    Sizes that no job shares (its least and its most) are there for that job alone.
    Sizes beyond what any job may have are not there: on a large cluster they are most
    of all.
    """
    own = frozenset(known.span_J2.ravel().tolist())
    columns = _columns(
        tuple((kind.num_gpus, kind.node_gpus, kind.rack_gpus) for kind in kinds), own
    )
    may_JC = np.empty((len(known.span_J2), len(columns.common_C)), dtype=np.bool_)
    _allow(columns, known.span_J2, known.timed_J, known.allowed_JT, may_JC)
    return columns.configs, may_JC


class _Columns(NamedTuple):
    """common_C: whether a size is every job's. node_C: GPUs of a node of its type."""

    configs: Configs
    common_C: BoolArray
    node_C: IntArray


@compiled_lean
def _allow(
    columns: _Columns,
    span_J2: IntArray,
    timed_J: BoolArray,
    allowed_JT: BoolArray,
    may_JC: BoolArray,
) -> None:
    for j in range(len(may_JC)):
        low, high = span_J2[j]
        for c in range(may_JC.shape[1]):
            size = columns.configs.gpus_C[c]
            of_type = columns.configs.type_C[c]
            may = columns.common_C[c] or size in (low, high)
            within = timed_J[j] or size <= columns.node_C[c] or size == low
            may_JC[j, c] = (
                may and within and low <= size <= high and allowed_JT[j, of_type]
            )


@lru_cache(maxsize=64)  # mostly those of the round before
def _columns(shapes: tuple[tuple[int, int, int], ...], own: frozenset[int]) -> _Columns:
    """Return the configurations of GPU types, not to be written to.

    shapes: GPUs of each type, in one of its nodes, in one of its racks. own: some job's
    least or most.
    """
    columns: list[tuple[int, int, int, int]] = []
    common: list[bool] = []
    for number, (num_gpus, node_gpus, rack_gpus) in enumerate(shapes):
        sizes = {
            size for size in _sizes(num_gpus, node_gpus) if size <= max(own, default=1)
        }
        for size in sorted(sizes | {each for each in own if each <= num_gpus}):
            racks = 1 if size <= rack_gpus else -(-size // max(rack_gpus, 1))
            columns.append((number, -(-size // node_gpus), racks, size))
            common.append(size in sizes)
    configs = Configs(*np.array(columns, dtype=np.int64).reshape(-1, 4).T.copy())
    node_C = np.array([node_gpus for _, node_gpus, _ in shapes], dtype=np.int64)[
        configs.type_C
    ]
    return _Columns(configs, np.array(common, dtype=np.bool_), node_C)


def _sizes(num_gpus: int, node_gpus: int) -> list[int]:
    """Return the sizes that every job may have: within a node each one, then whole
    nodes.
    """
    sizes = list(range(1, node_gpus))
    count = 1
    while count * node_gpus <= num_gpus:
        sizes.append(count * node_gpus)
        count = count + 1 if count < EACH_NODE_UPTO else int(np.ceil(count * GROWTH))
    return sizes
