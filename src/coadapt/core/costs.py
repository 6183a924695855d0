"""Books what the GPUs of jobs cost, once the operator has named prices."""

# A job's bill has its cost up to an instant, and the price per hour of what it holds
# since then. It is renewed after each event for the jobs that the event may have
# changed, so that the cost is the integral of price times GPUs held over time. Without
# prices nothing is booked: a journal that names none is replayed as before.
#
# Costs count from the moment at which prices were named. A change of prices counts from
# its moment on; what was booked before it stays.

from collections.abc import Iterable, Sequence

from coadapt.core.accounting import held
from coadapt.core.commands import Command, JobCommand
from coadapt.core.events import Event, TrainingReported
from coadapt.core.lifecycle import ENDED, HOLDING
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import JobId, TenantId
from coadapt.model.prices import Prices


def held_by_type(job: JobRecord, state: SchedulerState) -> dict[str, float]:
    """Return how many GPUs of each type a job holds.

    A node that is gone, and not remembered, counts as of type "".
    """
    gpus: dict[str, float] = {}
    if job.status.state not in HOLDING:
        return gpus
    for node_id, count in held(job).by_node.items():
        node = state.nodes.get(node_id)
        if node is None and node_id in state.away:
            node = state.away[node_id].node
        gpu_type = "" if node is None else node.gpu_type
        gpus[gpu_type] = gpus.get(gpu_type, 0.0) + count
    return dict(sorted(gpus.items()))


def set_prices(state: SchedulerState, prices: Prices | None) -> None:
    """Let other prices count from now on, or none."""
    state.prices = prices
    book(state, state.jobs)
    state.changed |= {job.id for job in state.active if job.state in HOLDING}


def book_after(
    event: Event, commands: Sequence[Command], state: SchedulerState
) -> None:
    """Renew the bills of the jobs that an event may have changed."""
    if isinstance(event, TrainingReported) and not commands:
        return  # nearly all events: reports change nothing that a job holds
    names = {command.job for command in commands if isinstance(command, JobCommand)}
    names |= state.changed
    job = getattr(event, "job", None)
    if job is not None:
        names.add(job)
    book(state, names)


def book(state: SchedulerState, names: Iterable[JobId]) -> None:
    """Book what jobs cost until now, and at which price they go on."""
    for name in sorted(names):
        job = state.jobs.get(name)
        if job is None:
            continue
        per_h = 0.0
        if state.prices is not None and job.state not in ENDED:
            per_h = state.prices.per_h(held_by_type(job, state))
        if per_h == job.bill.per_h:
            continue
        bill = job.bill.after(state.at, per_h)
        tenant = job.spec.tenant
        booked = state.spent.get(tenant, 0.0)
        state.spent[tenant] = booked + (bill.cost - job.bill.cost)
        job.bill = bill


def spent(state: SchedulerState, at: float) -> dict[TenantId, float]:
    """Return what the jobs of each tenant have cost up to `at` (s), by name."""
    costs = dict(state.spent)
    for job in state.active:
        if job.bill.per_h:
            tenant = job.spec.tenant
            since = job.bill.upto(at) - job.bill.cost
            costs[tenant] = costs.get(tenant, 0.0) + since
    return dict(sorted(costs.items()))
