"""A test autoscaler with the part of the cluster's scheduler that it needs: it answers
pending pods by nodes, and removes nodes that no pod keeps.

It does what Cluster Autoscaler and Karpenter promise: a node is added for a pod that
fits nowhere, with the labels that the pod selects; a node is removed once no pod on it
has an annotation against that.
"""

import threading
import time
from contextlib import suppress

from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.nodes import is_ready, why_not
from tests.executors.kubernetes.kubelet import TestKubelet

POLL_S = 0.3
PODS = "/api/v1/pods"
OVER = ("Succeeded", "Failed")
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
KEEPING = (
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
    ("karpenter.sh/do-not-disrupt", "true"),
)
HOLDER = "coadapt.dev/holder-of"


class TestAutoscaler:
    """Adds nodes of `slots` CPUs `provision_s` after a pod asked for one, and removes
    them after `idle_s` without a pod that keeps them, until `close`.

    has_stock: whether a node can be had. added, removed: the nodes, in order, with the
    time (monotonic, s).
    """

    __test__ = False

    def __init__(
        self,
        api: KubeApi,
        kubelet: TestKubelet,
        *,
        slots: int,
        provision_s: float = 1.0,
        idle_s: float = 0.5,
    ) -> None:
        self.has_stock = True
        self.added: dict[str, float] = {}
        self.removed: dict[str, float] = {}
        self._api = api
        self._kubelet = kubelet
        self._slots = slots
        self._provision_s = provision_s
        self._idle_s = idle_s
        self._asked: dict[str, float] = {}
        self._answered: set[str] = set()
        self._empty_since: dict[str, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def taint(self, node: str, key: str) -> None:
        """Give a node a taint, as its autoscaler does before it drains the node."""
        taint = {"key": key, "effect": "NoSchedule", "value": "now"}
        self._api.ask("PATCH", f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            with suppress(ApiError):  # the server restarts
                self._look()

    def _look(self) -> None:
        pods = self._api.get(PODS)["items"]
        nodes = self._api.get("/api/v1/nodes")["items"]
        for pod in pods:
            pending = not pod["spec"].get("nodeName") and HOLDER in _labels(pod)
            if pending and not pod["metadata"].get("deletionTimestamp"):
                self._place(pod, nodes, pods)
        for node in nodes:
            self._consider(node, [each for each in pods if _is_on(each, node)])

    def _place(
        self, pod: JsonObject, nodes: list[JsonObject], pods: list[JsonObject]
    ) -> None:
        uid = pod["metadata"]["uid"]
        selector = pod["spec"]["nodeSelector"]
        for node in nodes:
            there = [each for each in pods if _is_on(each, node)]
            if _fits(pod, node, there):
                self._bind(pod, node)
                return
        since = self._asked.setdefault(uid, time.monotonic())
        is_due = time.monotonic() >= since + self._provision_s
        if is_due and self.has_stock and uid not in self._answered:
            self._answered.add(uid)
            name = f"cloud-{len(self.added)}"
            self.added[name] = time.monotonic()
            self._kubelet.join(name, self._slots, selector)

    def _bind(self, pod: JsonObject, node: JsonObject) -> None:
        metadata = {
            name: pod["metadata"][name] for name in ("name", "namespace", "uid")
        }
        target = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"]}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._api.ask("POST", f"{path}/binding", {**body, "target": target})
        pod["spec"]["nodeName"] = target["name"]

    def _consider(self, node: JsonObject, pods: list[JsonObject]) -> None:
        """Remove a node of its own that was empty for long."""
        name = node["metadata"]["name"]
        if name not in self.added or any(map(_keeps, pods)):
            self._empty_since.pop(name, None)
            return
        since = self._empty_since.setdefault(name, time.monotonic())
        if time.monotonic() >= since + self._idle_s:
            self.removed[name] = time.monotonic()
            self._kubelet.remove(name)


def _labels(found: JsonObject) -> dict[str, str]:
    return dict(found["metadata"].get("labels") or {})


def _is_on(pod: JsonObject, node: JsonObject) -> bool:
    return bool(pod["spec"].get("nodeName") == node["metadata"]["name"])


def _is_over(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in OVER


def _keeps(pod: JsonObject) -> bool:
    """Return whether a pod keeps its node, for both autoscalers."""
    told = pod["metadata"].get("annotations") or {}
    return not _is_over(pod) and all(told.get(key) == text for key, text in KEEPING)


def _fits(pod: JsonObject, node: JsonObject, there: list[JsonObject]) -> bool:
    """Return whether the cluster's scheduler would place a holder on a node."""
    spec = pod["spec"]
    selected = spec["nodeSelector"].items() <= _labels(node).items()
    if not selected or why_not(node, spec.get("tolerations") or ()) is not None:
        return False
    if any(HOLDER in _labels(each) for each in there):  # their anti-affinity
        return False
    free = float(node["status"]["allocatable"]["cpu"])
    free -= sum(_cpus(each) for each in there if not _is_over(each))
    return is_ready(node) and _cpus(pod) <= free


def _cpus(pod: JsonObject) -> float:
    asked = pod["spec"]["containers"][0].get("resources") or {}
    text = str((asked.get("requests") or {}).get("cpu", "0"))
    return float(text[:-1]) / 1000.0 if text.endswith("m") else float(text)
