"""Jobs that lost a node restart before jobs that wait.

Called by Scheduler.handle only.
"""

# Why the core does this, and not each policy. A job whose node is taken away did
# nothing to lose its turn: without the loss it would still run. Most policies order
# jobs by what they have used or have left to do, and see just one more job without
# GPUs. So a new job would start on the GPUs of its other nodes.
#
# The rule. Where a plan leaves such a job waiting and starts jobs of the same or a
# lower priority, as few of these as possible wait, so that the GPUs that it requests
# are free: first those of the lowest priority, then those that were submitted last.
# Jobs that run stay as planned. If the plan leaves enough GPUs free, it is not changed:
# the policy has another cause to let the job wait. The next plan decides about the job
# as about others.

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from coadapt.model import (
    Allocation,
    ClusterView,
    JobId,
    JobView,
    NodeId,
    Plan,
    PlanError,
    check_plan,
    holding,
)
from coadapt.model.view import current_allocations

Unfit = Mapping[JobId, Collection[NodeId]]


def with_lost_first(
    plan: Plan, view: ClusterView, lost: Collection[JobId], unfit: Unfit
) -> Plan:
    """Return a valid plan in which the jobs `lost` start before jobs that wait.

    plan: valid for `view`. lost: jobs that lost a node and hold no GPUs since. unfit:
    the nodes on which a job cannot run, by job.
    """
    jobs = current_allocations(view).jobs
    waiting = [
        jobs[job_id]
        for job_id in lost
        if job_id in jobs
        and not plan.allocations.get(job_id)
        and job_id not in plan.set_aside
    ]
    for job in sorted(waiting, key=lambda job: _order(view, job)):
        changed = _with_job(plan, view, job, lost, unfit.get(job.id, ()))
        try:
            check_plan(view, changed)
        except PlanError:
            continue  # a quota does not allow it
        plan = changed
    return plan


def _order(view: ClusterView, job: JobView) -> tuple[int, int, float, JobId]:
    """Return the sort key of the order in which jobs go."""
    of_tenant, own = _priority(view, job)
    return -of_tenant, -own, job.submitted_at, job.id


def _priority(view: ClusterView, job: JobView) -> tuple[int, int]:
    return view.tenant(job.spec.tenant).priority, job.spec.priority


def _with_job(
    plan: Plan,
    view: ClusterView,
    job: JobView,
    lost: Collection[JobId],
    unfit: Collection[NodeId],
) -> Plan:
    """Return the plan with `job` in the place of jobs that it starts, or as it is."""
    jobs = current_allocations(view).jobs
    starting = [
        jobs[other]
        for other, allocation in plan.allocations.items()
        if not jobs[other].allocation
        and other not in lost
        and not allocation.shared
        and _priority(view, jobs[other]) <= _priority(view, job)
    ]
    starting.sort(key=lambda other: _order(view, other), reverse=True)
    free = _free(plan, view)
    options: list[tuple[int, tuple[JobId, ...], Allocation]] = []
    for gpu_type in sorted({node.gpu_type for node in view.nodes}):
        if not job.spec.replicas.allows_type(gpu_type):
            continue
        usable = {
            node.id: free[node.id]
            for node in view.nodes
            if node.gpu_type == gpu_type and node.id not in unfit
        }
        found = _room(plan, job.spec.replicas.requested, usable, starting)
        if found is not None:
            dropped, allocation = found
            options.append((len(dropped), dropped, allocation))
    if not options:
        return plan
    num_dropped, dropped, allocation = min(options, key=lambda each: each[0])
    if not num_dropped:
        return plan
    after = plan.without(lambda each: each in dropped, beside=jobs.keys() - {*dropped})
    why = "restarts before jobs that wait: it lost a node"
    return replace(
        after,
        allocations={**after.allocations, job.id: allocation},
        reasons={**after.reasons, job.id: why},
        application_times=plan.application_times,
    )


def _free(plan: Plan, view: ClusterView) -> dict[NodeId, int]:
    """Return the whole GPUs that the plan leaves free on each node."""
    free = {node.id: node.num_gpus for node in view.nodes}
    for allocation in plan.allocations.values():
        for node, gpus in holding(allocation).by_node.items():
            free[node] -= math.ceil(gpus)
    return free


def _room(
    plan: Plan, num_gpus: int, free: dict[NodeId, int], starting: list[JobView]
) -> tuple[tuple[JobId, ...], Allocation] | None:
    """Return which of the jobs `starting` must wait so that `num_gpus` fit, and where;
    None: even all of them leave too few.

    free: the free GPUs of each node that may be used. starting: those that wait first
    come first.
    """
    room = dict(free)
    dropped: list[JobView] = []
    for other in starting:
        if sum(room.values()) >= num_gpus:
            break
        if _change(room, plan.allocations[other.id], 1):
            dropped.append(other)
    if sum(room.values()) < num_gpus:
        return None
    for other in list(reversed(dropped)):  # an earlier one may not have been needed
        _change(room, plan.allocations[other.id], -1)
        if sum(room.values()) >= num_gpus:
            dropped.remove(other)
        else:
            _change(room, plan.allocations[other.id], 1)
    return tuple(other.id for other in dropped), _packed(num_gpus, room)


def _change(room: dict[NodeId, int], allocation: Allocation, sign: int) -> bool:
    """Add the GPUs of `allocation` to `room`, or take them from it. Return whether any
    is on its nodes.
    """
    touched = False
    for node, count in allocation.slots:
        if node in room:
            room[node] += sign * count
            touched = True
    return touched


def _packed(num_gpus: int, room: Mapping[NodeId, int]) -> Allocation:
    """Return `num_gpus` on the node that they fill best, or on as few as possible."""
    enough = [node for node, free in room.items() if free >= num_gpus]
    if enough:
        best = min(enough, key=lambda node: (room[node], node))
        return Allocation(slots=((best, num_gpus),))
    slots: dict[NodeId, int] = {}
    left = num_gpus
    for node in sorted(room, key=lambda node: (-room[node], node)):
        taken = min(left, room[node])
        if taken > 0:
            slots[node] = taken
            left -= taken
    return Allocation(slots=tuple(slots.items()))
