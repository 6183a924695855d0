"""Reasons for users: turns, pairs and growth."""

from collections.abc import Mapping

from coadapt.model import Allocation, JobId, JobView
from coadapt.policies.allocation.capacity import Capacity
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import plural, waits
from coadapt.policies.gandiva.servers import Servers, shared_by


def why_not(job: JobView, homes: Mapping[JobId, Allocation], capacity: Capacity) -> str:
    """Return why `job` does not train in this round."""
    home = homes.get(job.id)
    if home is None:
        return waits(
            job,
            requested_gpus(job),
            capacity,
            "every server has as many jobs as may take turns there",
        )
    return f"it is not its turn: {_crowd(homes, home)}"


def note(
    job: JobView,
    homes: Mapping[JobId, Allocation],
    servers: Servers,
    partner: str,
    score: float | None,
) -> str:
    """Return what to add to the reason of `job`, which trains. score: what it and
    `partner` get done.
    """
    home = homes.get(job.id)
    if home is None:
        return ""
    if partner and score is None:
        return f"it shares its GPUs with {partner}, on trial"
    if partner:
        return (
            f"it shares its GPUs with {partner}: together they get {score:.2f} times "
            f"as much done as in turns"
        )
    if home.num_replicas > requested_gpus(job):
        return "it has idle GPUs of its server until another job needs them"
    return f"its turn: {_crowd(homes, home)}" if servers.crowded(home) else ""


def _crowd(homes: Mapping[JobId, Allocation], home: Allocation) -> str:
    where = "its server" if home.num_nodes == 1 else "its servers"
    return f"{plural(shared_by(homes, home), 'job')} live on {where}"
