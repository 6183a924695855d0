"""A cluster of two nodes, and executors on it with the rights that the deployment
grants, no more.
"""

import threading
import time
from pathlib import Path

import yaml

from coadapt.cli.up.live import DEFAULT_PORT
from coadapt.core.events import Event
from coadapt.executors import prepare_executor
from coadapt.executors.host import Host
from coadapt.executors.kubernetes.api import CONFLICT, ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.elastic_jobs import resources_path
from coadapt.executors.processes.job_processes import kill_marked
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.model.offer import Offer
from coadapt.runtime.ports import LiveExecutor
from tests.contracts.executor_contract import NODES, SLOTS_PER_NODE, until
from tests.executors.kubernetes.containers import Plain
from tests.executors.kubernetes.control_plane import READY_S, SCHEDULER, ControlPlane
from tests.executors.kubernetes.kubelet import TestKubelet
from tests.executors.kubernetes.pod_life import Ground

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
NAMESPACE = "coadapt"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
HOST_NETWORK = {"spec": {"hostNetwork": True}}
# Where the API server keeps the objects that the deployment is made of.
PLACES = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/coadapt/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/coadapt/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/coadapt/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "PersistentVolumeClaim": "/api/v1/namespaces/coadapt/persistentvolumeclaims",
    "Deployment": "/apis/apps/v1/namespaces/coadapt/deployments",
    "Service": "/api/v1/namespaces/coadapt/services",
    "ConfigMap": "/api/v1/namespaces/coadapt/configmaps",
}


def manifests(name: str, port: int = DEFAULT_PORT) -> list[JsonObject]:
    """Return what a file of the deployment holds. port: of the scheduler, in place of
    the usual one.
    """
    text = (DEPLOY / name).read_text().replace(str(DEFAULT_PORT), str(port))
    return [each for each in yaml.safe_load_all(text) if each]


def apply(
    api: KubeApi, *names: str, port: int = DEFAULT_PORT, dry_run: bool = False
) -> None:
    """Create what the files of the deployment hold; what is there already stays."""
    for manifest in [each for name in names for each in manifests(name, port)]:
        query = {"dryRun": "All"} if dry_run else {}
        try:
            api.ask("POST", PLACES[manifest["kind"]], manifest, query)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        if manifest["kind"] == "CustomResourceDefinition" and not dry_run:
            until(
                lambda: api.find(resources_path(NAMESPACE)) is not None
            )  # it is served a little later


class KubernetesSite:
    """One state directory, one kubelet of all nodes; the API server is shared, and
    emptied at the end.

    nodes: slots by name; the contract's two, if not told. ground: of their pods; else
    they are processes that find the state directory on their claim.
    """

    def __init__(
        self,
        folder: Path,
        control_plane: ControlPlane,
        nodes: dict[str, int] | None = None,
        ground: Ground | None = None,
    ) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.state_dir.mkdir()
        self.control_plane = control_plane
        self.api = control_plane.admin()
        self.node_events: list[Event] = []
        self.slots: str | None = str(SLOTS_PER_NODE)
        self.offers: tuple[Offer, ...] = ()
        self.kubeconfig = control_plane.kubeconfig(SCHEDULER)
        if ground is None:
            volume = folder / "volume"
            volume.symlink_to(self.state_dir)
            ground = Ground(folder=folder / "kubelet", runtime=Plain(), volume=volume)
        if nodes is None:
            nodes = dict.fromkeys(NODES, SLOTS_PER_NODE)
        self.runtime = ground.runtime
        self.kubelet = TestKubelet(self.api, ground, nodes)
        self._running: list[tuple[LiveExecutor, threading.Thread]] = []
        (folder / "pod.yaml").write_text(yaml.safe_dump(HOST_NETWORK))

    def executor(self, stop_grace_s: float = 10.0) -> LiveExecutor:
        self.stop_executors()
        host = Host(
            state_dir=self.state_dir,
            url="http://127.0.0.1:1",
            job_token=lambda job: f"token-of-{job}",
            stop_grace_s=stop_grace_s,
        )
        executor = prepare_executor("kubernetes", self.options(), self.offers)(host)
        executor.announce({}, self.node_events.append)
        thread = threading.Thread(target=executor.run, args=(self.node_events.append,))
        thread.start()
        self._running.append((executor, thread))
        return executor

    def options(self) -> dict[str, str]:
        slots = {} if self.slots is None else {"slots": self.slots}
        return {
            "kubeconfig": self.kubeconfig,
            "image": "any",
            "claim": "coadapt-state",
            "pod_template": str(self.folder / "pod.yaml"),
            **slots,
        }

    @property
    def engine(self) -> tuple[str, ...]:
        """What `coadapt up` is told, but for the slots."""
        given = {
            name: value for name, value in self.options().items() if name != "slots"
        }
        return (
            "--executor",
            "kubernetes",
            *(f"--executor-option={name}={given[name]}" for name in given),
        )

    def pods(self) -> list[JsonObject]:
        return list(self.api.get(PODS)["items"])

    def kill_replicas(self, job: str) -> None:
        self.kubelet.kill(job)

    def stop_executors(self) -> None:
        while self._running:
            executor, thread = self._running.pop()
            executor.close()
            thread.join()

    def close(self) -> None:
        self.stop_executors()
        for job in (self.state_dir / "jobs").glob("*"):
            kill_marked(JobDir(job).checkpoints)
        self.kubelet.close()
        for kind in ("pods", "secrets", "services", "configmaps"):
            path = f"/api/v1/namespaces/{NAMESPACE}/{kind}"
            for each in self.api.get(path)["items"]:
                self.api.delete(
                    f"{path}/{each['metadata']['name']}", 0 if kind == "pods" else None
                )
        for each in self.api.get("/api/v1/nodes")["items"]:
            self.api.delete(f"/api/v1/nodes/{each['metadata']['name']}")


def make_ready(control_plane: ControlPlane) -> None:
    """Put the namespace and the scheduler's rights there; wait until the server heeds
    them.
    """
    apply(control_plane.admin(), "namespace.yaml", "rbac.yaml")
    api = KubeApi.connect(control_plane.kubeconfig(SCHEDULER))
    deadline = time.monotonic() + READY_S
    while True:
        try:
            api.get(PODS)
        except ApiError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return
