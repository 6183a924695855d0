"""LWF-κ with SRSF and AdaDUAL (Wang et al., 2020): least-loaded GPUs, least remaining
service first.
"""

# Each GPU has a workload: the time that the jobs placed on it still train. A job of at
# most κ GPUs takes those with least workload, wherever they are; a larger one is
# consolidated: nodes in order of their mean workload, filled one after the other. Jobs
# that are placed on the same GPU take turns, least remaining service first: in the
# paper within each iteration, here round by round. A job runs where all its GPUs are
# free for it.
#
# A GPU here is a number on its node, for the workloads only: which of a node's GPUs a
# replica is given is the executor's business, so a job runs as soon as its nodes have
# as many free GPUs as it needs there.

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, NamedTuple

from coadapt.model import (
    Allocation,
    ClusterView,
    JobId,
    JobView,
    Node,
    NodeId,
    Placement,
    Plan,
)
from coadapt.policies.allocation.capacity import (
    Capacity,
    FreeNodes,
    Verdict,
    gpu_type_held,
)
from coadapt.policies.allocation.counted_plan import placed_plan
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import plural, waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.communication import step_on
from coadapt.policies.predictors.paces import Pace, Paces

Gpu = tuple[NodeId, int]

# 2 (β + η) / β of the authors' 10 Gb/s Ethernet, β = 0.856 ms/MB and η = 0.235 ms/MB.
SIZE_RATIO = 2.0 * (0.856 + 0.235) / 0.856


class Overlap(StrEnum):
    """Which jobs of several nodes may exchange gradients beside others on a node."""

    ANY = "any"
    ALONE = "alone"  # SRSF(1)
    ADADUAL = "adadual"  # beside one other that moves far more


class _Place(NamedTuple):
    """Where a job is placed: a GPU type, and its GPUs in rank order."""

    gpu_type: str
    gpus: tuple[Gpu, ...]

    @property
    def slots(self) -> tuple[tuple[NodeId, int], ...]:
        counts: dict[NodeId, int] = {}
        for node, _ in self.gpus:
            counts[node] = counts.get(node, 0) + 1
        return tuple(counts.items())


class Lwf:
    """Jobs with the least remaining service first, each where LWF-κ put it.

    kappa: the most GPUs of a job that is not consolidated. residents: the most jobs
    that are placed on one GPU, of which one runs; the others wait for it. settled: a
    job that waits keeps its place, as in the paper; else it is placed again in each
    round. overlap: one of Overlap. size_ratio: how many times as long the exchange must
    be that an adadual job runs beside.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Wang et al., LWF-κ and Ada-SRSF, 2020",
        decides="order and places",
        oracle="time left",
    )

    def __init__(
        self,
        *,
        kappa: int = 1,
        residents: int = 2,
        settled: bool = False,
        overlap: str = Overlap.ADADUAL,
        size_ratio: float = SIZE_RATIO,
    ) -> None:
        if kappa < 0 or residents < 1:
            raise ValueError(
                f"kappa must be >= 0 and residents >= 1, got {kappa} and {residents}"
            )
        if overlap not in list(Overlap):
            raise ValueError(
                f"overlap must be one of {', '.join(Overlap)}, got {overlap!r}"
            )
        if not (math.isfinite(size_ratio) and size_ratio > 0.0):
            raise ValueError(f"size_ratio must be finite and > 0, got {size_ratio}")
        self._kappa = kappa
        self._residents = residents
        self._settled = settled
        self._overlap = Overlap(overlap)
        self._size_ratio = size_ratio
        self._paces = Paces()
        self._places: dict[JobId, _Place] = {}

    def allocate(self, view: ClusterView) -> Plan:
        """Return the round's plan; jobs that came are placed first, then the GPUs go
        round.
        """
        paces = self._paces.observe(view)
        capacity = Capacity(view)
        nodes = {node.id: node for node in view.nodes}
        free = FreeNodes(nodes)
        allocations = dict[JobId, Allocation]()
        for job in view.jobs:
            if job.id in capacity.counts:
                free.take(job.allocation)
                allocations[job.id] = job.allocation
        self._place_all(view, paces, capacity)
        ordered = sorted(
            (
                job
                for job in view.jobs
                if job.id not in capacity.counts and job.id in self._places
            ),
            key=lambda job: (
                _service_gpu_s(job, paces[job.id], self._places[job.id].gpu_type),
                job.id,
            ),
        )
        links = _Links(nodes, self._may_overlap)
        busy: dict[JobId, str] = {}
        for job in ordered:
            place = self._places[job.id]
            allocation = _same_slots(job, Allocation(slots=place.slots))
            if any(free.gpus[node] < count for node, count in place.slots):
                busy[job.id] = "jobs with less left to train go first there"
            elif capacity.verdict(job, requested_gpus(job)) is not Verdict.FITS:
                continue
            elif not links.admits(job, allocation):
                busy[job.id] = (
                    "its exchange would slow another one on the same node too much"
                )
            elif capacity.give(job, requested_gpus(job), place.gpu_type) and free.take(
                allocation
            ):
                links.add(job, allocation)
                allocations[job.id] = allocation
        return placed_plan(
            view, allocations, self._notes(view, allocations, capacity, paces, busy)
        )

    def _place_all(
        self, view: ClusterView, paces: Mapping[JobId, Pace], capacity: Capacity
    ) -> None:
        """Bring the places up to date: of jobs that hold GPUs, of those placed before,
        then of new ones.
        """
        nodes = {node.id: node for node in view.nodes}
        before = self._places
        self._places = {}
        loads = _Loads(view.nodes, self._residents)

        def settle(job: JobView, place: _Place) -> None:
            self._places[job.id] = place
            loads.add(place.gpus, paces[job.id].left_s(place.gpu_type))

        waiting = []
        for job in view.jobs:
            held = gpu_type_held(job, nodes)
            place = before.get(job.id)
            if job.id in capacity.counts or (held is not None and _whole(job, nodes)):
                if (
                    place is None
                    or place.slots != job.allocation.slots
                    or not _stands(job, place, nodes)
                ):
                    place = _Place(held or "", loads.least_on(job.allocation))
                if held in paces[job.id].step_s or job.id in capacity.counts:
                    settle(job, place)
                    continue
            if place is not None and self._settled and _stands(job, place, nodes):
                settle(job, place)
                continue
            waiting.append(job)
        waiting.sort(key=lambda job: min_service_gpu_s(job, paces[job.id]))
        for job in waiting:
            chosen = self._choose(job, view, paces[job.id], loads)
            if chosen is not None:
                settle(job, chosen)

    def _choose(
        self, job: JobView, view: ClusterView, pace: Pace, loads: "_Loads"
    ) -> _Place | None:
        """Return where `job` ends first, if all before it on its GPUs do; None if there
        is no room.
        """
        count = requested_gpus(job)
        best = None
        for gpu_type in sorted(pace.step_s):
            of_type = [node for node in view.nodes if node.gpu_type == gpu_type]
            gpus = loads.least(of_type, count, spread=count <= self._kappa)
            if gpus is not None:
                ends_s = max(loads.left_s[gpu] for gpu in gpus) + pace.left_s(gpu_type)
                if best is None or ends_s < best[0]:
                    best = ends_s, _Place(gpu_type, gpus)
        return None if best is None else best[1]

    def _may_overlap(self, new_s: float, others_s: Sequence[float | None]) -> bool:
        """Return whether an exchange of `new_s` seconds a step may begin beside
        `others_s` on some node.
        """
        if self._overlap is Overlap.ANY or not others_s or not new_s:
            return True
        if self._overlap is Overlap.ALONE or len(others_s) > 1:
            return False
        return others_s[0] is not None and others_s[0] >= self._size_ratio * new_s

    def _notes(
        self,
        view: ClusterView,
        allocations: Mapping[JobId, Allocation],
        capacity: Capacity,
        paces: Mapping[JobId, Pace],
        busy: Mapping[JobId, str],
    ) -> dict[JobId, str]:
        notes = {}
        for job in view.jobs:
            place = self._places.get(job.id)
            if job.id in allocations:
                note = ""
            elif place is not None and job.id in busy:
                note = (
                    f"its GPUs are on "
                    f"{', '.join(node for node, _ in place.slots)}: {busy[job.id]}"
                )
            else:
                crowded = f"all others have {plural(self._residents, 'job')} already"
                note = waits(
                    job, requested_gpus(job), capacity, crowded if place is None else ""
                )
            if not paces[job.id].known:
                note += (
                    "; " if note else ""
                ) + "its length is not known: it counts as half done"
            notes[job.id] = note
        return notes


def min_service_gpu_s(job: JobView, pace: Pace) -> float:
    """Return GPUs × seconds that `job` has left on its best GPU type; infinity if it
    can run on none.
    """
    return min(
        (_service_gpu_s(job, pace, name) for name in pace.step_s), default=math.inf
    )


def _service_gpu_s(job: JobView, pace: Pace, gpu_type: str) -> float:
    return requested_gpus(job) * pace.left_s(gpu_type)


def _whole(job: JobView, nodes: Mapping[NodeId, Node]) -> bool:
    """Return whether `job` holds all the GPUs that it requested, for itself, on nodes
    that have as many.
    """
    there = all(count <= nodes[node].num_gpus for node, count in job.allocation.slots)
    return (
        there
        and job.allocation.num_replicas == requested_gpus(job)
        and not job.allocation.shared
    )


def _same_slots(job: JobView, allocation: Allocation) -> Allocation:
    """Return what `job` holds where that is the same but for the order of ranks."""
    held = job.allocation
    return (
        held
        if not held.shared and set(held.slots) == set(allocation.slots)
        else allocation
    )


def _stands(job: JobView, place: _Place, nodes: Mapping[NodeId, Node]) -> bool:
    """Return whether `place` is still there for `job`: nodes go, or come back smaller
    or of another type.
    """
    fits = all(
        node in nodes
        and nodes[node].gpu_type == place.gpu_type
        and index < nodes[node].num_gpus
        for node, index in place.gpus
    )
    return (
        fits
        and len(place.gpus) == requested_gpus(job)
        and job.spec.replicas.allows_type(place.gpu_type)
    )


class _Loads:
    """left_s: seconds that the jobs placed on each GPU still train, one after the
    other.
    """

    def __init__(self, nodes: Iterable[Node], residents: int) -> None:
        self._residents = residents
        self.left_s: dict[Gpu, float] = {
            (node.id, index): 0.0 for node in nodes for index in range(node.num_gpus)
        }
        self._num_jobs: dict[Gpu, int] = dict.fromkeys(self.left_s, 0)

    def add(self, gpus: Iterable[Gpu], left_s: float) -> None:
        for gpu in gpus:
            self.left_s[gpu] += left_s
            self._num_jobs[gpu] += 1

    def least(
        self, nodes: Sequence[Node], count: int, *, spread: bool
    ) -> tuple[Gpu, ...] | None:
        """Return the `count` GPUs that LWF-κ takes, spread or consolidated; None if
        there are too few.
        """
        rooms = [(node, room) for node in nodes if (room := self._room(node))]
        if sum(len(room) for _, room in rooms) < count:
            return None
        if spread:
            taken = sorted(
                (gpu for _, room in rooms for gpu in room), key=self.left_s.__getitem__
            )[:count]
            order = list(dict.fromkeys(node for node, _ in taken))
            return tuple(sorted(taken, key=lambda gpu: order.index(gpu[0])))
        rooms.sort(
            key=lambda each: sum(self.left_s[gpu] for gpu in each[1]) / len(each[1])
        )
        return tuple([gpu for _, room in rooms for gpu in room][:count])

    def least_on(self, allocation: Allocation) -> tuple[Gpu, ...]:
        """Return GPUs of the nodes of `allocation` for its replicas, the least loaded
        ones.
        """
        gpus: list[Gpu] = []
        for node, count in allocation.slots:
            of_node = [gpu for gpu in self.left_s if gpu[0] == node]
            gpus += sorted(of_node, key=self.left_s.__getitem__)[:count]
        return tuple(gpus)

    def _room(self, node: Node) -> list[Gpu]:
        """Return the GPUs of `node` that may have one more job, least loaded first."""
        gpus = [(node.id, index) for index in range(node.num_gpus)]
        return sorted(
            (gpu for gpu in gpus if self._num_jobs[gpu] < self._residents),
            key=self.left_s.__getitem__,
        )


class _Links:
    """Exchanges on each node, of the jobs that run in this round: seconds of a step,
    None if not known.
    """

    def __init__(
        self,
        nodes: Mapping[NodeId, Node],
        may: Callable[[float, Sequence[float | None]], bool],
    ) -> None:
        self._nodes = nodes
        self._may = may
        self._on: dict[NodeId, list[float | None]] = {}

    def admits(self, job: JobView, allocation: Allocation) -> bool:
        """Return whether `job` may run beside the exchanges on each of its nodes."""
        if allocation.num_nodes < 2:
            return True
        new_s = self._comm_s(job, allocation)
        return new_s is None or all(
            self._may(new_s, self._on.get(node, ())) for node, _ in allocation.slots
        )

    def add(self, job: JobView, allocation: Allocation) -> None:
        if allocation.num_nodes > 1:
            comm_s = self._comm_s(job, allocation)
            for node, _ in allocation.slots:
                self._on.setdefault(node, []).append(comm_s)

    def _comm_s(self, job: JobView, allocation: Allocation) -> float | None:
        placement: Placement = allocation.placement(self._nodes)
        step = step_on(job, self._nodes[allocation.slots[0][0]].gpu_type, placement)
        return None if step is None else step.comm_s
