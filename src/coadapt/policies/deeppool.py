"""DeepPool (Park et al., MLSys 2022): large jobs scale while it is efficient, and small
jobs use the idle time of their GPUs.
"""

# A foreground job requests several GPUs, a background job requests one. A foreground
# job is planned once, when it starts. It gets the largest count at which a step takes
# no more than `amplification` times the GPU time of a step on one GPU, at its batch. It
# then holds these GPUs to its end.
#
# While a foreground job waits for its network its GPUs are idle, for a part 1 -
# T_compute / T of its step. If that part is large enough, the job shares its GPUs by
# halves from the start. Once no GPU is free, background jobs are placed beside such
# jobs, largest idle part first. Foreground jobs displace background jobs, never each
# other.
#
# The paper plans each layer separately, and its background kernels run at a lower GPU
# priority. Jobs here do not report layers, and two processes on one GPU have equal
# priority: see docs/policies/deeppool.md.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from coadapt.goodput.throughput import packed_placement
from coadapt.model import (
    Allocation,
    ClusterView,
    FreeGpus,
    JobId,
    JobView,
    Node,
    NodeId,
    Plan,
    RescaleContract,
    holding,
)
from coadapt.policies.allocation.capacity import Capacity, gpu_type_held, useful_span
from coadapt.policies.allocation.counted_plan import placed_plan
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.communication import step_on
from coadapt.policies.predictors.paces import Paces
from coadapt.policies.predictors.rates import rates_on

# Quotas count shares as fractions; this slack absorbs their rounding.
QUOTA_SLACK_GPUS = 1e-9


class Order(StrEnum):
    """The order in which foreground jobs start. No foreground job is stopped for
    another.
    """

    FIFO = "fifo"
    SHORTEST = "shortest"  # by GPUs × seconds left


@dataclass(frozen=True, slots=True)
class _Planned:
    """A foreground job's plan on a GPU type. idle: the part of a step in which its GPUs
    are idle; None: not known.
    """

    count: int
    amplification: float
    idle: float | None


class DeepPool:
    """Foreground jobs get what they use efficiently, background jobs what is idle.

    amplification: the most GPU time of a step over that on one GPU. least_idle: the
    part of a step that a foreground job must leave its GPUs idle to have a background
    job beside it; 1: no GPU is shared. order: one of Order.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Park et al., DeepPool, MLSys 2022",
        decides="GPU counts, once; which jobs share a GPU",
        oracle="time left, for order=shortest",
    )

    def __init__(
        self,
        *,
        amplification: float = 2.0,
        least_idle: float = 0.5,
        order: str = Order.FIFO,
    ) -> None:
        if not (math.isfinite(amplification) and amplification >= 1.0):
            raise ValueError(
                f"amplification must be finite and >= 1, got {amplification}"
            )
        if not 0.0 <= least_idle <= 1.0:
            raise ValueError(f"least_idle must be within 0..1, got {least_idle}")
        if order not in list(Order):
            raise ValueError(f"order must be one of {', '.join(Order)}, got {order!r}")
        self._amplification = amplification
        self._least_idle = least_idle
        self._order = Order(order)
        self._paces = Paces()

    def allocate(self, view: ClusterView) -> Plan:
        """Return the round's plan: foreground jobs first, then background ones on what
        is idle.
        """
        capacity = Capacity(view)
        pool = _Pool(view)
        for job in view.jobs:
            if job.id in capacity.counts:
                pool.keep(job)
        front = [job for job in view.jobs if requested_gpus(job) > 1]
        back = [job for job in view.jobs if requested_gpus(job) == 1]
        # `_start` removes a background job again if a foreground job needs its GPU.
        for job in (*front, *back):
            if job.id not in pool.given and _lasts(job, pool.nodes):
                pool.keep(job)
        notes: dict[JobId, str] = {}
        for job in self._queue(view, front):
            if job.id not in pool.given and not _stranded(job):
                notes[job.id] = self._start(job, view, pool, back)
        idle = self._idle_beside(front, pool)
        for job in back:
            if job.id not in pool.given and not _stranded(job):
                notes[job.id] = pool.fill(job, idle)
        _count_given(view, pool, capacity)
        for job in view.jobs:
            if job.id not in pool.given:
                foremost = "foreground jobs and those that came earlier go first"
                notes[job.id] = waits(job, requested_gpus(job), capacity, foremost)
        return placed_plan(view, pool.given, notes)

    def _queue(self, view: ClusterView, front: Sequence[JobView]) -> list[JobView]:
        if self._order is Order.FIFO:
            return list(front)
        paces = self._paces.observe(view)

        def left_gpu_s(job: JobView) -> float:
            left_s = [paces[job.id].left_s(name) for name in paces[job.id].step_s]
            return requested_gpus(job) * min(left_s, default=math.inf)

        return sorted(front, key=left_gpu_s)

    def _start(
        self, job: JobView, view: ClusterView, pool: "_Pool", back: Sequence[JobView]
    ) -> str:
        """Start a foreground job if there is room for it, by displacing background jobs
        if necessary. Return a note for its reason, "" if it does not start.
        """
        for displacing in (False, True):
            taken = []
            if displacing:
                taken = [
                    each
                    for each in back
                    if each.id in pool.given and each.id not in pool.bound
                ]
                for each in taken:
                    pool.take_back(each)
            note = self._place(job, view, pool)
            for each in taken:
                pool.keep(each)
            if note:
                return note
        return ""

    def _place(self, job: JobView, view: ClusterView, pool: "_Pool") -> str:
        best: tuple[int, str, _Planned] | None = None
        for gpu_type in sorted({node.gpu_type for node in view.nodes}):
            if job.spec.replicas.allows_type(gpu_type):
                planned = self._planned(job, gpu_type, view)
                num_free = pool.num_free(gpu_type)
                if num_free >= planned.count and (best is None or num_free > best[0]):
                    best = num_free, gpu_type, planned
        if best is None:
            return ""
        _, gpu_type, planned = best
        frozen = job.spec.contract is RescaleContract.FROZEN
        shares = (
            not frozen
            and planned.idle is not None
            and planned.idle >= self._least_idle < 1.0
        )
        if not pool.place(job, gpu_type, planned.count, shares=shares):
            return ""
        if planned.idle is None:
            return "its speed is unknown: it has what it requested"
        measured = (
            f"a step takes {planned.amplification:.2f} times the GPU time of one on "
            f"a single GPU"
        )
        return (
            f"{measured}; its GPUs are idle for {planned.idle:.0%} of it, which others "
            f"may use"
            if shares
            else measured
        )

    def _planned(self, job: JobView, gpu_type: str, view: ClusterView) -> _Planned:
        """Return the plan with the largest count within the amplification. A count is a
        power of two, or the requested number.
        """
        low = useful_span(job)[0]
        count = requested_gpus(job)
        per_node = max(
            node.num_gpus for node in view.nodes if node.gpu_type == gpu_type
        )
        curve = rates_on(job, gpu_type, per_node, least_gain=-1.0)
        if not curve.known or job.spec.contract is RescaleContract.FROZEN:
            return _Planned(count, 1.0, None)
        step_s = {
            each: 1.0 / rate
            for each, rate in zip(curve.counts, curve.rates, strict=True)
        }
        least = curve.counts[0]  # one GPU, or the job's minimum
        best = least
        best_amp = 1.0
        for each in sorted(
            {*(1 << power for power in range(count.bit_length())), count}
        ):
            if low <= each <= count and each in step_s:
                amp = each * step_s[each] / (least * step_s[least])
                if amp <= self._amplification and each >= best:
                    best = each
                    best_amp = amp
        return _Planned(best, best_amp, self._idle(job, gpu_type, best, per_node))

    def _idle(
        self, job: JobView, gpu_type: str, count: int, per_node: int
    ) -> float | None:
        step = step_on(job, gpu_type, packed_placement(count, per_node))
        return None if step is None else step.comm_s / step.whole_s

    def _idle_beside(
        self, front: Sequence[JobView], pool: "_Pool"
    ) -> dict[tuple[NodeId, int], float]:
        """Return which part of its time each shared GPU of a foreground job is idle."""
        idle: dict[tuple[NodeId, int], float] = {}
        for job in front:
            held = pool.given.get(job.id)
            if held is not None and held.shared:
                gpu_type = pool.nodes[held.slots[0][0]].gpu_type
                step = step_on(job, gpu_type, held.placement(pool.nodes))
                part = 0.0 if step is None else step.comm_s / step.whole_s
                idle |= dict.fromkeys(held.shared_gpus(), part)
        return idle


def _count_given(view: ClusterView, pool: "_Pool", capacity: Capacity) -> None:
    """Count the whole GPUs of this round's plan in `capacity`."""
    for job in view.jobs:
        held = pool.given.get(job.id)
        if held is not None and not held.shared and job.id not in capacity.counts:
            gpu_type = pool.nodes[held.slots[0][0]].gpu_type
            capacity.give(job, held.num_replicas, gpu_type)


def _lasts(job: JobView, nodes: Mapping[NodeId, Node]) -> bool:
    """Return whether the job's limits allow it to keep its allocation."""
    held = gpu_type_held(job, nodes)
    limits = job.spec.replicas
    count = job.allocation.num_replicas
    return (
        held is not None
        and limits.allows_type(held)
        and limits.min <= count <= limits.max
    )


def _stranded(job: JobView) -> bool:
    return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)


class _Pool:
    """The free GPUs, device by device, the quotas left, and the allocations planned so
    far. bound: frozen jobs, which never move.
    """

    def __init__(self, view: ClusterView) -> None:
        self.nodes = {node.id: node for node in view.nodes}
        self.given: dict[JobId, Allocation] = {}
        self.bound: set[JobId] = set()
        self._free = FreeGpus(view.nodes)
        self._quota_left: dict[str, float] = dict(view.quotas())

    def keep(self, job: JobView) -> bool:
        """Plan the job's present allocation, if that is free and within its tenant's
        quota. Return whether it is.
        """
        if not self._give(job, job.allocation):
            return False
        if job.spec.contract is RescaleContract.FROZEN:
            self.bound.add(job.id)
        return True

    def take_back(self, job: JobView) -> None:
        held = self.given.pop(job.id)
        self._free.give(holding(held))
        if job.spec.tenant in self._quota_left:
            self._quota_left[job.spec.tenant] += held.num_gpus

    def num_free(self, gpu_type: str) -> int:
        """Return how many GPUs of a type are wholly free."""
        return sum(
            num
            for name, num in self._free.whole.items()
            if self.nodes[name].gpu_type == gpu_type
        )

    def place(self, job: JobView, gpu_type: str, count: int, *, shares: bool) -> bool:
        """Give the job `count` wholly free GPUs of a type, on few nodes, and in one
        rack if possible. Return whether there are so many. shares: give halves of these
        GPUs.
        """
        slots: list[tuple[NodeId, int]] = []
        left = count
        free = {
            name: num
            for name, num in self._free.whole.items()
            if num and self.nodes[name].gpu_type == gpu_type
        }
        racks: dict[str, int] = {}
        for name, num in free.items():
            racks[self.nodes[name].rack] = racks.get(self.nodes[name].rack, 0) + num
        roomy = [rack for rack, num in sorted(racks.items()) if num >= count]
        if roomy:
            rack = min(roomy, key=lambda rack: racks[rack])
            free = {
                name: num for name, num in free.items() if self.nodes[name].rack == rack
            }
        while left and free:
            enough = [name for name in free if free[name] >= left]
            node = (
                min(enough, key=lambda name: (free[name], name))
                if enough
                else min(free, key=lambda name: (-free[name], name))
            )
            taken = min(free.pop(node), left)
            slots.append((node, taken))
            left -= taken
        if left:
            return False
        labels: list[int] = []
        for node, num in slots if shares else ():
            used = {label for name, label in self._free.parts if name == node}
            labels += [label for label in range(len(used) + num) if label not in used][
                :num
            ]
        share = 0.5 if shares else 1.0
        return self._give(
            job, Allocation(slots=tuple(slots), gpu_share=share, shared=tuple(labels))
        )

    def fill(self, job: JobView, idle: Mapping[tuple[NodeId, int], float]) -> str:
        """Start a background job on a free GPU, or else beside the foreground job whose
        GPUs are idle for the largest part. Return a note, "" if it does not start.
        """
        types = {
            node.gpu_type
            for node in self.nodes.values()
            if job.spec.replicas.allows_type(node.gpu_type)
        }
        for gpu_type in sorted(types, key=lambda name: (-self.num_free(name), name)):
            if self.num_free(gpu_type) and self.place(job, gpu_type, 1, shares=False):
                return "on a GPU that is idle"
        for (node, label), part in sorted(
            idle.items(), key=lambda each: (-each[1], each[0])
        ):
            beside = Allocation(slots=((node, 1),), gpu_share=0.5, shared=(label,))
            if self.nodes[node].gpu_type in types and self._give(job, beside):
                return (
                    f"beside a foreground job whose GPU is idle for {part:.0%} of "
                    f"its time"
                )
        return ""

    def _give(self, job: JobView, allocation: Allocation) -> bool:
        wanted = holding(allocation)
        if not self._free.fits(wanted):
            return False
        tenant = job.spec.tenant
        if (
            self._quota_left.get(tenant, math.inf)
            < allocation.num_gpus - QUOTA_SLACK_GPUS
        ):
            return False
        self._free.take(wanted)
        if tenant in self._quota_left:
            self._quota_left[tenant] -= allocation.num_gpus
        self.given[job.id] = allocation
        return True
