"""Pollux knows one kind of GPU: a cluster of several is cut into pools, and each job
belongs to one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from coadapt.model import Allocation, ClusterView, JobId, JobView, Node, RescaleContract


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The nodes of one GPU type, and the jobs that share them."""

    gpu_type: str
    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]


def split_pools(view: ClusterView) -> tuple[Pool, ...]:
    """Return the pools of `view` that have jobs, by GPU type; every job is in one pool,
    those that allow no GPU type of the cluster in none.

    A job stays with the GPU type that it holds. The others go, in order of submission,
    where most GPUs per job remain; then waiting jobs and, if it evens out the pools,
    running ones (fewest replicas first) move.
    """
    nodes: dict[str, list[Node]] = {}
    for node in view.nodes:
        nodes.setdefault(node.gpu_type, []).append(node)
    if not nodes:
        return ()
    if len(nodes) == 1:
        (gpu_type,) = nodes
        jobs = tuple(
            job for job in view.jobs if job.spec.replicas.allows_type(gpu_type)
        )
        return (Pool(gpu_type=gpu_type, nodes=view.nodes, jobs=jobs),) if jobs else ()
    members = _assign(
        view,
        {
            gpu_type: sum(node.num_gpus for node in held)
            for gpu_type, held in nodes.items()
        },
    )
    return tuple(
        Pool(
            gpu_type=gpu_type,
            nodes=tuple(nodes[gpu_type]),
            jobs=tuple(members[gpu_type]),
        )
        for gpu_type in sorted(nodes)
        if members[gpu_type]
    )


def _assign(view: ClusterView, num_gpus: dict[str, int]) -> dict[str, list[JobView]]:
    type_of = {node.id: node.gpu_type for node in view.nodes}
    members: dict[str, list[JobView]] = {gpu_type: [] for gpu_type in num_gpus}

    def join_roomiest(job: JobView) -> None:
        allowed = [
            name for name in sorted(num_gpus) if job.spec.replicas.allows_type(name)
        ]
        fitting = [name for name in allowed if num_gpus[name] >= job.spec.replicas.min]
        if allowed:
            best = max(
                fitting or allowed,
                key=lambda name: num_gpus[name] / (len(members[name]) + 1),
            )
            members[best].append(job)

    waiting = []
    for job in view.jobs:
        held = type_of.get(job.allocation.slots[0][0]) if job.allocation else None
        if held is not None and job.spec.replicas.allows_type(held):
            members[held].append(job)
        elif job.allocation:
            join_roomiest(job)
        else:
            waiting.append(job)
    for job in waiting:
        join_roomiest(job)
    _even_out(members, num_gpus)
    return members


def _even_out(members: dict[str, list[JobView]], num_gpus: dict[str, int]) -> None:
    """Move jobs, cheapest first, while the crowded pool stays the more crowded one
    without them.
    """
    # A pool that took a job in has, with it, more GPUs per job than any other would
    # have with one more. That stays so: the crowded pool that gives one up then would
    # have what it had, which was the least. So none gives jobs on, each moves once at
    # most, and one pass over a pool's jobs in order serves it to the end.
    queues = {
        name: sorted(
            (job for job in jobs if job.spec.contract is not RescaleContract.FROZEN),
            key=lambda job: (job.allocation.num_replicas, job.submitted_at, job.id),
        )
        for name, jobs in members.items()
    }
    num_jobs = {name: len(jobs) for name, jobs in members.items()}
    passes: dict[tuple[str, str], Iterator[JobView]] = {}
    moved: dict[JobId, tuple[JobView, str]] = {}
    while True:
        crowded = min(
            sorted(members), key=lambda name: num_gpus[name] / max(num_jobs[name], 1)
        )
        roomy = max(
            sorted(members), key=lambda name: num_gpus[name] / (num_jobs[name] + 1)
        )
        if num_gpus[roomy] / (num_jobs[roomy] + 1) <= num_gpus[crowded] / max(
            num_jobs[crowded], 1
        ):
            break
        if (crowded, roomy) not in passes:
            passes[crowded, roomy] = _fitting(queues[crowded], roomy, num_gpus[roomy])
        mover = next(
            (job for job in passes[crowded, roomy] if job.id not in moved), None
        )
        if mover is None:
            break
        moved[mover.id] = (mover, roomy)
        num_jobs[crowded] -= 1
        num_jobs[roomy] += 1
    for name, jobs in members.items():
        stay = [job for job in jobs if job.id not in moved]
        members[name] = stay + [job for job, pool in moved.values() if pool == name]


def _fitting(
    jobs: Iterable[JobView], gpu_type: str, num_gpus: int
) -> Iterator[JobView]:
    return (
        job
        for job in jobs
        if job.spec.replicas.min <= num_gpus and job.spec.replicas.allows_type(gpu_type)
    )


def quota_left(
    view: ClusterView, given: Mapping[JobId, Allocation], pool: Pool
) -> dict[str, int]:
    """Return the GPUs that each tenant with a quota may take in `pool`, after what was
    `given` elsewhere.

    Frozen jobs of other pools that run keep their GPUs, so these are counted too.
    """
    quotas = view.quotas()
    inside = {job.id for job in pool.jobs}
    for job in view.jobs:
        if job.id in inside or job.spec.tenant not in quotas:
            continue
        if job.id in given:
            quotas[job.spec.tenant] -= given[job.id].num_replicas
        elif job.spec.contract is RescaleContract.FROZEN:
            quotas[job.spec.tenant] -= job.allocation.num_replicas
    return {tenant: max(left, 0) for tenant, left in quotas.items()}
