"""The nodes of a Kubernetes cluster, as its API server reports them, and how a replica
is started there.
"""

# A node's allocatable GPUs drop to 0 for seconds while its device plugin is updated,
# and by one if a GPU is unhealthy. Pods that have GPUs keep running. So a slot with a
# pod of ours counts as present until the pod has ended. Otherwise an update of the
# plugin, or one unhealthy GPU of eight, would stop all jobs on the node.

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from coadapt.executors.kubernetes import proxy
from coadapt.executors.kubernetes.api import ApiError, KubeApi
from coadapt.executors.kubernetes.nodes import usable_nodes
from coadapt.executors.kubernetes.pods import PodSettings, selector
from coadapt.executors.processes.slots import Slot
from coadapt.model import Node, NodeId

NODES = "/api/v1/nodes"
RETRY_S = 2.0
# How soon slots that a node has lost are given up, once their pods have ended.
LOOK_S = 2.0
ENDED = ("Succeeded", "Failed")
# The longest wait for the first list of nodes. Without any nodes a scheduler would give
# up its jobs.
FIRST_LOOK_S = 30.0

logger = logging.getLogger(__name__)


class KubernetesCluster:
    """Watches the nodes in its own thread. While the server is unreachable, the nodes
    are as they were last.
    """

    def __init__(
        self,
        api: KubeApi,
        settings: PodSettings,
        settings_file: Path,
        *,
        slots: int | None,
        node_labels: Mapping[str, str],
    ) -> None:
        """settings_file: the file with the same settings, for proxies. slots: CPU slots
        per node.
        """
        self._api = api
        self._file = settings_file
        self._taken = partial(_taken, api, settings)
        tolerations = tuple(
            (settings.template.get("spec") or {}).get("tolerations") or ()
        )
        self._usable = partial(
            usable_nodes,
            resource=settings.resource,
            slots=slots,
            labels=node_labels,
            tolerations=tolerations,
        )
        self._found: dict[str, dict[str, object]] = {}
        self._known: dict[NodeId, tuple[Node, str]] = {}
        self._addresses: dict[NodeId, str] = {}
        self._listed = threading.Event()
        self.trouble = ""
        self._lock = threading.Lock()
        self._closed = False
        for loop in (self._watch, self._look_again):
            threading.Thread(target=loop, name="kubernetes-nodes", daemon=True).start()
        self._listed.wait(FIRST_LOOK_S)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for _, (node, _) in sorted(self._known.items()))

    @property
    def why_gone(self) -> Mapping[NodeId, str]:
        """Nothing: a node that disappears is deleted, cordoned or not ready, and its
        own events say why.
        """
        return {}

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """Nothing: the node's device plugin decides which GPU a pod gets."""
        return {}

    def address(self, node: NodeId) -> str:
        """Return the node's address. Pods that use the node's network have the same
        address, others have their own.

        A node that has just left keeps its last address, for an order to it that is
        still being handled and will fail.
        """
        return self._addresses.get(node, node)

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return a command that starts the command appended to it on `node`."""
        return (
            sys.executable,
            "-m",
            proxy.__name__,
            str(self._file),
            node,
            str(slot.parts),
        )

    def close(self) -> None:
        """Stop the queries. The known nodes stay."""
        self._closed = True

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except ApiError as error:
                if not self._closed:
                    self.trouble = f"the API server does not tell of nodes: {error}"
                    logger.warning("%s", self.trouble)
                    time.sleep(RETRY_S)

    def _follow(self) -> None:
        listed: dict[str, dict[str, object]] = {}
        for change, found in self._api.watch(NODES):
            if self._closed:
                return
            if change == "LISTED":
                self._found = listed
                self.trouble = ""
                self._look()
                self._listed.set()
                continue
            name = str(found["metadata"]["name"])
            if change == "DELETED":
                listed.pop(name, None)
            else:
                listed[name] = found
            if self._found is listed:
                self._look()

    def _look_again(self) -> None:
        """Notice the end of pods whose slots are lost. The watch of nodes does not
        report it.
        """
        while not self._closed:
            time.sleep(LOOK_S)
            with suppress(ApiError):  # the watch of the nodes reports it
                self._look()

    def _look(self) -> None:
        with self._lock:
            nodes = list(self._found.values())
            usable = self._usable(nodes)
            fewer = any(
                name not in usable or usable[name][0].num_gpus < node.num_gpus
                for name, (node, _) in self._known.items()
            )
            if fewer or not self._known:
                usable = self._usable(nodes, busy=self._taken())
            self._known = usable
            self._addresses |= {name: address for name, (_, address) in usable.items()}


def _taken(api: KubeApi, settings: PodSettings) -> Mapping[str, int]:
    """Return how many pods of the scheduler each node has. A pod has one slot or a part
    of one.
    """
    found = api.get(
        f"/api/v1/namespaces/{settings.namespace}/pods",
        labelSelector=selector(settings),
    )
    living = [
        each
        for each in found["items"]
        if (each.get("status") or {}).get("phase") not in ENDED
    ]
    return Counter(str(each["spec"].get("nodeName")) for each in living)
