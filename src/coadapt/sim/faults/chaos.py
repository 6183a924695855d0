"""A policy that plans at random, and a solver that fails in every way that a policy's
host can fail.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from coadapt.core.commands import Solve
from coadapt.core.events import Event, PlanFailed, PlanReady
from coadapt.goodput.batch import split_total
from coadapt.model import (
    WAITING,
    Allocation,
    BatchConfig,
    ClusterView,
    FreeGpus,
    JobId,
    JobView,
    Node,
    NodeId,
    Plan,
    RescaleContract,
    check_plan,
    holding,
)
from coadapt.policies.base import Policy

KEEP_CHANCE = 0.45
WAIT_CHANCE = 0.15
DICTATE_CHANCE = 0.4
SHARED_GPU_CHANCE = 0.15
THINKING_S = 15.0  # what a slow but honest decision takes
LATE_MAX_S = 200.0


class ChaosPolicy:
    """Makes valid plans at random: jobs grow, shrink, move, wait and change batches.

    From `calm_at` on jobs keep their allocations, and waiting jobs start, so that all
    jobs end.
    """

    def __init__(self, seed: int = 0, calm_at: float = 0.0) -> None:
        self._random = random.Random(seed)
        self._calm_at = calm_at

    def allocate(self, view: ClusterView) -> Plan:
        calm = view.at >= self._calm_at
        free = FreeGpus(view.nodes)
        allocations = {} if calm else self._first(view, free)
        batches: dict[JobId, BatchConfig] = {}
        for job in self._order(view, calm):
            if job.id in allocations:
                continue
            allocation = self._pick(job, view.nodes, free, calm)
            if not allocation:
                continue
            free.take(holding(allocation))
            allocations[job.id] = allocation
            dictates = self._random.random() < DICTATE_CHANCE
            fits = allocation.num_replicas <= job.spec.batch.max_total
            if dictates and fits and not job.spec.batch_is_own:
                batches[job.id] = self._batch(job, allocation.num_replicas)
        return Plan(allocations=allocations, batches=batches)

    def _first(self, view: ClusterView, free: FreeGpus) -> dict[JobId, Allocation]:  # noqa: ARG002  # for others
        """Return the allocations of some jobs that are planned before all others, and
        remove these GPUs from `free`.
        """
        return {}

    def _sharers(self) -> int:
        """Return how many jobs share the GPUs of the next allocation."""
        return 2 if self._random.random() < SHARED_GPU_CHANCE else 1

    def _order(self, view: ClusterView, calm: bool) -> list[JobView]:
        if calm:
            return sorted(view.jobs, key=lambda job: not job.allocation)
        return self._random.sample(view.jobs, len(view.jobs))

    def _pick(
        self, job: JobView, nodes: tuple[Node, ...], free: FreeGpus, calm: bool
    ) -> Allocation:
        held = job.allocation
        type_of = {node.id: node.gpu_type for node in nodes}
        allowed = job.spec.replicas.allows_type
        # A lost node never fits, so its type is not looked up.
        fits = free.fits(holding(held)) and all(
            allowed(type_of[node]) for node, _ in held.slots
        )
        bound = job.spec.contract is RescaleContract.FROZEN and bool(held)
        if held and fits and (calm or self._random.random() < KEEP_CHANCE):
            return held
        if bound or (not calm and self._random.random() < WAIT_CHANCE):
            return WAITING
        sharers = self._sharers()
        gpu_types = sorted(
            {gpu_type for gpu_type in type_of.values() if allowed(gpu_type)}
        )
        for gpu_type in self._random.sample(gpu_types, len(gpu_types)):
            of_type = [node.id for node in nodes if node.gpu_type == gpu_type]
            allocation = self._place(job, of_type, free, sharers)
            if allocation:
                return allocation
        return WAITING

    def _place(
        self, job: JobView, nodes: list[NodeId], free: FreeGpus, sharers: int
    ) -> Allocation:
        limits = job.spec.replicas
        labels = (
            {node: free.open_labels(node, sharers) for node in nodes}
            if sharers > 1
            else {}
        )
        capacity = {
            node: len(labels[node]) if labels else free.whole[node] for node in nodes
        }
        most = min(limits.max, sum(capacity.values()))
        if most < limits.min:
            return WAITING
        left = self._random.randint(limits.min, most)
        slots = []
        shared: list[int] = []
        for node_id in self._random.sample(sorted(capacity), len(capacity)):
            if count := min(left, capacity[node_id]):
                slots.append((node_id, count))
                shared += labels.get(node_id, [])[:count]
                left -= count
        return Allocation(
            slots=tuple(slots), gpu_share=1.0 / sharers, shared=tuple(shared)
        )

    def _batch(self, job: JobView, num_replicas: int) -> BatchConfig:
        limits = job.spec.batch
        if not job.spec.adaptive:
            return split_total(limits.requested, num_replicas, limits, exact=True)
        return split_total(
            self._random.randint(limits.initial, limits.max_total), num_replicas, limits
        )


Spoil = Callable[[Plan, ClusterView, random.Random], Plan]


class FaultySolver:
    """Runs a policy. Now and then it raises, answers late, twice or never, or makes the
    plan invalid.

    Raises PlanError if the policy's own plan is invalid.

    send: called as `send(event, delay_s)`, delivers the answer to the scheduler.
    hostile: returns whether faults may happen now. spoil: makes a plan invalid.
    """

    def __init__(
        self,
        policy: Policy,
        rng: random.Random,
        chance: float,
        hostile: Callable[[], bool],
        send: Callable[[Event, float], None],
        *,
        spoil: Spoil | None = None,
    ) -> None:
        self._policy = policy
        self._random = rng
        self._chance = chance
        self._hostile = hostile
        self._send = send
        self._spoil = spoil or spoiled

    def __call__(self, command: Solve, _post: object) -> None:
        view = command.view
        rng = self._random
        plan = self._policy.allocate(view)
        check_plan(view, plan)
        ready = PlanReady(at=view.at, round=command.round, plan=plan)
        if not self._hostile() or rng.random() >= self._chance:
            self._send(ready, rng.choice((0.0, THINKING_S)) if self._hostile() else 0.0)
            return
        answer: PlanReady | PlanFailed = ready
        what = rng.choice(("raise", "spoil", "stale", "good", "good"))
        if what == "raise":
            answer = PlanFailed(
                at=view.at, round=command.round, error="RuntimeError: out of ideas"
            )
        elif what == "spoil":
            answer = replace(ready, plan=self._spoil(plan, view, rng))
        elif what == "stale":
            answer = replace(ready, round=command.round - rng.randint(1, 3))
        when = rng.choice(("now", "late", "late", "twice", "never"))
        if when != "never":
            self._send(answer, rng.uniform(1.0, LATE_MAX_S) if when == "late" else 0.0)
        if when == "twice":
            self._send(answer, rng.uniform(0.0, LATE_MAX_S))


def spoiled(plan: Plan, view: ClusterView, rng: random.Random) -> Plan:
    """Return `plan` with one change that the cluster or a job does not allow."""
    job = rng.choice(view.jobs) if view.jobs else None
    node = rng.choice(view.nodes) if view.nodes else None
    if job is None or node is None:
        return Plan(
            allocations={"unknown-job": Allocation(slots=(("unknown-node", 1),))}
        )
    too_many = Allocation(
        slots=((node.id, max(job.spec.replicas.max, node.num_gpus) + 1),)
    )
    whole = Allocation(slots=((node.id, node.num_gpus),))
    spoils: tuple[Plan, ...] = (
        replace(plan, allocations={**plan.allocations, "unknown-job": whole}),
        replace(
            plan,
            allocations={
                **plan.allocations,
                job.id: Allocation(slots=(("unknown-node", 1),)),
            },
        ),
        replace(plan, allocations={**plan.allocations, job.id: too_many}),
        replace(
            plan,
            allocations={
                each.id: whole if len(view.jobs) > 1 else too_many for each in view.jobs
            },
        ),
        Plan(
            allocations={job.id: Allocation(slots=((node.id, 1),))},
            batches={job.id: BatchConfig(total=10**6, atomic=10**6)},
        ),
    )
    return rng.choice(spoils)
