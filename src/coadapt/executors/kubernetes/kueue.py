"""The slots that a queue of Kueue admits. Each slot has a Workload, and slots are
requested and given back one by one.
"""

# Why a Workload per slot.
#
# Kueue evicts a Workload as a whole. With one Workload for the whole pool, every job
# would stop when another user needs one GPU. If each Workload has one slot, Kueue
# admits as many as are free, and takes back only as many as it needs. Coadapt decides
# which job makes room: the one that loses least. This works with every release of
# Kueue, and needs no feature gate.
#
# An evicted slot is not gone at once. Kueue sets the condition Evicted and waits until
# the owner of the Workload releases its quota; this wait is the grace. First the quota
# of all tenants is lowered. Then the next plan shrinks jobs in place, and their pods
# end. The Workload is deleted, which releases its quota, only when neither the plan nor
# pods hold more than the remaining slots. Slots that Coadapt gives back by itself go
# the same way.
#
# How many slots are requested: those that jobs hold, and those whose goodput makes them
# worth having (SlotUse). An evicted slot is requested again at once, and waits in the
# queue like any other Workload.

import logging
import secrets
import time
from collections.abc import Iterable, Sequence

from coadapt.core.events import TenantConfigured
from coadapt.executors.host import Host
from coadapt.executors.kubernetes.api import NOT_FOUND, ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.pods import (
    CONTAINER,
    LABEL_SCHEDULER,
    MANAGED_BY,
    PodSettings,
    merge,
    selector,
    slot_request,
)
from coadapt.model import InputError, Tenant
from coadapt.model.tenant import EVERYBODY
from coadapt.runtime.ports import Post

GROUP = "kueue.x-k8s.io"
QUEUE_LABEL = f"{GROUP}/queue-name"
PRIORITY_LABEL = f"{GROUP}/priority-class"
# How long an unused slot is kept, because the next job may come soon.
IDLE_S = 60.0
# The largest number of Workloads that are created in one call. Others follow in the
# next call.
MADE_MAX = 50
NAME_BYTES = 4
OVER = ("Succeeded", "Failed")

logger = logging.getLogger(__name__)


class KueuePool:
    """Requests slots and gives them back. One thread calls `look`. `admitted` is the
    number of slots in the last call.
    """

    def __init__(
        self, api: KubeApi, settings: PodSettings, host: Host, labels: dict[str, str]
    ) -> None:
        """labels: the labels of the pod template that name the queue. Raises InputError
        if the cluster has no Kueue.
        """
        self._api = api
        self._settings = settings
        self._host = host
        self._version = _version(api)
        self._path = (
            f"/apis/{GROUP}/{self._version}/namespaces/{settings.namespace}/workloads"
        )
        self._spec = _spec(
            settings,
            labels[QUEUE_LABEL],
            self._priority(labels.get(PRIORITY_LABEL, "")),
        )
        self._given_up: set[str] = set()
        self._void: list[str] = []  # Workloads that hold nothing, and never will
        self._idle_since: float | None = None
        self.admitted = 0
        self._sort(self._workloads())

    def look(self, most: int, post: Post) -> None:
        """Read which slots are admitted, report them to the scheduler, and request or
        give back slots. Raises ApiError.

        most: the slots of the nodes.
        """
        staying, waiting, going = self._sort(self._workloads())
        for name in self._void:
            self._api.delete(f"{self._path}/{name}")
        use = self._host.slot_use()
        if use.quota != len(staying):
            self.tell(post)
        elif going:
            self._release(
                going, len(staying) + len(going) - max(use.held, self._num_pods())
            )
        self._resize(staying, waiting, min(max(use.useful, use.held), most))

    def tell(self, post: Post) -> None:
        """Report the number of admitted slots to the scheduler."""
        tenant = Tenant(id=EVERYBODY, quota_gpus=self.admitted)
        post(TenantConfigured(at=self._host.now(), tenant=tenant))

    def _sort(
        self, found: Sequence[JsonObject]
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the names of the Workloads that are admitted, that wait, and that must
        be given back, oldest first.
        """
        parts: tuple[list[str], list[str], list[str]] = ([], [], [])
        self._void = []
        for each in sorted(
            found, key=lambda each: (each["metadata"]["creationTimestamp"], _name(each))
        ):
            ends = _ends(each) or _name(each) in self._given_up
            if ends and not _holds(each, "QuotaReserved"):
                self._void.append(_name(each))
            elif ends:
                parts[2].append(_name(each))
            else:
                parts[0 if _holds(each, "Admitted") else 1].append(_name(each))
        self._given_up &= set(parts[2])
        self.admitted = len(parts[0])
        return parts

    def _release(self, going: Sequence[str], count: int) -> None:
        for name in going[: max(count, 0)]:
            self._api.delete(f"{self._path}/{name}")
            logger.info("returned a slot to Kueue: %s", name)

    def _resize(
        self, staying: Sequence[str], waiting: Sequence[str], wanted: int
    ) -> None:
        lacking = wanted - len(staying) - len(waiting)
        for _ in range(min(lacking, MADE_MAX)):
            self._api.ask("POST", self._path, self._workload())
        for name in waiting[max(len(waiting) + min(lacking, 0), 0) :]:
            self._api.delete(f"{self._path}/{name}")
        idle = max(len(staying) - wanted, 0)
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since >= IDLE_S:
            self._given_up |= set(staying[-idle:])

    def _workloads(self) -> list[JsonObject]:
        return list(
            self._api.get(self._path, labelSelector=selector(self._settings))["items"]
        )

    def _num_pods(self) -> int:
        path = f"/api/v1/namespaces/{self._settings.namespace}/pods"
        found = self._api.get(path, labelSelector=selector(self._settings))["items"]
        return sum(
            (each.get("status") or {}).get("phase") not in OVER for each in found
        )

    def _workload(self) -> JsonObject:
        metadata = {
            "name": f"{self._settings.scheduler}-slot-{secrets.token_hex(NAME_BYTES)}",
            "labels": {**MANAGED_BY, LABEL_SCHEDULER: self._settings.scheduler},
            "ownerReferences": [self._settings.owner],
        }
        kind = {"apiVersion": f"{GROUP}/{self._version}", "kind": "Workload"}
        return {**kind, "metadata": metadata, "spec": self._spec}

    def _priority(self, name: str) -> int:
        """Return the value of Kueue's priority class `name`, 0 for no name."""
        if not name:
            return 0
        try:
            found = self._api.get(
                f"/apis/{GROUP}/{self._version}/workloadpriorityclasses/{name}"
            )
        except ApiError as error:
            allowed = f"a WorkloadPriorityClass of the cluster ({error})"
            raise InputError(
                f"pod template, label {PRIORITY_LABEL}", name, allowed
            ) from None
        return int(found["value"])


def follow(pool: KueuePool, most: int, post: Post) -> None:
    """Let the pool look. If the server is unreachable or refuses, nothing changes."""
    try:
        pool.look(most, post)
    except ApiError as error:
        logger.warning(
            "slots could be neither requested from Kueue nor returned: %s", error
        )


def without_queue(template: JsonObject) -> tuple[JsonObject, dict[str, str]]:
    """Return a pod template without the labels that would let Kueue manage its pods,
    and these labels.
    """
    metadata = dict(template.get("metadata") or {})
    labels = dict(metadata.get("labels") or {})
    kueues = {
        name: str(labels.pop(name))
        for name in (QUEUE_LABEL, PRIORITY_LABEL)
        if name in labels
    }
    if not kueues:
        return template, {}
    return {**template, "metadata": {**metadata, "labels": labels}}, kueues


def _version(api: KubeApi) -> str:
    """Return the version of Kueue's API that the server prefers."""
    try:
        return str(api.get(f"/apis/{GROUP}")["preferredVersion"]["version"])
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        allowed = (
            f"no label {QUEUE_LABEL} where the cluster has no Kueue "
            f"(https://kueue.sigs.k8s.io)"
        )
        raise InputError("pod template", QUEUE_LABEL, allowed) from None


def _spec(settings: PodSettings, queue: str, priority: int) -> JsonObject:
    """Return the spec that all Workloads have in common: the queue, and the request of
    a pod with one slot.
    """
    container = {"name": CONTAINER, "resources": slot_request(settings.resource)}
    given = {
        "containers": [
            {**container, **({"image": settings.image} if settings.image else {})}
        ]
    }
    pod = merge(
        settings.template.get("spec") or {}, {"restartPolicy": "Never", **given}
    )
    pod_set = {"name": "main", "count": 1, "template": {"spec": pod}}
    return {"queueName": queue, "priority": priority, "podSets": [pod_set]}


def _name(workload: JsonObject) -> str:
    return str(workload["metadata"]["name"])


def _ends(workload: JsonObject) -> bool:
    """Return whether a Workload ends: it is evicted by Kueue, deactivated, deleted or
    finished.
    """
    off = (workload.get("spec") or {}).get("active") is False
    deleted = bool(workload["metadata"].get("deletionTimestamp"))
    return off or deleted or _holds(workload, "Evicted") or _holds(workload, "Finished")


def _holds(workload: JsonObject, condition: str) -> bool:
    conditions: Iterable[JsonObject] = (workload.get("status") or {}).get(
        "conditions"
    ) or ()
    return any(
        each["type"] == condition and each["status"] == "True" for each in conditions
    )
