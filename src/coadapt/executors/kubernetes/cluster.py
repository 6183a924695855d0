"""The nodes of a Kubernetes cluster, as its API server tells of them, and how a replica is started there."""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from coadapt.executors.kubernetes import proxy
from coadapt.executors.kubernetes.api import ApiError, KubeApi
from coadapt.executors.kubernetes.nodes import usable_nodes
from coadapt.executors.kubernetes.pods import PodSettings
from coadapt.executors.processes.slots import Slot
from coadapt.model import Node, NodeId

NODES = "/api/v1/nodes"
RETRY_S = 2.0
# Of what is read at the beginning: without any nodes a scheduler would give up its jobs.
FIRST_LOOK_S = 30.0

logger = logging.getLogger(__name__)


class KubernetesCluster:
    """Watches the nodes from a thread of its own. While the server is away, they are as they were last."""

    def __init__(
        self,
        api: KubeApi,
        settings: PodSettings,
        settings_file: Path,
        *,
        slots: int | None,
        node_labels: Mapping[str, str],
    ) -> None:
        """`settings_file`: of the same settings, for proxies. slots: CPU slots per node."""
        self._api = api
        self._file = settings_file
        tolerations = tuple((settings.template.get("spec") or {}).get("tolerations") or ())
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
        self._closed = False
        threading.Thread(target=self._watch, name="kubernetes-nodes", daemon=True).start()
        self._listed.wait(FIRST_LOOK_S)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for _, (node, _) in sorted(self._known.items()))

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """Nothing: the node's device plugin says which GPU a pod gets."""
        return {}

    def address(self, node: NodeId) -> str:
        """Return the node's address: that of its pods where they use its network; others have their own.

        Of a node that just left it is the last one: an order for it is under way, and comes to nothing.
        """
        return self._addresses.get(node, node)

    def via(self, node: NodeId, slot: Slot) -> tuple[str, ...]:
        """Return the command that starts the command after it on `node`."""
        return (sys.executable, "-m", proxy.__name__, str(self._file), node, str(slot.parts))

    def close(self) -> None:
        """Look no more; what is known stays."""
        self._closed = True

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except ApiError as error:
                if not self._closed:
                    logger.warning("the API server does not tell of nodes: %s", error)
                    time.sleep(RETRY_S)

    def _follow(self) -> None:
        listed: dict[str, dict[str, object]] = {}
        for change, found in self._api.watch(NODES):
            if self._closed:
                return
            if change == "LISTED":
                self._found = listed
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

    def _look(self) -> None:
        self._known = self._usable(list(self._found.values()))
        self._addresses |= {name: address for name, (_, address) in self._known.items()}
