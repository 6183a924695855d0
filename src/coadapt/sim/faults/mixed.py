"""A second family of scenarios: two GPU types in two racks, shared GPUs, scripts that
set their own batch.

The family draws its own random numbers, so a seed of the first family still gives the
same scenario.
"""

import random
from dataclasses import replace

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    ClusterView,
    FreeGpus,
    JobId,
    JobSpec,
    JobView,
    Node,
    Plan,
    ReplicaLimits,
    RescaleContract,
    holding,
)
from coadapt.sim.faults.chaos import ChaosPolicy, spoiled
from coadapt.sim.faults.scenario import (
    APPLICATION,
    DRAWN_CONTRACTS,
    Family,
    Scenario,
    draw_conditions,
    draw_faults,
    largest_pool,
)
from coadapt.sim.library.profiles import GpuSpeed
from coadapt.sim.workload import TraceJob

SHARERS = (1, 1, 2, 2, 3)
PAIR_CHANCE = 0.5
TOTALS = (32, 64, 128, 256)

# Passes on the second type are twice as fast, but only half of the samples fit. Racks
# cost more than nodes. A script that sets its own batch takes 32 samples, then 64, 128
# and 256.
MIXED_APPLICATION = replace(
    APPLICATION,
    name="mixed-toy",
    params=replace(APPLICATION.params, alpha_k=0.4, beta_k=0.02),
    speeds=(GpuSpeed("a", 1.0), GpuSpeed("b", 2.0, link=1.5, memory=0.5)),
    load=0.6,
    own_batches=tuple(enumerate(TOTALS)),
)


def draw_mixed(seed: int) -> Scenario:
    """Return the scenario of `seed` in this family.

    Each scenario has both GPU types, both racks, three jobs that fit on one GPU, and a
    job under `self`.
    """
    rng = random.Random(f"mixed {seed}")
    nodes = _nodes(rng)
    contracts = [RescaleContract.SELF, RescaleContract.ADAPTIVE, RescaleContract.FIXED]
    contracts += [rng.choice(DRAWN_CONTRACTS) for _ in range(rng.randint(0, 3))]
    jobs = tuple(
        _job(rng, index, contract, nodes) for index, contract in enumerate(contracts)
    )
    severity = rng.choice((0.2, 1.0, 1.0, 2.0))
    in_place = rng.random() < 0.7
    scheduler, world, rates = draw_conditions(
        rng, severity, in_place=in_place, interference=(0.0, 0.3), solver=0.15
    )
    return Scenario(
        seed=seed,
        family=Family.MIXED,
        nodes=nodes,
        jobs=jobs,
        application=MIXED_APPLICATION,
        policy=None,
        scheduler=scheduler,
        world=world,
        rates=rates,
        faults=draw_faults(rng, nodes, jobs, severity),
    )


def _nodes(rng: random.Random) -> tuple[Node, ...]:
    """Return a node of each type, in different racks, and up to two more; the first has
    at most two GPUs.
    """
    kinds = [("a", "r1"), ("b", "r2"), ("a", "r2"), ("b", "r1")][: rng.randint(2, 4)]
    return tuple(
        Node(
            id=f"n{index}",
            num_gpus=rng.randint(1, 4 if index else 2),
            gpu_type=gpu_type,
            rack=rack,
        )
        for index, (gpu_type, rack) in enumerate(kinds)
    )


def _job(
    rng: random.Random, index: int, contract: RescaleContract, nodes: tuple[Node, ...]
) -> TraceJob:
    largest = largest_pool(nodes)
    least = 1 if index < 3 else rng.choice((1, 1, 2, largest, largest + 1))
    most = max(rng.randint(2, max(largest, 2)), least)
    limits = MIXED_APPLICATION.limits
    name = f"j{index}"
    spec = JobSpec(
        name=name,
        application=MIXED_APPLICATION.name,
        batch=BatchLimits(
            initial=limits.initial,
            requested=rng.choice((32, 64, 128)),
            max_total=limits.max_total,
            min_atomic=limits.min_atomic,
            max_atomic=limits.max_atomic,
        ),
        replicas=ReplicaLimits(min=least, max=most, requested=rng.randint(least, most)),
        contract=contract,
        max_failures=rng.randint(0, 3),
    )
    at = float(rng.randint(0, 120 if index < 3 else 1200))
    return TraceJob(id=name, at=at, application=MIXED_APPLICATION.name, spec=spec)


class MixedChaosPolicy(ChaosPolicy):
    """A ChaosPolicy that shares half of its GPUs between two or three jobs, and in
    every other round puts two jobs on one GPU.
    """

    def _sharers(self) -> int:
        return self._random.choice(SHARERS)

    def _first(self, view: ClusterView, free: FreeGpus) -> dict[JobId, Allocation]:
        if not view.nodes or self._random.random() >= PAIR_CHANCE:
            return {}
        node = self._random.choice(view.nodes)
        small = [
            job
            for job in view.jobs
            if job.spec.replicas.min == 1
            and not _bound(job)
            and job.spec.replicas.allows_type(node.gpu_type)
        ]
        if len(small) < 2:
            return {}
        pair = self._random.sample(small, 2)
        label = self._random.choice(free.open_labels(node.id, 2)[:3])
        half = Allocation(slots=((node.id, 1),), gpu_share=0.5, shared=(label,))
        for _ in pair:
            free.take(holding(half))
        return {job.id: half for job in pair}


def _bound(job: JobView) -> bool:
    return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)


def spoiled_mixed(plan: Plan, view: ClusterView, rng: random.Random) -> Plan:
    """Return `plan` made invalid as in the first family, or by shares, types, or a
    batch for a `self` job.
    """
    small = [
        job.id for job in view.jobs if job.spec.replicas.min == 1 and not _bound(job)
    ]
    spoils: list[Plan] = []
    for node in view.nodes:
        if len(small) > 2:
            spoils.append(_shared(small, node, [0] * len(small)))
        if len(small) > node.num_gpus:
            spoils.append(_shared(small, node, list(range(len(small)))))
    types = {node.gpu_type: node for node in view.nodes}
    for job in view.jobs:
        if (
            len(types) > 1
            and job.spec.replicas.min <= 2 <= job.spec.replicas.max
            and not _bound(job)
        ):
            slots = tuple((node.id, 1) for node in types.values())
            spoils.append(Plan(allocations={job.id: Allocation(slots=slots)}))
        if job.spec.contract is RescaleContract.SELF and plan.allocations.get(job.id):
            dictated = BatchConfig(
                total=job.spec.batch.initial, atomic=job.spec.batch.initial
            )
            spoils.append(replace(plan, batches={**plan.batches, job.id: dictated}))
    if not spoils or rng.random() < 0.3:
        return spoiled(plan, view, rng)
    return rng.choice(spoils)


def _shared(jobs: list[JobId], node: Node, labels: list[int]) -> Plan:
    halves = [
        Allocation(slots=((node.id, 1),), gpu_share=0.5, shared=(label,))
        for label in labels
    ]
    return Plan(allocations=dict(zip(jobs, halves, strict=True)))
