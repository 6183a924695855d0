"""Delay scheduling with timers that tune themselves, after Dally (Sharma et al.,
2024).
"""

# A job wants its GPUs close together: on one node, else in one rack, else anywhere. It
# declines an offer that is spread more widely than it allows, for a while: the timer of
# a level says how long jobs of its size wait for that level. Timers follow what earlier
# offers were worth waiting for. The job that loses most of a step to the network, and
# has had least service, is asked first; it may displace a job that loses less.
#
# The paper's formulas for priority, timers and tuner could not be read: those here are
# ours (docs/policies).

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, NamedTuple

from coadapt.goodput.throughput import packed_placement
from coadapt.model import (
    Allocation,
    ClusterView,
    JobId,
    JobView,
    Node,
    NodeId,
    Plan,
    RescaleContract,
)
from coadapt.policies.allocation.capacity import Capacity, FreeNodes, gpu_type_held
from coadapt.policies.allocation.counted_plan import placed_plan
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.communication import step_on

NUM_WAITS_KEPT = 50
MEMORY_S = 86_400.0  # waits that ended longer ago say nothing of today's load
# Part of a step that a job loses to the network where it reported nothing: between
# small and large models.
LOST_UNKNOWN = 0.2


class Level(IntEnum):
    """How widely the GPUs of a job are spread."""

    NODE = 0
    RACK = 1
    NETWORK = 2


LEVEL_WORDS = ("one node", "one rack", "several racks")


_NOT_NEGATIVE = (
    "node_delay_s",
    "rack_delay_s",
    "node_cap_s",
    "rack_cap_s",
    "quantum_s",
    "hysteresis",
)


class _Offer(NamedTuple):
    level: Level
    gpu_type: str
    slots: tuple[tuple[NodeId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DallyOptions:
    """How long jobs wait for close GPUs, and when one displaces another. Durations in
    seconds.

    node_delay_s, rack_delay_s: how long a job insists on one node, on one rack, until
    the timers have seen offers accepted. tuned: whether timers follow the waits of
    jobs; else these two hold. node_cap_s, rack_cap_s: no timer is longer. quantum_s: a
    job that started is not displaced for so long.
    hysteresis: how much higher, as a part, the priority of a job must be that displaces
    another. least_lost: the part of a step that every job counts as losing at least, so
    that service decides among the others.
    """

    node_delay_s: float = 1_800.0
    rack_delay_s: float = 3_600.0
    tuned: bool = True
    node_cap_s: float = 43_200.0
    rack_cap_s: float = 86_400.0
    quantum_s: float = 300.0
    hysteresis: float = 0.2
    least_lost: float = 0.2

    def __post_init__(self) -> None:
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and >= 0, got {value}")
        if self.rack_delay_s < self.node_delay_s or self.rack_cap_s < self.node_cap_s:
            raise ValueError(
                "rack_delay_s and rack_cap_s must not be below those of a node"
            )
        if not 0.0 < self.least_lost <= 1.0:
            raise ValueError(f"least_lost must be in (0, 1], got {self.least_lost}")


@dataclass(slots=True)
class _Timers:
    """Waits after which jobs of each size (powers of two) accepted a level: (when, how
    long), the latest.
    """

    waits: dict[tuple[int, Level], deque[tuple[float, float]]] = field(
        default_factory=dict
    )

    def accepted(self, count: int, level: Level, at: float, waited_s: float) -> None:
        kept = self.waits.setdefault(
            (count.bit_length(), level), deque(maxlen=NUM_WAITS_KEPT)
        )
        kept.append((at, waited_s))

    def delay_s(
        self, count: int, level: Level, at: float, default_s: float, cap_s: float
    ) -> float:
        """Return mean plus standard deviation of the waits of the last day; the default
        without any.
        """
        kept = self.waits.get((count.bit_length(), level), ())
        waits_s = [waited_s for when, waited_s in kept if at - when <= MEMORY_S]
        if not waits_s:
            return min(default_s, cap_s)
        mean_s = sum(waits_s) / len(waits_s)
        variance = sum((each - mean_s) ** 2 for each in waits_s) / len(waits_s)
        return min(mean_s + math.sqrt(variance), cap_s)


@dataclass(frozen=True, kw_only=True)
class Dally(DallyOptions):
    """Network-hungry jobs with little service choose first, and wait for GPUs that are
    close together.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="after Sharma et al., Dally, 2024",
        decides="places, and how long to wait for them; order",
    )

    _timers: _Timers = field(
        init=False, repr=False, compare=False, default_factory=_Timers
    )
    _since: dict[JobId, float] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the round's plan: a running job stays, unless a waiting job takes its
        GPUs.
        """
        capacity = Capacity(view)
        kept = {
            job.id: job.allocation for job in view.jobs if job.id in capacity.counts
        }
        table = _Table(view, kept)
        rank = priorities(view, self.least_lost)
        movable = [
            job for job in view.jobs if job.id not in kept and not _stranded(job)
        ]
        movable.sort(key=lambda job: -rank[job.id])
        for gone in set(self._since) - {job.id for job in view.jobs}:
            del self._since[gone]
        for job in movable:
            table.keep(job)
        notes: dict[JobId, str] = {}
        waiting = [job for job in movable if job.id not in table.given]
        for job in waiting:
            notes[job.id] = self._offer(job, view, table, rank)
        self._move_closer(view, table, [job for job in movable if job not in waiting])
        for job in view.jobs:
            if job.id in table.given and job.id not in kept:
                capacity.give(job, requested_gpus(job), table.types[job.id])
        for job in view.jobs:
            if job.id in table.given:
                self._since.pop(job.id, None)
                notes.setdefault(job.id, "")
            elif notes.get(job.id):
                notes[job.id] = waits(job, requested_gpus(job), capacity, notes[job.id])
            else:
                displaced = (
                    "jobs that lose more to the network, or had less service, go first"
                )
                notes[job.id] = waits(job, requested_gpus(job), capacity, displaced)
        return placed_plan(view, table.given, notes)

    def _offer(
        self, job: JobView, view: ClusterView, table: "_Table", rank: dict[JobId, float]
    ) -> str:
        """Give `job`, which waits, the closest GPUs that it accepts, maybe from others;
        return a note.
        """
        # Without a memory of it a job that never ran waits since it came, one that was
        # stopped since now.
        first = job.submitted_at if job.usage.started_at is None else view.at
        waited_s = view.at - self._since.setdefault(job.id, min(first, view.at))
        if not table.within_quota(job):
            return ""
        allowed = self._allowed(job, view, waited_s)
        count = requested_gpus(job)
        offer = table.closest(job)
        if offer is None or offer.level > allowed:
            offer = self._displace(job, view, table, rank, allowed) or offer
        if offer is None:
            return "jobs that lose more to the network, or had less service, go first"
        if offer.level > allowed:
            return (
                f"it declines GPUs on {LEVEL_WORDS[offer.level]} and waits for "
                f"{LEVEL_WORDS[allowed]}, "
                f"since {waited_s / 60.0:.0f} minutes"
            )
        table.give(job, offer)
        self._timers.accepted(count, offer.level, view.at, waited_s)
        return f"on {LEVEL_WORDS[offer.level]}, after {waited_s / 60.0:.0f} minutes"

    def _allowed(self, job: JobView, view: ClusterView, waited_s: float) -> Level:
        """Return the widest spread that `job` accepts by now; never closer than the
        cluster could give it.
        """
        count = requested_gpus(job)
        delays_s = [
            (Level.NODE, self.node_delay_s, self.node_cap_s),
            (Level.RACK, self.rack_delay_s, self.rack_cap_s),
        ]
        closest = tightest(job, view)
        for level, fixed_s, cap_s in delays_s:
            delay_s = min(fixed_s, cap_s)
            if self.tuned:
                delay_s = self._timers.delay_s(count, level, view.at, fixed_s, cap_s)
            if waited_s < delay_s:
                return max(level, closest)
        return Level.NETWORK

    def _displace(
        self,
        job: JobView,
        view: ClusterView,
        table: "_Table",
        rank: dict[JobId, float],
        allowed: Level,
    ) -> _Offer | None:
        """Return an offer that `job` accepts if jobs of clearly lower priority leave,
        which they then do.
        """
        lower = [
            other
            for other in view.jobs
            if other.id in table.kept_whole
            and rank[job.id] > rank[other.id] * (1.0 + self.hysteresis)
            and self._had_its_quantum(view, other)
        ]
        lower.sort(key=lambda other: rank[other.id])
        gone: list[JobView] = []
        for other in lower:
            table.take_back(other)
            gone.append(other)
            offer = table.closest(job)
            if offer is not None and offer.level <= allowed:
                trial = dict(offer.slots)
                for each in gone:  # those whose GPUs are not needed stay
                    table.keep(each, beside=trial)
                return offer
        for each in gone:
            table.keep(each)
        return None

    def _had_its_quantum(self, view: ClusterView, job: JobView) -> bool:
        return view.service_gpu_s(job) >= self.quantum_s * job.allocation.num_replicas

    def _move_closer(
        self, view: ClusterView, table: "_Table", running: Sequence[JobView]
    ) -> None:
        """Give jobs that run closer GPUs where these are free and worth a rescale."""
        nodes = {node.id: node for node in view.nodes}
        for job in running:
            held = table.given.get(job.id)
            if held is None or level_of(held, nodes) <= tightest(job, view):
                continue
            table.take_back(job)
            offer = table.closest(job)
            if offer is not None and offer.level < level_of(held, nodes):
                now_s = job.measured.step_time_s
                step = step_on(
                    job, offer.gpu_type, Allocation(slots=offer.slots).placement(nodes)
                )
                # Its remaining time is unknown. The guess is the time that it has
                # trained.
                ran_s = view.service_gpu_s(job) / requested_gpus(job)
                if (
                    step is not None
                    and now_s
                    and (1.0 - step.whole_s / now_s) * ran_s > job.rescale_s
                ):
                    table.give(job, offer)
                    continue
            table.keep(job)


def priorities(view: ClusterView, least_lost: float) -> dict[JobId, float]:
    """Return ν / (1 + A / mean A) of each job: ν the part of a step lost to the
    network, A its service.
    """
    nodes = {node.id: node for node in view.nodes}
    served_gpu_s = [view.service_gpu_s(job) for job in view.jobs]
    mean_gpu_s = max(sum(served_gpu_s) / max(len(served_gpu_s), 1), 1.0)
    return {
        job.id: max(lost_part(job, view, nodes), least_lost)
        / (1.0 + served / mean_gpu_s)
        for job, served in zip(view.jobs, served_gpu_s, strict=True)
    }


def lost_part(job: JobView, view: ClusterView, nodes: dict[NodeId, Node]) -> float:
    """Return which part of a step `job` loses to the network: as it runs, else as close
    as it can.
    """
    count = requested_gpus(job)
    if count == 1:
        return 0.0
    held = gpu_type_held(job, nodes)
    if (
        held is not None
        and not job.allocation.shared
        and job.allocation.num_replicas == count
    ):
        step = step_on(job, held, job.allocation.placement(nodes))
        whole_s = job.measured.step_time_s or (
            step.whole_s if step is not None else 0.0
        )
    else:
        allowed = [
            node for node in view.nodes if job.spec.replicas.allows_type(node.gpu_type)
        ]
        largest = max(allowed, key=lambda node: node.num_gpus, default=None)
        if largest is None:
            return LOST_UNKNOWN
        step = step_on(job, largest.gpu_type, packed_placement(count, largest.num_gpus))
        whole_s = step.whole_s if step is not None else 0.0
    if step is None or not whole_s:
        return LOST_UNKNOWN
    return min(max(1.0 - step.compute_s / whole_s, 0.0), 1.0)


def level_of(allocation: Allocation, nodes: dict[NodeId, Node]) -> Level:
    """Return how widely `allocation` is spread."""
    if allocation.num_nodes <= 1:
        return Level.NODE
    return Level.RACK if allocation.placement(nodes).num_racks == 1 else Level.NETWORK


def tightest(job: JobView, view: ClusterView) -> Level:
    """Return the closest level at which the cluster, were it empty, has room for
    `job`.
    """
    count = requested_gpus(job)
    racks: dict[tuple[str, str], int] = {}
    for node in view.nodes:
        if job.spec.replicas.allows_type(node.gpu_type):
            if node.num_gpus >= count:
                return Level.NODE
            key = (node.gpu_type, node.rack)
            racks[key] = racks.get(key, 0) + node.num_gpus
    return Level.RACK if max(racks.values(), default=0) >= count else Level.NETWORK


def _stranded(job: JobView) -> bool:
    return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)


class _Table:
    """The GPUs on the table in this round, and what jobs were given of them so far."""

    def __init__(self, view: ClusterView, kept: dict[JobId, Allocation]) -> None:
        self._nodes = {node.id: node for node in view.nodes}
        self._quotas = view.quotas()
        self._used: dict[str, float] = {}
        free = FreeNodes(self._nodes)
        tenants = {job.id: job.spec.tenant for job in view.jobs}
        for job_id, allocation in kept.items():
            free.take(allocation)
            tenant = tenants[job_id]
            self._used[tenant] = self._used.get(tenant, 0.0) + allocation.num_gpus
        self._free = dict(free.gpus)
        self.given: dict[JobId, Allocation] = dict(kept)
        self.types: dict[JobId, str] = {}
        self.kept_whole: set[JobId] = set()

    def within_quota(self, job: JobView) -> bool:
        quota = self._quotas.get(job.spec.tenant)
        used = self._used.get(job.spec.tenant, 0.0)
        return quota is None or used + requested_gpus(job) <= quota

    def keep(self, job: JobView, *, beside: dict[NodeId, int] | None = None) -> None:
        """Give `job` what it holds, if it is all it wants and free, with `beside` GPUs
        on nodes left free.
        """
        held = job.allocation
        gpu_type = gpu_type_held(job, self._nodes)
        if gpu_type is None or held.shared or held.num_replicas != requested_gpus(job):
            return
        room = all(
            self._free[node] - (beside or {}).get(node, 0) >= count
            for node, count in held.slots
        )
        if room and job.spec.replicas.allows_type(gpu_type) and self.within_quota(job):
            self._take(job, held, gpu_type)
            self.kept_whole.add(job.id)

    def give(self, job: JobView, offer: _Offer) -> None:
        self._take(job, Allocation(slots=offer.slots), offer.gpu_type)

    def take_back(self, job: JobView) -> None:
        """Take back what `job` was given."""
        for node, count in self.given.pop(job.id).slots:
            self._free[node] += count
        self._used[job.spec.tenant] -= requested_gpus(job)
        self.kept_whole.discard(job.id)

    def closest(self, job: JobView) -> _Offer | None:
        """Return the closest free GPUs for `job`: the fullest node that has room, else
        the fullest rack.
        """
        count = requested_gpus(job)
        offers = []
        for gpu_type in sorted({node.gpu_type for node in self._nodes.values()}):
            if job.spec.replicas.allows_type(gpu_type):
                offers += self._closest_of(gpu_type, count)
        return min(offers, key=lambda offer: offer.level, default=None)

    def _closest_of(self, gpu_type: str, count: int) -> list[_Offer]:
        free = {
            name: self._free[name]
            for name, node in self._nodes.items()
            if node.gpu_type == gpu_type
        }
        single = [name for name, num in free.items() if num >= count]
        if single:
            best = min(single, key=lambda name: (free[name], name))
            return [_Offer(Level.NODE, gpu_type, ((best, count),))]
        racks: dict[str, int] = {}
        for name, num in free.items():
            rack = self._nodes[name].rack
            racks[rack] = racks.get(rack, 0) + num
        roomy = [rack for rack, num in racks.items() if num >= count]
        if roomy:
            order = [min(roomy, key=lambda rack: (racks[rack], rack))]
        elif sum(racks.values()) >= count:
            order = sorted(racks, key=lambda rack: (-racks[rack], rack))
        else:
            return []
        slots: list[tuple[NodeId, int]] = []
        for rack in order:
            inside = [
                name for name in free if self._nodes[name].rack == rack and free[name]
            ]
            for name in sorted(inside, key=lambda name: (-free[name], name)):
                if taken := min(free[name], count):
                    slots.append((name, taken))
                    count -= taken
        return [_Offer(Level.RACK if roomy else Level.NETWORK, gpu_type, tuple(slots))]

    def _take(self, job: JobView, allocation: Allocation, gpu_type: str) -> None:
        for node, count in allocation.slots:
            self._free[node] -= count
        tenant = job.spec.tenant
        self._used[tenant] = self._used.get(tenant, 0.0) + requested_gpus(job)
        self.given[job.id] = allocation
        self.types[job.id] = gpu_type
