"""A test kubelet: the pods of its nodes are processes of this machine. Not a fake of ours: of the cluster.

It does what Kubernetes promises of a kubelet and its scheduler, as far as replicas need it: nodes that are
ready, pods bound to the node that they ask for, environments from secrets, SIGTERM and SIGKILL after the
grace, exit codes as status, output over HTTPS, completed deletion. No images, networks or limits; a volume
is a folder whose path is put in the place of the mount's.
"""

import base64
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi

POLL_S = 0.05
PODS = "/api/v1/pods"
# What an image would hold: the python that has coadapt.
IMAGE_PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


class TestKubelet:
    """The kubelet of all `nodes`, each with so many GPUs and CPUs, until `close`.

    volume: the folder that stands for any claim.
    """

    __test__ = False

    def __init__(self, api: KubeApi, folder: Path, nodes: dict[str, int], volume: Path | None = None) -> None:
        self._api = api
        self._folder = folder
        self._volume = volume
        self._nodes = set(nodes)
        self.frozen: set[str] = set()
        self._pods: dict[str, _Pod] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        folder.mkdir(exist_ok=True)
        self._server = _log_server(folder, self)
        for name, count in nodes.items():
            self.join(name, count)
        self._threads = [
            threading.Thread(target=loop, daemon=True) for loop in (self._listen, self._look_after_all)
        ]
        for thread in self._threads:
            thread.start()

    def join(self, name: str, count: int) -> None:
        """Have a node join, ready; one that crashed, too."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
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

    def cordon(self, name: str, unschedulable: bool = True) -> None:
        self._api.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": unschedulable}})

    def pids(self, job: str) -> list[int]:
        """Return the first processes, which are runners, of a job's pods."""
        with self._lock:
            pods = [pod for pod in self._pods.values() if pod.job == job and pod.process is not None]
        return [pod.process.pid for pod in pods if pod.process is not None and pod.process.poll() is None]

    def kill(self, job: str) -> None:
        """Kill what the runners of a job's pods run."""
        for pid in self.pids(job):
            for child in _below(pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def crash(self, name: str) -> None:
        """Lose a node: its processes are gone, and nobody says so but the node's condition."""
        self.frozen.add(name)
        with self._lock:
            pods = [pod for pod in self._pods.values() if pod.node == name]
        for pod in pods:
            pod.kill()
        self.set_ready(name, "Unknown")

    def log_of(self, namespace: str, name: str) -> "_Pod | None":
        with self._lock:
            return next((p for p in self._pods.values() if (p.namespace, p.name) == (namespace, name)), None)

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
        metadata, spec = found["metadata"], found["spec"]
        node = spec.get("nodeName") or _wanted(spec)
        if node not in self._nodes:
            return
        uid = metadata["uid"]
        with self._lock:
            pod = self._pods.get(uid)
            if pod is None and change != "DELETED":
                pod = self._pods[uid] = _Pod(self._folder, found, node, self._volume)
        if pod is None:
            return
        if change == "DELETED":
            pod.removed = True
        if not spec.get("nodeName") and change != "DELETED":
            self._bind(found, node)
        if metadata.get("deletionTimestamp"):
            pod.end_by(float(metadata.get("deletionGracePeriodSeconds") or 0))

    def _bind(self, found: JsonObject, node: str) -> None:
        namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": target,
        }
        with suppress(ApiError):
            self._api.ask("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body)

    def _look_after_all(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                pods = list(self._pods.values())
            for pod in pods:
                if pod.node not in self.frozen:
                    with suppress(ApiError):
                        pod.look_after(self._api)
            time.sleep(POLL_S)


class _Pod:
    def __init__(self, folder: Path, found: JsonObject, node: str, volume: Path | None) -> None:
        metadata = found["metadata"]
        self.node = node
        self.namespace, self.name = metadata["namespace"], metadata["name"]
        self.job = (metadata.get("labels") or {}).get("coadapt.dev/job", "")
        self.container = found["spec"]["containers"][0]
        self.volumes = found["spec"].get("volumes") or ()
        self.log = folder / f"{metadata['uid']}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.removed = False
        self.over = False
        self._uid = metadata["uid"]
        self._volume = volume
        self._said: JsonObject = {}
        self._kill_at: float | None = None
        self._path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    def end_by(self, grace_s: float) -> None:
        first, kill_at = self._kill_at is None, time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if first and self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """As a container runtime ends a container: all that is in it."""
        if self.process is not None:
            for pid in (self.process.pid, *_below(self.process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def look_after(self, api: KubeApi) -> None:
        """Bring it one step on."""
        if self.over:
            return
        if self.removed:
            self.kill()
            self.over = True
            return
        if self.process is None:
            if self._kill_at is not None:
                self._delete(api)
            else:
                self._start(api)
            return
        code = self.process.poll()
        if code is None:
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self.kill()
            return
        code = code if code >= 0 else 128 - code
        ended = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
        self._say(api, "Succeeded" if code == 0 else "Failed", ended)
        if self._kill_at is not None:
            self._delete(api)

    def _start(self, api: KubeApi) -> None:
        envs: dict[str, str] = {}
        for source in self.container.get("envFrom") or ():
            name = source["secretRef"]["name"]
            found = api.find(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
            if found is None:
                waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{name}" not found'}
                self._say(api, "Pending", {"waiting": waiting})
                return
            envs |= {key: base64.b64decode(value).decode() for key, value in found["data"].items()}
        for each in self.container.get("env") or ():
            envs[each["name"]] = each.get("value", "127.0.0.1")
        for mount in self.container.get("volumeMounts") or ():
            there = self._mounted(api, mount)
            envs = {key: value.replace(mount["mountPath"], there) for key, value in envs.items()}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self.container["command"],
                cwd=self.container.get("workingDir"),
                env={"PATH": IMAGE_PATH, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **envs},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._say(api, "Running", {"running": {"startedAt": _now()}})

    def _mounted(self, api: KubeApi, mount: JsonObject) -> str:
        """Return the folder that stands for a mount's: of the claim, or with what a secret holds."""
        source = next(each for each in self.volumes if each["name"] == mount["name"])
        if "secret" not in source:
            assert self._volume is not None
            return str(self._volume / mount["subPath"])
        folder = self.log.with_suffix("")
        folder.mkdir(exist_ok=True)
        name = source["secret"]["secretName"]
        found = api.get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")["data"]
        for item in source["secret"]["items"]:
            (folder / item["path"]).write_bytes(base64.b64decode(found[item["key"]]))
        return str(folder)

    def _say(self, api: KubeApi, phase: str, state: JsonObject) -> None:
        status = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "containerStatuses": [
                {
                    "name": self.container["name"],
                    "state": state,
                    "ready": phase == "Running",
                    "restartCount": 0,
                    "image": self.container["image"],
                    "imageID": "",
                }
            ],
        }
        if status != self._said:
            api.ask("PATCH", f"{self._path}/status", {"metadata": {"uid": self._uid}, "status": status})
            self._said = status

    def _delete(self, api: KubeApi) -> None:
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        try:
            api.ask("DELETE", self._path, {**options, "preconditions": {"uid": self._uid}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self.over = True


def _wanted(spec: JsonObject) -> str | None:
    """Return the node that a pod's affinity names."""
    with suppress(KeyError, TypeError, IndexError):
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
    return None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _below(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(below for child in children for below in _below(child))]


def _log_server(folder: Path, kubelet: TestKubelet) -> ThreadingHTTPServer:
    """Serve what containers print, where the API server asks a kubelet for it."""
    certificate = folder / "kubelet.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "7"),
            *("-subj", "/CN=127.0.0.1", "-keyout", certificate, "-out", folder / "kubelet.crt"),
        ],
        check=True,
        capture_output=True,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, namespace, name, _ = url.path.strip("/").split("/")
            pod = kubelet.log_of(namespace, name)
            follow = parse_qs(url.query).get("follow") == ["true"]
            self.send_response(200 if pod is not None else 404)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            if pod is None or not pod.log.exists():
                return
            with open(pod.log, "rb") as log, suppress(OSError):
                while True:
                    live = pod.process is not None and pod.process.poll() is None
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
