"""A real `coadapt up` whose nodes are all bought from a test autoscaler, on a real API
server.
"""

from pathlib import Path
from typing import cast

from coadapt.cli.client import JsonObject
from coadapt.executors.kubernetes.holders import LABEL_HOLDER
from tests.cli.live_cluster import LiveCluster
from tests.executors.kubernetes.autoscaler import TestAutoscaler
from tests.executors.kubernetes.control_plane import ControlPlane
from tests.executors.kubernetes.site import PODS, KubernetesSite

PRICE = 36


class BuyingCluster(LiveCluster):
    """A scheduler whose nodes have one CPU slot each, and one offer for them."""

    def __init__(
        self, folder: Path, plane: ControlPlane, *, policy: str, sizer: str, most: int
    ) -> None:
        """most: the offer's."""
        self.site = KubernetesSite(folder, plane, nodes={})
        self.autoscaler = TestAutoscaler(self.site.api, self.site.kubelet, slots=1)
        offer = f"firm=1x{PRICE},most={most},provision=1"
        sizing = ("--offer", offer, "--sizer", sizer, "--sizing", "1")
        engine = (*self.site.engine, *sizing)
        super().__init__(folder, policy=policy, engine=engine)

    @property
    def buying(self) -> JsonObject:
        return cast(JsonObject, self.client.get("/v1/nodes")["buying"])

    @property
    def offer(self) -> JsonObject:
        return cast("list[JsonObject]", self.buying["offers"])[0]

    @property
    def node_ids(self) -> list[str]:
        nodes = cast("list[JsonObject]", self.client.get("/v1/nodes")["nodes"])
        return sorted(str(node["id"]) for node in nodes)

    def on(self, job: str) -> list[str]:
        slots = cast("list[tuple[str, int]]", self.job(job)["allocation"])
        return [node for node, _ in slots]

    @property
    def holders(self) -> list[str]:
        """The ends of the names of the holder pods."""
        found = self.site.api.get(PODS, labelSelector=LABEL_HOLDER)["items"]
        return sorted(each["metadata"]["name"].split("-", 2)[2] for each in found)

    def leave(self) -> None:
        self.close()
        self.autoscaler.close()
        self.site.close()
