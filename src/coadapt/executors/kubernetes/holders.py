"""Holder pods: pods without work that request nodes from a cluster autoscaler, and that
keep the nodes that came.
"""

# The two kinds.
#
# An *order* requests one node. It requests all GPUs of a node of its offer, and selects
# the offer's nodes by their labels. So it is pending until a cluster autoscaler adds a
# node. No two holders share a node (anti-affinity), so each order gets its own.
#
# A *keeper* keeps a node that came. It is created on that node by name, requests
# nothing, and has the annotations that make Cluster Autoscaler and Karpenter leave its
# node alone. Then the order is deleted, which frees the node's GPUs for replicas.
#
# A keeper needs no room, so it stays while replicas come and go. The usual way is a
# single pod that requests the GPUs at a low priority (Cluster Autoscaler FAQ, "How can
# I configure overprovisioning"). Then every start of a replica on an idle node waits
# for a preemption, the node has no holder from the end of its last replica until a new
# holder runs, and the cluster needs a priority class. So there are two kinds.
#
# Holders are the record of what was ordered: their names have the offer and a number
# below the offer's `most`. An order that is sent again, after a crash for example,
# meets the pod of the same name. An owner reference removes all of them with the
# scheduler's ConfigMap.

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.executors.kubernetes.pods import (
    CONTAINER,
    DOMAIN,
    KEEPS_ITS_NODE,
    MANAGED_BY,
    PodSettings,
    merge,
    request,
)
from coadapt.model import NodeId
from coadapt.model.offer import Offer, OfferId

# The default label of an offer's nodes, too.
LABEL_OFFER = f"{DOMAIN}/offer"
LABEL_HOLDER = f"{DOMAIN}/holder-of"
LABEL_ROLE = f"{DOMAIN}/holder-role"
LABEL_NUMBER = f"{DOMAIN}/holder-number"
COMMAND = ("sleep", "infinity")
GRACE_S = 1
OVER = ("Succeeded", "Failed")
# What holders take from the template of replicas.
SPEC_KEPT = (
    "imagePullSecrets",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
)
CONTAINER_KEPT = ("image", "imagePullPolicy", "securityContext")
ONE_PER_NODE = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {
            "labelSelector": {
                "matchExpressions": [{"key": LABEL_HOLDER, "operator": "Exists"}]
            },
            "topologyKey": "kubernetes.io/hostname",
        }
    ]
}
ALL_TAINTS = {"operator": "Exists"}


class Role(StrEnum):
    """What a holder is for."""

    ORDER = "order"
    KEEPER = "keeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A holder pod.

    number: unique among the nodes of its offer, below the offer's `most`. node: ""
    while the pod is pending. created_at: s since 1970. is_ending: it was deleted.
    is_over: its container ended, because the node evicted it for example.
    """

    name: str
    offer: OfferId
    number: int
    role: Role
    node: NodeId = ""
    created_at: float = 0.0
    is_ending: bool = False
    is_over: bool = False


def holder_name(settings: PodSettings, offer: OfferId, number: int, role: Role) -> str:
    """Return the name of a holder's pod."""
    return f"{settings.scheduler}-{offer}-{number}-{role}"


def holder_selector(settings: PodSettings) -> str:
    """Return the label selector of all holders of a scheduler."""
    return f"{LABEL_HOLDER}={settings.scheduler}"


def read_holder(pod: JsonObject) -> Holder:
    """Return the holder that a pod of the API server is."""
    metadata = pod["metadata"]
    labels = metadata["labels"]
    created = str(metadata["creationTimestamp"]).replace("Z", "+00:00")
    return Holder(
        name=str(metadata["name"]),
        offer=str(labels[LABEL_OFFER]),
        number=int(labels[LABEL_NUMBER]),
        role=Role(labels[LABEL_ROLE]),
        node=str(pod["spec"].get("nodeName") or ""),
        created_at=datetime.fromisoformat(created).timestamp(),
        is_ending=bool(metadata.get("deletionTimestamp")),
        is_over=(pod.get("status") or {}).get("phase") in OVER,
    )


def order_pod(
    settings: PodSettings, offer: Offer, node_labels: Mapping[str, str], number: int
) -> JsonObject:
    """Return the pod that requests one node. node_labels: of the offer's nodes."""
    template = settings.template.get("spec") or {}
    one_per_node = {"podAntiAffinity": ONE_PER_NODE}
    spec = {
        "nodeSelector": {**(template.get("nodeSelector") or {}), **node_labels},
        "tolerations": template.get("tolerations") or [],
        "affinity": merge(template.get("affinity") or {}, one_per_node),
    }
    resources = request(settings.resource, str(offer.num_gpus))
    return _holder_pod(settings, (offer.id, number, Role.ORDER), spec, resources)


def keeper_pod(
    settings: PodSettings, offer: OfferId, number: int, node: NodeId
) -> JsonObject:
    """Return the pod that keeps a node. No taint keeps it away, or evicts it."""
    spec = {"nodeName": node, "tolerations": [ALL_TAINTS]}
    return _holder_pod(settings, (offer, number, Role.KEEPER), spec, {})


def _holder_pod(
    settings: PodSettings,
    what: tuple[OfferId, int, Role],
    spec: JsonObject,
    resources: JsonObject,
) -> JsonObject:
    offer, number, role = what
    template = settings.template.get("spec") or {}
    kept = {key: template[key] for key in SPEC_KEPT if key in template}
    metadata: JsonObject = {
        "name": holder_name(settings, offer, number, role),
        "namespace": settings.namespace,
        "labels": {
            **MANAGED_BY,
            LABEL_HOLDER: settings.scheduler,
            LABEL_OFFER: offer,
            LABEL_NUMBER: str(number),
            LABEL_ROLE: str(role),
        },
        "annotations": dict(KEEPS_ITS_NODE),
    }
    if settings.owner is not None:
        metadata["ownerReferences"] = [settings.owner]
    container = {**_container(settings), "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            **kept,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            **spec,
        },
    }


def _container(settings: PodSettings) -> JsonObject:
    """Return a container that waits, in the image of the replicas. So a new node gets
    their image before the first replica starts there.
    """
    containers = (settings.template.get("spec") or {}).get("containers") or ()
    theirs: JsonObject = next(
        (each for each in containers if each["name"] == CONTAINER), {}
    )
    kept = {key: theirs[key] for key in CONTAINER_KEPT if key in theirs}
    image = {"image": settings.image} if settings.image else {}
    return {**kept, **image, "name": "holder", "command": list(COMMAND)}
