"""Creates an executor from its options and a state directory: its names, an owner
object, and a service for addresses.
"""

import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from coadapt.core.commands import GiveBack
from coadapt.durable import write_whole
from coadapt.executors.host import Host
from coadapt.executors.kubernetes import OnKubernetes, sweep
from coadapt.executors.kubernetes.api import (
    CONFLICT,
    OWN_CLUSTER,
    ApiError,
    JsonObject,
    KubeApi,
    kubeconfig_files,
)
from coadapt.executors.kubernetes.cluster import KubernetesCluster
from coadapt.executors.kubernetes.holders import holder_selector, read_holder
from coadapt.executors.kubernetes.kueue import (
    QUEUE_LABEL,
    KueuePool,
    follow,
    without_queue,
)
from coadapt.executors.kubernetes.node_market import NodeMarket
from coadapt.executors.kubernetes.offers import shelf_of
from coadapt.executors.kubernetes.pods import (
    CPU,
    LABEL_SCHEDULER,
    MANAGED_BY,
    PodSettings,
)
from coadapt.executors.processes.cluster import check_sold, nodes_to_come
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.processes.records.generation_dir import write_json
from coadapt.executors.processes.records.own_files import PRIVATE_FILE
from coadapt.model import InputError, Node, NodeId
from coadapt.model.offer import Offer
from coadapt.runtime.ports import Post

SETTINGS = "kubernetes.json"
NAME = "kubernetes-name"
NAME_BYTES = 3
# A pod's grace is shorter than the launcher's by this time, so that the launcher gets a
# replica's end before its own grace is over.
GRACE_MARGIN_S = 2.0
GRACE_MIN_S = 1.0
# The period of queries of Kueue, for admitted and evicted slots.
LOOK_S = 1.0
ENV_POD_IP = "COADAPT_POD_IP"


class KubernetesExecutor(ProcessExecutor):
    """An executor that stops watching nodes when it is closed. pool: the slots that
    Kueue admits, if it does.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        host: Host,
        options: ProcessOptions,
        pool: KueuePool | None = None,
    ) -> None:
        super().__init__(cluster, host, options)
        self._nodes = cluster
        self._pool = pool
        self._ended = threading.Event()

    @property
    def to_come(self) -> tuple[Node, ...]:
        """The nodes that can still be bought."""
        return nodes_to_come(self._nodes.offers, self._nodes.nodes)

    def announce(self, known: Mapping[NodeId, Node], post: Post) -> None:
        if self._pool is not None:
            self._pool.tell(post)
        super().announce(known, post)

    def run(self, post: Post) -> None:
        if self._pool is None:
            super().run(post)
            return
        looking = threading.Thread(
            target=self._look, args=(self._pool, post), name="kueue pool", daemon=True
        )
        looking.start()
        try:
            super().run(post)
        finally:
            self._ended.set()
            looking.join()

    def close(self) -> None:
        super().close()
        self._nodes.close()

    def _see_to_bought(self, post: Post) -> None:
        """Give back nodes with a notice once no job holds them: an autoscaler that
        drains a node may wait until its keeper is gone.
        """
        super()._see_to_bought(post)
        for node in sorted(self._nodes.noticed):
            self._order_nodes(GiveBack(node=node))

    def _look(self, pool: KueuePool, post: Post) -> None:
        while not self._ended.wait(LOOK_S):
            follow(pool, sum(node.num_gpus for node in self._nodes.nodes), post)


def connect(
    options: OnKubernetes, api: KubeApi, host: Host, *, log_bytes: int
) -> ProcessExecutor:
    """Return the executor of the scheduler at `host`. Raises OSError if the cluster
    refuses.
    """
    namespace = options.namespace or api.namespace
    name = _own_name(host.state_dir)
    own_address = os.environ.get(ENV_POD_IP) or _way_to(api)
    address = options.address or own_address
    owner = _owner(api, namespace, name)
    template, kueue_labels = without_queue(options.template())
    _make_service(api, namespace, name, owner)
    if options.node_selector:
        spec = dict(template.get("spec") or {})
        labels = dict(label.split("=", 1) for label in options.node_selector)
        template = {
            **template,
            "spec": {
                **spec,
                "nodeSelector": {**(spec.get("nodeSelector") or {}), **labels},
            },
        }
    settings = PodSettings(
        kubeconfig=kubeconfig_files(options.kubeconfig),
        namespace=namespace,
        scheduler=name,
        image=options.image,
        resource=options.resource if options.slots is None else CPU,
        grace_s=max(host.stop_grace_s - GRACE_MARGIN_S, GRACE_MIN_S),
        service_account=options.service_account,
        claim=options.claim,
        api_url=host.reached_at(address).url,
        template_json=json.dumps(template),
        owner_json=json.dumps(owner),
        pass_env=options.pass_env,
    )
    file = host.state_dir / SETTINGS
    write_json(file, settings)
    cluster = KubernetesCluster(
        api,
        settings,
        file,
        slots=options.slots,
        node_labels=dict((template.get("spec") or {}).get("nodeSelector") or {}),
        market=_market(options, api, settings, kueue_labels),
    )
    process_options = ProcessOptions(
        pass_env=frozenset({*options.pass_env, *OWN_CLUSTER}),
        log_bytes=log_bytes,
        control_host=own_address,
        control_name=address,
        sweep=(sys.executable, "-m", sweep.__name__, str(file)),
    )
    pool = KueuePool(api, settings, host, kueue_labels) if kueue_labels else None
    return KubernetesExecutor(cluster, host, process_options, pool)


def _market(
    options: OnKubernetes,
    api: KubeApi,
    settings: PodSettings,
    kueue_labels: Mapping[str, str],
) -> NodeMarket | None:
    """Return what buys nodes, None without offers. Raises InputError."""
    if options.offers and kueue_labels:
        allowed = f"no offers beside the label {QUEUE_LABEL}: a queue admits its slots"
        raise InputError("--offer", _names(options.offers), allowed)
    pods = f"/api/v1/namespaces/{settings.namespace}/pods"
    found = api.get(pods, labelSelector=holder_selector(settings))["items"]
    sold = {read_holder(each).offer for each in found}
    check_sold(sold, [offer.id for offer in options.offers])
    if not options.offers:
        return None
    shelf = shelf_of(
        options.offers,
        options.offer_nodes,
        slots=options.slots,
        resource=options.resource,
    )
    return NodeMarket(api, settings, shelf)


def _names(offers: Sequence[Offer]) -> str:
    return ", ".join(offer.id for offer in offers)


def _own_name(state_dir: Path) -> str:
    """Return the name of this scheduler's objects. It never changes, so that the
    scheduler finds them again.
    """
    path = state_dir / NAME
    if not path.exists():
        write_whole(path, f"coadapt-{secrets.token_hex(NAME_BYTES)}", mode=PRIVATE_FILE)
    return path.read_text(encoding="utf-8").strip()


def _way_to(api: KubeApi) -> str:
    """Return this machine's address on the route to the API server. Pods are most
    likely to reach it there.
    """
    server = urlsplit(api.host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.hostname, server.port or 443))  # sends nothing
        return str(probe.getsockname()[0])


def _owner(api: KubeApi, namespace: str, name: str) -> JsonObject:
    """Return a reference to a small object of this scheduler. Deleting the object
    deletes all of the scheduler's pods.
    """
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    labels = {**MANAGED_BY, LABEL_SCHEDULER: name}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {
            "what": (
                "The pods of one Coadapt scheduler belong to this: deleted, it takes "
                "them along."
            )
        },
    }
    made = _made(api, path, name, body)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": name,
        "uid": made["metadata"]["uid"],
    }


def _make_service(api: KubeApi, namespace: str, name: str, owner: JsonObject) -> None:
    """Create the headless service under which each pod has a name."""
    labels = {**MANAGED_BY, LABEL_SCHEDULER: name}
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {LABEL_SCHEDULER: name},
    }
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    _made(api, f"/api/v1/namespaces/{namespace}/services", name, body)


def _made(api: KubeApi, path: str, name: str, body: JsonObject) -> JsonObject:
    try:
        return api.ask("POST", path, body)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        return api.get(f"{path}/{name}")
