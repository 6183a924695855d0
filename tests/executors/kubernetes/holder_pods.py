"""The pods of one namespace in memory, with what the tests of bought nodes do to them:
bind, evict and end them.
"""

import time
from collections.abc import Callable, Iterator

from coadapt.executors.kubernetes.api import CONFLICT, ApiError, JsonObject

POLL_S = 0.02
CREATED = "1970-01-01T00:16:40Z"  # 1000 s


class HolderPods:
    """An API server for pods: deleted ones that run stay until `confirm`."""

    def __init__(self) -> None:
        self.pods: dict[str, JsonObject] = {}
        self.nodes: dict[str, JsonObject] = {}
        self.refused: ApiError | None = None
        self.num_asked = 0
        self.during_delete: Callable[[], None] | None = None

    @property
    def names(self) -> list[str]:
        return sorted(name.removeprefix("coadapt-1-") for name in self.pods)

    def get(self, _path: str, **_query: object) -> JsonObject:
        return {"items": list(self.pods.values())}

    def find(self, path: str) -> JsonObject | None:
        return self.nodes.get(path.rpartition("/")[2])

    def ask(self, method: str, _path: str, body: JsonObject) -> JsonObject:
        assert method == "POST"
        self.num_asked += 1
        if self.refused is not None:
            raise self.refused
        name = body["metadata"]["name"]
        if name in self.pods:
            raise ApiError(CONFLICT, f"{name} is there")
        metadata = {**body["metadata"], "creationTimestamp": CREATED}
        self.pods[name] = {**body, "metadata": metadata, "status": {}}
        return self.pods[name]

    def delete(self, path: str, grace_s: float | None = None) -> None:
        if self.during_delete is not None:
            self.during_delete()
        name = path.rpartition("/")[2]
        pod = self.pods.get(name)
        if pod is None:
            return
        runs = pod["spec"].get("nodeName") and not pod["status"].get("phase")
        if runs and grace_s:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
        else:
            del self.pods[name]

    def bind(self, name: str, node: str) -> None:
        self.pods[f"coadapt-1-{name}"]["spec"]["nodeName"] = node

    def evict(self, name: str) -> None:
        self.pods[f"coadapt-1-{name}"]["status"]["phase"] = "Failed"

    def remove(self, name: str) -> None:
        del self.pods[f"coadapt-1-{name}"]

    def confirm(self) -> None:
        """End the pods that were deleted."""
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]

    def watch(self, _path: str) -> Iterator[tuple[str, JsonObject]]:
        """Tell of all nodes, and again of those that there are then."""
        for found in self.nodes.values():
            yield "ADDED", found
        yield "LISTED", {}
        while True:
            time.sleep(POLL_S)
            for found in list(self.nodes.values()):
                yield "MODIFIED", found
