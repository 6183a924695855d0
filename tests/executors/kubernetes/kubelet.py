"""A test kubelet: the pods of its nodes are processes of this machine. Not a fake of
ours: of the cluster.

It does what Kubernetes promises of a kubelet and its scheduler, as far as replicas need
it: nodes that are ready, pods bound to the node that they ask for, environments from
secrets, SIGTERM and SIGKILL after the grace, exit codes as status, containers that
start again, output over HTTPS, completed deletion. No images, networks or limits
(containers.py).
"""

import os
import signal
import ssl
import subprocess
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from tests.executors.kubernetes.containers import below
from tests.executors.kubernetes.pod_life import Ground, Pod

POLL_S = 0.05
PODS = "/api/v1/pods"


class TestKubelet:
    """The kubelet of all `nodes`, each with so many GPUs and CPUs, until `close`."""

    __test__ = False

    def __init__(self, api: KubeApi, ground: Ground, nodes: dict[str, int]) -> None:
        self._api = api
        self._ground = ground
        self._nodes = set(nodes)
        self.frozen: set[str] = set()
        self._pods: dict[str, Pod] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        ground.folder.mkdir(exist_ok=True)
        self._server = _log_server(ground.folder, self)
        for name, count in nodes.items():
            self.join(name, count)
        self._threads = [
            threading.Thread(target=loop, daemon=True)
            for loop in (self._listen, self._look_after_all)
        ]
        for thread in self._threads:
            thread.start()

    def join(self, name: str, count: int, labels: dict[str, str] | None = None) -> None:
        """Have a node join, ready; one that crashed, too."""
        metadata = {"name": name, "labels": labels or {}}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        with suppress(ApiError):
            self._api.ask("POST", "/api/v1/nodes", body)
        self._nodes.add(name)
        self.frozen.discard(name)
        self.set_ready(name, "True", count)
        self._api.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    def set_ready(self, name: str, ready: str, count: int | None = None) -> None:
        port = self._server.server_address[1]
        status: JsonObject = {
            "conditions": [{"type": "Ready", "status": ready, "reason": "Test"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        if count is not None:
            status["allocatable"] = status["capacity"] = {
                "cpu": str(count),
                "nvidia.com/gpu": str(count),
                "pods": "110",
            }
        self._api.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def give(self, name: str, gpus: int) -> None:
        """Have a node give so many GPUs of those that it has, as its device plugin
        says.
        """
        allocatable = {"allocatable": {"nvidia.com/gpu": str(gpus)}}
        self._api.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": allocatable})

    def cordon(self, name: str, unschedulable: bool = True) -> None:
        self._api.ask(
            "PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": unschedulable}}
        )

    def pids(self, job: str) -> list[int]:
        """Return the first processes, which are runners, of a job's pods."""
        with self._lock:
            pods = [pod for pod in self._pods.values() if pod.job == job]
        return [
            pod.first(each) for pod in pods for each in pod.containers if each.lives
        ]

    def kill(self, job: str) -> None:
        """Kill what the runners of a job's pods run."""
        for pid in self.pids(job):
            for child in below(pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def crash(self, name: str) -> None:
        """Lose a node: its processes are gone, and nobody says so but the node's
        condition.
        """
        self.frozen.add(name)
        with self._lock:
            pods = [pod for pod in self._pods.values() if pod.node == name]
        for pod in pods:
            pod.kill()
        self.set_ready(name, "Unknown")

    def remove(self, name: str) -> None:
        """Remove a node with all that is on it, as a cloud and the cluster's garbage
        collection do.
        """
        with self._lock:
            pods = [pod for pod in self._pods.values() if pod.node == name]
        for pod in pods:
            pod.kill()
        self._api.delete(f"/api/v1/nodes/{name}")
        for pod in pods:
            self._api.delete(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", 0)
        self._nodes.discard(name)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return a pod that is there, or the last one that was."""
        with self._lock:
            found = [
                pod
                for pod in self._pods.values()
                if (pod.namespace, pod.name) == (namespace, name)
            ]
        return found[-1] if found else None

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            for pod in self._pods.values():
                pod.kill()

    def _listen(self) -> None:
        while not self._closed.is_set():
            with suppress(ApiError):
                for change, found in self._api.watch(PODS):
                    if self._closed.is_set():
                        return
                    if change != "LISTED":
                        self._take(change, found)
            time.sleep(POLL_S)

    def _take(self, change: str, found: JsonObject) -> None:
        metadata = found["metadata"]
        spec = found["spec"]
        node = spec.get("nodeName") or _wanted(spec)
        if node not in self._nodes:
            return
        uid = metadata["uid"]
        with self._lock:
            pod = self._pods.get(uid)
            if pod is None and change != "DELETED":
                pod = self._pods[uid] = Pod(self._ground, found, node)
        if pod is None:
            return
        if change == "DELETED":
            pod.removed = True
        if not spec.get("nodeName") and change != "DELETED":
            self._bind(found, node)
        if metadata.get("deletionTimestamp"):
            pod.end_by(float(metadata.get("deletionGracePeriodSeconds") or 0))

    def _bind(self, found: JsonObject, node: str) -> None:
        namespace = found["metadata"]["namespace"]
        name = found["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": target,
        }
        with suppress(ApiError):
            self._api.ask(
                "POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body
            )

    def _look_after_all(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                pods = list(self._pods.values())
            for pod in pods:
                if pod.node not in self.frozen:
                    with suppress(ApiError):
                        pod.look_after(self._api)
            time.sleep(POLL_S)


def _wanted(spec: JsonObject) -> str | None:
    """Return the node that a pod's affinity names."""
    with suppress(KeyError, TypeError, IndexError):
        terms = spec["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
    return None


def _log_server(folder: Path, kubelet: TestKubelet) -> ThreadingHTTPServer:
    """Serve what containers print, where the API server asks a kubelet for it."""
    certificate = folder / "kubelet.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7"),
            *(
                "-subj",
                "/CN=127.0.0.1",
                "-keyout",
                certificate,
                "-out",
                folder / "kubelet.crt",
            ),
        ],
        check=True,
        capture_output=True,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, namespace, name, container_name = url.path.strip("/").split("/")
            pod = kubelet.pod(namespace, name)
            follow = parse_qs(url.query).get("follow") == ["true"]
            self.send_response(200 if pod is not None else 404)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            container = None if pod is None else pod.container(container_name)
            if container is None or not container.log.exists():
                return
            with open(container.log, "rb") as log, suppress(OSError):
                while True:
                    live = container.lives
                    data = log.read()
                    self.wfile.write(data)
                    self.wfile.flush()
                    if not data and not (live and follow):
                        return
                    time.sleep(POLL_S)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in http.server
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "kubelet.crt", certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
