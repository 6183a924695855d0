"""From an accepted job file to a job of this cluster: its id, and whether the cluster could ever run it."""

import hashlib
import re
from collections.abc import Iterable

from coadapt.model import InputError, JobId, JobSpec, Node

ID_NAME_LENGTH = 40
# Two jobs of one name meet with a chance of 1 in 4 billion; `submit` refuses the second then.
ID_HASH_LENGTH = 8


def job_id(name: str, key: str) -> JobId:
    """Return the id of the job `name` submitted under idempotency key `key`: equal input, equal id."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:ID_NAME_LENGTH] or "job"
    digest = hashlib.sha256(repr((name, key)).encode()).hexdigest()
    return f"{slug}-{digest[:ID_HASH_LENGTH]}"


def check_possible(spec: JobSpec, nodes: Iterable[Node]) -> None:
    """Raise InputError if the job needs more GPUs of one type than the whole cluster has."""
    pools: dict[str, int] = {}
    for node in nodes:
        pools[node.gpu_type] = pools.get(node.gpu_type, 0) + node.num_gpus
    most = max(pools.values(), default=0)
    limits = spec.replicas
    if limits.min > most:
        allowed = f"a minimum of at most {most}, which is all that this cluster has of one type"
        raise InputError("resources.gpus", f"{limits.min}..{limits.max}", allowed)
