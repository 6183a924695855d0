"""Shots at random moments on Kubernetes: nothing lost, nothing doubled, every job ends,
no pod is left.

    python -m tests.executors.kubernetes.kills --kills 21

Of a replica, a node with all that runs on it, a job's launcher and proxies, the
scheduler alone or with all launchers and proxies, the API server; a node is drained.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coadapt.executors.kubernetes.api import ApiError
from coadapt.executors.processes.job_processes import kill_marked, marked_processes
from tests.executors.kill_range import NODES, SLOTS, Range, shoot_many
from tests.executors.kubernetes.control_plane import ControlPlane, why_missing
from tests.executors.kubernetes.site import PODS, KubernetesSite, make_ready

KINDS = (
    "replica",
    "node",
    "drain",
    "beside",
    "scheduler",
    "all but pods",
    "API server",
)
# The launcher of a job of one replica, and its proxy.
BESIDE = 2


class KubernetesRange(Range):
    # The others leave pods alone: their jobs train on meanwhile, and the time is until
    # all is there again.
    harmless = ("beside", "scheduler", "all but pods", "API server")

    def __init__(self, folder: Path, seed: int) -> None:
        self.plane = ControlPlane(folder / "plane")
        try:
            make_ready(self.plane)
            self.site = KubernetesSite(folder, self.plane, dict.fromkeys(NODES, SLOTS))
        except BaseException:
            self.plane.close()
            raise
        super().__init__(folder, seed, self.site.engine)

    def start(self) -> None:
        """It is up."""

    def stop(self) -> None:
        try:
            self.site.close()
        finally:
            self.plane.close()

    def verdict(self) -> None:
        super().verdict()
        self._until(lambda: self.site.pods() == [], "no pod is left")

    def kill(self, kind: str, job: str, node: str) -> Callable[[], None]:
        match kind:
            case "replica":
                self.site.kubelet.kill(job)
            case "node":
                self.site.kubelet.crash(node)
                return lambda: self.site.kubelet.join(node, SLOTS)
            case "drain":
                self._drain(node)
                return lambda: self.site.kubelet.cordon(node, unschedulable=False)
            case "beside":
                kill_marked(self.cluster.checkpoints(job))
                return lambda: self._until(
                    lambda: self._has_beside(job), "its launcher and proxy are back"
                )
            case "scheduler":
                self.cluster.kill()
                return lambda: self.cluster.up(SLOTS)
            case "all but pods":
                self.cluster.kill()
                for each in self.jobs:
                    kill_marked(self.cluster.checkpoints(each))
                return self._come_back
            case "API server":
                self.plane.kill_apiserver()
                return self.plane.start_apiserver
        return lambda: None

    def whole(self) -> bool:
        known = self.cluster.client.get("/v1/cluster")["nodes"]
        return {node["id"] for node in known} == set(NODES)  # type: ignore[union-attr,index,call-overload]

    def told(self) -> str:
        with suppress(ApiError):
            return str(
                [(pod["metadata"]["name"], pod["status"]) for pod in self.site.pods()]
            )
        return "the API server does not answer"

    def _come_back(self) -> None:
        self.cluster.up(SLOTS)
        self._until(
            lambda: all(self._has_beside(job) for job in self.jobs),
            "all launchers and proxies are back",
        )

    def _has_beside(self, job: str) -> bool:
        return len(marked_processes(self.cluster.checkpoints(job))) == BESIDE

    def _drain(self, node: str) -> None:
        """As `kubectl drain` does."""
        self.site.kubelet.cordon(node)
        for pod in self.site.pods():
            name = pod["metadata"]["name"]
            eviction = {
                "apiVersion": "policy/v1beta1",
                "kind": "Eviction",
                "metadata": {"name": name},
            }
            if pod["spec"].get("nodeName") == node:
                with suppress(ApiError):  # the scheduler was quicker
                    self.site.api.ask("POST", f"{PODS}/{name}/eviction", eviction)


if __name__ == "__main__":
    if (why := why_missing()) is not None:
        sys.exit(why)
    shoot_many(KubernetesRange, KINDS, __doc__)
