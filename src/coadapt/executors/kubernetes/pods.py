"""The objects of a replica: a pod, and the secret that holds its environment."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard, cast

from coadapt.executors.kubernetes.api import JsonObject
from coadapt.model.contract_env import ENV_TOKEN
from coadapt.model.devices import PARTS

DOMAIN = "coadapt.dev"
LABEL_SCHEDULER = f"{DOMAIN}/scheduler"
LABEL_JOB = f"{DOMAIN}/job"
LABEL_GENERATION = f"{DOMAIN}/generation"
LABEL_REPLICA = f"{DOMAIN}/replica"
MANAGED_BY = {"app.kubernetes.io/managed-by": "coadapt"}
# To save nodes, Cluster Autoscaler and Karpenter do not remove a node on which a pod
# with these annotations runs. A template may override them.
KEEPS_ITS_NODE = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
CONTAINER = "replica"
CHECKPOINTS = "/coadapt/checkpoints"
CHECKPOINT_VOLUME = "coadapt-checkpoints"
# The job's token as a file, at the place where trainers that do not use Coadapt look
# for it (KEP-2779).
TOKEN_FOLDER = "/coadapt/trainer"
TOKEN_NAME = "token"
TOKEN_VOLUME = "coadapt-token"
TOKEN_FILE = f"{TOKEN_FOLDER}/{TOKEN_NAME}"
SETUP = "setup"
CPU = "cpu"
MILLI = 1000
HOSTNAME_MAX = 63  # RFC 1123
RUNNER = ("python3", "-m", "coadapt.executors.kubernetes.runner")
# Variables that are not known when a pod is created.
OWN_ADDRESS = {"fieldRef": {"fieldPath": "status.podIP"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """The settings that all pods of a scheduler have in common. Proxies read them from
    a file.

    scheduler: its name in labels. owner: an owner reference for the pods, as JSON.
    resource: the resource that a slot is, as requested from a node. template: a pod
    template as JSON, to which our fields are added. claim: the claim of the volume with
    the state directory, and the directory's folder on this volume: NAME or NAME/FOLDER;
    "" if the template takes care of checkpoints. api_url: where pods reach the
    scheduler's API. grace_s: from SIGTERM to SIGKILL. pass_env: see the executor's
    option.
    """

    kubeconfig: str
    namespace: str
    scheduler: str
    image: str
    resource: str
    grace_s: float
    service_account: str = ""
    claim: str = ""
    api_url: str = ""
    template_json: str = "{}"
    owner_json: str = "null"
    pass_env: tuple[str, ...] = ()

    @property
    def template(self) -> JsonObject:
        return dict(json.loads(self.template_json))

    @property
    def state_volume(self) -> tuple[str, str]:
        """Return the name of the claim, and the beginning of all paths on its
        volume.
        """
        name, _, folder = self.claim.partition("/")
        return name, f"{folder}/" if folder else ""

    @property
    def owner(self) -> JsonObject | None:
        found: JsonObject | None = json.loads(self.owner_json)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """The order for one replica's pod: its job, its generation, its name for life, its
    node, and the part of a slot that it takes there.
    """

    job: str
    generation: int
    member: str
    node: str
    parts: int
    command: tuple[str, ...]
    workdir: str


def pod_name(settings: PodSettings, job: str, member: str) -> str:
    """Return the name of a pod and its secret. It is unique for each replica that ever
    runs, so the pod can be found.
    """
    return f"{settings.scheduler}-{job}-{member}"


def on_host_network(template: JsonObject) -> bool:
    """Return whether replicas have the addresses of their nodes."""
    return bool((template.get("spec") or {}).get("hostNetwork"))


def selector(
    settings: PodSettings, job: str = "", generation: int | None = None
) -> str:
    """Return the label selector of the scheduler's pods, a job's, or those that a
    generation started.
    """
    labels = {LABEL_SCHEDULER: settings.scheduler}
    if job:
        labels[LABEL_JOB] = job
    if generation is not None:
        labels[LABEL_GENERATION] = str(generation)
    return ",".join(f"{name}={value}" for name, value in labels.items())


def pod(settings: PodSettings, order: PodOrder) -> JsonObject:
    """Return the pod of a replica. The replica's environment is in the secret with the
    same name.
    """
    name = pod_name(settings, order.job, order.member)
    ours: JsonObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {
                **MANAGED_BY,
                LABEL_SCHEDULER: settings.scheduler,
                LABEL_JOB: order.job,
                LABEL_GENERATION: str(order.generation),
                LABEL_REPLICA: order.member,
            },
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": int(settings.grace_s),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": _hostname(name),
            "subdomain": settings.scheduler,
            "affinity": {"nodeAffinity": _on_node(order.node)},
            "containers": [_container(settings, order, name)],
        },
    }
    if settings.owner is not None:
        ours["metadata"]["ownerReferences"] = [settings.owner]
    if settings.service_account:
        ours["spec"]["serviceAccountName"] = settings.service_account
    ours["spec"]["volumes"] = _volumes(settings, order, name)
    default = {"metadata": {"annotations": dict(KEEPS_ITS_NODE)}}
    return cast(JsonObject, merge(merge(default, settings.template), ours))


def secret(
    settings: PodSettings, name: str, uid: str, envs: Mapping[str, str]
) -> JsonObject:
    """Return the secret that holds a pod's environment. It is deleted with the pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {**MANAGED_BY, LABEL_SCHEDULER: settings.scheduler},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "stringData": dict(envs),
    }


def replica_address(settings: PodSettings, job: str, member: str) -> str:
    """Return the name by which other pods reach a replica: its own name under the
    scheduler's service.
    """
    host = _hostname(pod_name(settings, job, member))
    return f"{host}.{settings.scheduler}.{settings.namespace}.svc"


def merge(base: object, ours: object) -> object:
    """Return `base` overridden by `ours`: mappings key by key, lists of named things
    name by name.
    """
    if isinstance(base, Mapping) and isinstance(ours, Mapping):
        both = dict(copy.deepcopy(dict(base)))
        for key, value in ours.items():
            both[key] = merge(both[key], value) if key in both else value
        return both
    if _named(base) and _named(ours):
        named: dict[object, object] = {each["name"]: each for each in base}
        for each in ours:
            named[each["name"]] = merge(named.get(each["name"], {}), each)
        return list(named.values())
    return ours


def _hostname(name: str) -> str:
    """Return the host name of the pod `name`. If the name is too long, this is its end,
    which is unique.
    """
    return name[-HOSTNAME_MAX:].lstrip("-")


def _container(settings: PodSettings, order: PodOrder, name: str) -> JsonObject:
    container: JsonObject = {
        "name": CONTAINER,
        **({"image": settings.image} if settings.image else {}),
        "command": [*RUNNER, *order.command],
        "workingDir": order.workdir,
        "envFrom": [{"secretRef": {"name": name}}],
        "env": [{"name": "COADAPT_POD_IP", "valueFrom": OWN_ADDRESS}],
        "resources": slot_request(settings.resource, order.parts),
    }
    mounts = container["volumeMounts"] = []
    if settings.claim:
        folder = f"{settings.state_volume[1]}jobs/{order.job}/checkpoints"
        mounts.append(
            {"name": CHECKPOINT_VOLUME, "mountPath": CHECKPOINTS, "subPath": folder}
        )
    if order.member != SETUP:
        mounts.append(
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True}
        )
    return container


def _volumes(settings: PodSettings, order: PodOrder, name: str) -> list[JsonObject]:
    volumes: list[JsonObject] = []
    if settings.claim:
        claim = {"claimName": settings.state_volume[0]}
        volumes.append({"name": CHECKPOINT_VOLUME, "persistentVolumeClaim": claim})
    if order.member != SETUP:  # setup reports nothing, and has no token
        token = {"secretName": name, "items": [{"key": ENV_TOKEN, "path": TOKEN_NAME}]}
        volumes.append({"name": TOKEN_VOLUME, "secret": token})
    return volumes


def slot_request(resource: str, parts: int = PARTS) -> JsonObject:
    """Return a container's resource request for a slot, or for a part of one."""
    return request(resource, _amount(resource, parts))


def request(resource: str, amount: str) -> JsonObject:
    """Return a container's request for an amount of a resource."""
    wanted = {resource: amount}
    return {"requests": wanted, **({} if resource == CPU else {"limits": wanted})}


def _amount(resource: str, parts: int) -> str:
    """Return the amount of a resource for a slot or a part of one. Only CPUs can be
    divided.
    """
    return f"{parts * MILLI // PARTS}m" if resource == CPU else "1"


def _on_node(node: str) -> JsonObject:
    """Return the fields that bind a pod to a node through the cluster's scheduler,
    which knows what other pods use.
    """
    field_is = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [field_is]}]
        }
    }


def _named(value: object) -> TypeGuard[list[JsonObject]]:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and "name" in each for each in value
    )
