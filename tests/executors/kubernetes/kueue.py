"""A stand-in for Kueue's controllers on a real API server: admits Workloads up to a
quota, takes some back.

Its objects are Kueue's (custom resources with the fields that are used), and so are the
rules: what was admitted holds its quota until it is gone, whatever its conditions say.
"""

import threading
from contextlib import suppress

from coadapt.executors.kubernetes.api import CONFLICT, ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.kueue import GROUP
from tests.contracts.executor_contract import until
from tests.executors.kubernetes.site import NAMESPACE, PLACES, PODS

VERSION = "v1beta1"
WORKLOADS = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/workloads"
CLASSES = f"/apis/{GROUP}/{VERSION}/workloadpriorityclasses"
QUEUE = "research"
POLL_S = 0.05


def install(api: KubeApi) -> None:
    """Have the server serve Kueue's objects."""
    for kind, plural, scope in (
        ("Workload", "workloads", "Namespaced"),
        ("WorkloadPriorityClass", "workloadpriorityclasses", "Cluster"),
    ):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": VERSION,
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
        }
        spec = {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "plural": plural,
                "singular": kind.lower(),
                "listKind": f"{kind}List",
            },
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        }
        metadata = {
            "name": f"{plural}.{GROUP}",
            # The server wants to know who approved a name of this group.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        }
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
        }
        with suppress(ApiError):
            api.ask(
                "POST",
                PLACES["CustomResourceDefinition"],
                {**body, "metadata": metadata, "spec": spec},
            )
        until(lambda plural=plural: _served(api, plural))  # type: ignore[misc]


class Kueue:
    """Admits what waits, the oldest first, while `quota` has room; `take_back` evicts
    the youngest.
    """

    def __init__(self, api: KubeApi, quota: int) -> None:
        self.quota = quota
        self.most_pods_over = 0
        self._api = api
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def workloads(self) -> list[JsonObject]:
        found = [(each["metadata"], each) for each in self._api.get(WORKLOADS)["items"]]
        found.sort(key=lambda pair: (pair[0]["creationTimestamp"], pair[0]["name"]))
        return [each for _, each in found]

    def admitted(self) -> list[JsonObject]:
        """Return those that hold quota, and are not asked to give it back."""
        return [each for each in self.reserved() if "Evicted" not in _true(each)]

    def reserved(self) -> list[JsonObject]:
        return [each for each in self.workloads() if "QuotaReserved" in _true(each)]

    def waiting(self) -> list[JsonObject]:
        return [each for each in self.workloads() if not _true(each)]

    def take_back(self, count: int) -> list[str]:
        """Evict so many, as for somebody with a higher priority; return their names."""
        self.quota -= count
        victims = self.admitted()[-count:]
        for each in victims:
            self._say(each, "QuotaReserved", "Admitted", "Evicted")
        return [each["metadata"]["name"] for each in victims]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for each in self.workloads():
            self._api.delete(f"{WORKLOADS}/{each['metadata']['name']}")

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            with suppress(ApiError):
                self._look()

    def _look(self) -> None:
        # In this order: a pod that ends and a slot that is given back in between are no
        # pod too many.
        held = len(self.reserved())
        pods = [each for each in self._api.get(PODS)["items"] if _takes_a_slot(each)]
        self.most_pods_over = max(
            self.most_pods_over, len(pods) - max(held, len(self.reserved()))
        )
        for each in self.waiting()[: max(self.quota - held, 0)]:
            self._say(each, "QuotaReserved", "Admitted")

    def _say(self, workload: JsonObject, *true: str) -> None:
        conditions = [
            {"type": name, "status": "True", "reason": "Test", "message": ""}
            for name in true
        ]
        path = f"{WORKLOADS}/{workload['metadata']['name']}/status"
        try:
            self._api.ask("PATCH", path, {"status": {"conditions": conditions}})
        except ApiError as error:
            if error.status not in (CONFLICT, 404):
                raise


def _true(workload: JsonObject) -> set[str]:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return {each["type"] for each in conditions if each["status"] == "True"}


def _takes_a_slot(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _served(api: KubeApi, plural: str) -> bool:
    try:
        found = api.find(f"/apis/{GROUP}/{VERSION}")
    except ApiError:
        return False
    return found is not None and any(
        each["name"] == plural for each in found["resources"]
    )
