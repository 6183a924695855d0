"""Checks, by asking the cluster itself, which of an executor's requirements a
Kubernetes cluster lacks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coadapt.executors.kubernetes.api import UNAUTHORIZED, ApiError, KubeApi
from coadapt.executors.kubernetes.kueue import GROUP, without_queue
from coadapt.executors.kubernetes.nodes import usable_nodes, why_not

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NODES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Verbs on one resource. cluster: whether the right is for the whole cluster and
    not for one namespace. group: the API group, "" for the core's.
    """

    resource: str
    verbs: tuple[str, ...]
    subresource: str = ""
    cluster: bool = False
    group: str = ""

    @property
    def name(self) -> str:
        return (
            f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        )


# The minimum for an executor. deploy/kubernetes/rbac.yaml grants these rights, and a
# test compares both.
RIGHTS = (
    Right(resource="nodes", verbs=("get", "list", "watch"), cluster=True),
    Right(resource="pods", verbs=("create", "get", "list", "watch", "delete")),
    Right(resource="pods", subresource="log", verbs=("get",)),
    Right(resource="secrets", verbs=("create", "delete")),
    Right(resource="services", verbs=("create", "get")),
    Right(resource="configmaps", verbs=("create", "get")),
)
# The further rights that `coadapt elastic-jobs` needs on core resources. Without them
# jobs run, but there are no Events about them.
EVENT_RIGHTS = (Right(resource="events", verbs=("create", "patch")),)
# The further rights that an executor needs if a queue of Kueue admits its slots.
KUEUE_RIGHTS = (
    Right(resource="workloads", verbs=("create", "list", "delete"), group=GROUP),
    Right(
        resource="workloadpriorityclasses", verbs=("get",), group=GROUP, cluster=True
    ),
)


def missing_rights(
    api: KubeApi, namespace: str, rights: Sequence[Right] = RIGHTS
) -> list[str]:
    """Return which of `rights` this user has not, in words. Raises ApiError."""
    missing = []
    for right in rights:
        refused = [
            verb for verb in right.verbs if not _allowed(api, namespace, right, verb)
        ]
        if refused:
            where = "in the cluster" if right.cluster else f"in namespace {namespace}"
            missing.append(f"may not {', '.join(refused)} {right.name} {where}")
    return missing


def _allowed(api: KubeApi, namespace: str, right: Right, verb: str) -> bool:
    asked = {"verb": verb, "resource": right.resource, "subresource": right.subresource}
    asked["group"] = right.group
    if not right.cluster:
        asked["namespace"] = namespace
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
    }
    answer = api.ask("POST", REVIEWS, {**review, "spec": {"resourceAttributes": asked}})
    return bool(answer["status"].get("allowed"))


def findings(
    api: KubeApi,
    namespace: str,
    *,
    resource: str,
    slots: int | None,
    template: Mapping[str, object],
    may_be_empty: bool = False,
) -> list[str]:
    """Return in words what keeps an executor from working on this cluster, empty if
    nothing does. may_be_empty: nodes come later.
    """
    try:
        beside_kueue = bool(without_queue(dict(template))[1])
        refused = missing_rights(
            api, namespace, (*RIGHTS, *(KUEUE_RIGHTS if beside_kueue else ()))
        )
        if refused:
            how = (
                "kubectl apply -k deploy/kubernetes grants them to the service "
                "account coadapt"
            )
            return [*refused, how]
        _try_namespace(api, namespace)
        nodes = api.get("/api/v1/nodes")["items"]
    except ApiError as error:
        if error.status == UNAUTHORIZED:
            return [
                (
                    f"{api.host} does not accept these credentials ({error}): log in "
                    f"to "
                    f"the cluster again"
                )
            ]
        return [f"{api.host}: {error}"]
    spec = template.get("spec")
    tolerations = (spec.get("tolerations") or ()) if isinstance(spec, dict) else ()
    if may_be_empty or usable_nodes(
        nodes, resource=resource, slots=slots, labels={}, tolerations=tolerations
    ):
        return []
    return [_why_no_node(nodes, resource, tolerations)]


def _try_namespace(api: KubeApi, namespace: str) -> None:
    """Raise ApiError if there is no such namespace. Neither rights nor lists show
    that.
    """
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "coadapt-try"},
    }
    api.ask(
        "POST", f"/api/v1/namespaces/{namespace}/configmaps", body, {"dryRun": "All"}
    )


def _why_no_node(
    nodes: list[dict[str, object]], resource: str, tolerations: object
) -> str:
    closed = []
    for each in nodes:
        why = why_not(each, tolerations)  # type: ignore[arg-type]  # a list of mappings, as YAML gives it
        if why is not None:
            closed.append(f"{each['metadata']['name']} {why}")  # type: ignore[index]  # an object of the API
    if closed and len(closed) == len(nodes):
        return f"no node takes pods: {'; '.join(closed[:NODES_SHOWN])}"
    return (
        f"no node has {resource} to give: install the NVIDIA device plugin, "
        "or take CPU slots, --slots NUMBER of them per node"
    )
