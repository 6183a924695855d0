"""deploy/kubernetes as it runs: a real API server, the scheduler's pod of the
Deployment's own template.
"""

import copy
import http.client
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes")

from kubernetes.config import incluster_config

from coadapt.cli.client import Client
from coadapt.executors.kubernetes import api as api_module
from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.elastic_jobs import resources_path
from tests.contracts.executor_contract import until
from tests.executors.kubernetes.containers import (
    REPOSITORY,
    Walled,
    as_volume,
    why_no_walls,
)
from tests.executors.kubernetes.control_plane import ControlPlane
from tests.executors.kubernetes.pod_life import Ground, Pod, made_token
from tests.executors.kubernetes.site import (
    NAMESPACE,
    PLACES,
    PODS,
    KubernetesSite,
    apply,
    manifests,
)
from tests.ports import free_ports
from tests.train.rescale.test_elastic import assert_same_run
from tests.train.toy import Toy

if (
    why := why_no_walls()
):  # of the module: of a test it is a failure where the engine is asked for
    pytest.skip(why, allow_module_level=True)

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.train]

FILES = ("rbac.yaml", "crd.yaml", "scheduler.yaml")
JOBS = resources_path(NAMESPACE)
GPU_NODES = {"gpu-0": 1, "gpu-1": 2}
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
# Trains on, step by step, until somebody puts `fast` beside its traces.
TOY: dict[str, Any] = {"num_epochs": 60, "double": True, "pace_s": 0.5}
TRAIN = f"""\
import os
from tests.train.toy import Toy, run_toy
run_toy(Toy(folder=os.environ["COADAPT_CHECKPOINT_DIR"], **{TOY}))
"""
COUNT = """\
trap 'echo told to stop >> "$COADAPT_CHECKPOINT_DIR/lives"; exit 75' TERM
echo started >> "$COADAPT_CHECKPOINT_DIR/lives"
until [ -e "$COADAPT_CHECKPOINT_DIR/fast" ]; do sleep 0.1; done
echo ended >> "$COADAPT_CHECKPOINT_DIR/lives"
"""


KIND = {"apiVersion": "coadapt.dev/v1alpha1", "kind": "ElasticJob"}
COUNTS = {
    **KIND,
    "metadata": {"name": "counts"},
    "spec": {
        "run": COUNT,
        "workdir": "/workspace",
        "batch": {"initial": 8},
        "resources": {"gpus": 1},
    },
}
TRAINS = {
    "name": "trains",
    "run": f'cd {REPOSITORY} && exec python -c "$SCRIPT"',
    "workdir": "/workspace",
    "envs": {"SCRIPT": TRAIN, "COADAPT_REPORT_EVERY_S": "1"},
    "batch": {"initial": 64},
    "resources": {"gpus": 2},
}
GRACE_S = 10.0  # of the template
READY_S = 180.0  # a scheduler starts beside all other tests
# Kernels of the usual policy are compiled for 10 s and more.
SETTINGS = {"policy": "fifo", "round": 1, "reaction": 0.1}


class InCluster:
    """The base, applied; what a Deployment's controller does with its template; a user
    beside the cluster.
    """

    def __init__(self, folder: Path, control_plane: ControlPlane) -> None:
        self.volume = as_volume(folder / "volume")
        self.workspace = folder / "workspace"
        self.state = self.volume / "coadapt"
        self.workspace.mkdir()
        self.runtime = Walled(
            folder / "walls", self.workspace, {"OMP_NUM_THREADS": "1"}
        )
        ground = Ground(
            folder=folder / "pods",
            runtime=self.runtime,
            volume=self.volume,
            own_cluster=control_plane.in_cluster,
            certificate=control_plane.certificate,
        )
        self.site = KubernetesSite(
            folder, control_plane, {"node": 0, **GPU_NODES}, ground
        )
        self.api = self.site.api
        self.kubelet = self.site.kubelet
        for name in GPU_NODES:
            self.api.ask(
                "PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": [TAINT]}}
            )
        [self.port] = free_ports(1)
        apply(self.api, *FILES, port=self.port)
        settings = PLACES["ConfigMap"] + "/coadapt-settings"
        found = self.api.get(settings)["data"]["coadapt.yaml"]
        changed = yaml.safe_dump({**yaml.safe_load(found), **SETTINGS})
        self.api.ask("PATCH", settings, {"data": {"coadapt.yaml": changed}})
        self._made = 0

    def make_pod(self) -> str:
        """Make the scheduler's pod, as the ReplicaSet's controller does, on the node
        without GPUs.
        """
        self._made += 1
        name = f"coadapt-{self._made}"
        manifest = next(
            each
            for each in manifests("scheduler.yaml", self.port)
            if each["kind"] == "Deployment"
        )
        template = copy.deepcopy(manifest["spec"]["template"])
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            **template,
            "metadata": {**template["metadata"], "name": name},
        }
        self.api.ask(
            "POST", PODS, {**body, "spec": {**body["spec"], "nodeName": "node"}}
        )
        until(lambda: self.probed(name, "readinessProbe"), READY_S)
        return name

    def pod(self, name: str) -> Pod:
        pod = self.kubelet.pod(NAMESPACE, name)
        assert pod is not None
        return pod

    def probed(self, name: str, probe: str) -> bool:
        """Return whether the scheduler answers as the pod's own probe asks."""
        found = self.api.get(f"{PODS}/{name}")
        container = found["spec"]["containers"][0]
        asked = container[probe]["httpGet"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        connection = http.client.HTTPConnection(
            found["status"].get("podIP", ""), ports[asked["port"]], timeout=5
        )
        try:
            connection.request("GET", asked["path"])
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def printed(self, name: str) -> str:
        return "\n".join(
            each.log.read_text()
            for each in self.pod(name).containers
            if each.log.exists()
        )

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()

    def coadapt(self, *arguments: str) -> str:
        """Run a verb as a user does who has the token and reaches the Service, and
        nothing else.
        """
        envs = {
            "COADAPT_URL": f"http://coadapt.{NAMESPACE}.svc:{self.port}",
            "COADAPT_TOKEN": self.token,
        }
        log = self.workspace / "said"
        with log.open("wb") as file:
            process = self.runtime.run(
                "desk", {"command": ["coadapt", *arguments]}, envs, [], file
            )
        assert process.wait(60.0) == 0, log.read_text()
        return log.read_text().strip()

    def replicas(self) -> dict[str, str]:
        """Return uid -> name of the jobs' pods."""
        found = [each["metadata"] for each in self.api.get(PODS)["items"]]
        return {
            each["uid"]: each["name"]
            for each in found
            if "coadapt.dev/job" in each.get("labels", {})
        }

    def status(self, name: str) -> JsonObject:
        return dict(self.api.get(f"{JOBS}/{name}").get("status") or {})

    def told(self, pod: str, job: str) -> dict[str, Any]:
        """Return what the scheduler in `pod` knows of a job."""
        address = self.api.get(f"{PODS}/{pod}")["status"]["podIP"]
        return dict(
            Client(f"http://{address}:{self.port}", self.token).get(f"/v1/jobs/{job}")
        )

    def checkpoints(self, job: str) -> Path:
        return self.state / "jobs" / job / "checkpoints"

    def close(self) -> None:
        for each in self.api.get(JOBS)["items"]:
            self.api.ask(
                "PATCH",
                f"{JOBS}/{each['metadata']['name']}",
                {"metadata": {"finalizers": None}},
            )
            self.api.delete(f"{JOBS}/{each['metadata']['name']}")
        self.site.close()


@pytest.fixture
def cluster(tmp_path: Path, control_plane: ControlPlane) -> Iterator[InCluster]:
    cluster = InCluster(tmp_path, control_plane)
    yield cluster
    cluster.close()


def test_jobs_of_both_kinds_train_on_over_two_pods_of_the_scheduler(
    cluster: InCluster,
) -> None:
    first = cluster.make_pod()
    assert cluster.probed(first, "livenessProbe")
    assert cluster.probed(first, "startupProbe")
    cluster.api.ask("POST", JOBS, COUNTS)
    (cluster.workspace / "job.yaml").write_text(yaml.safe_dump(TRAINS))
    trains = cluster.coadapt("submit", "job.yaml")
    until(lambda: cluster.status("counts").get("phase") == "Running")
    until(lambda: cluster.told(first, trains)["progress"] > 0)
    counts = cluster.status("counts")["job"]
    pods = cluster.replicas()
    assert len(pods) == 3

    cluster.pod(first).kill()
    cluster.api.delete(f"{PODS}/{first}", 0)
    until(lambda: cluster.pod(first).over)
    second = cluster.make_pod()
    assert cluster.replicas() == pods
    progress = cluster.told(second, trains)["progress"]
    until(
        lambda: cluster.told(second, trains)["progress"] > progress
    )  # it is found at its new address

    for job in (trains, counts):
        (cluster.checkpoints(job) / "fast").touch()
    until(lambda: cluster.told(second, trains)["state"] == "succeeded")
    until(lambda: cluster.status("counts")["phase"] == "Succeeded")
    assert (cluster.checkpoints(counts) / "lives").read_text() == "started\nended\n"
    assert_same_run(Toy(folder=str(cluster.checkpoints(trains)), **TOY))
    assert cluster.replicas() == {}

    began = time.monotonic()
    cluster.api.delete(f"{PODS}/{second}")  # with the template's grace
    until(lambda: cluster.pod(second).over)
    assert [each.code for each in cluster.pod(second).containers] == [
        0,
        0,
    ]  # nobody had to be killed
    assert time.monotonic() - began < GRACE_S


def test_a_token_that_the_cluster_renewed_is_followed(
    tmp_path: Path, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client looks into the file once a minute; a file that is empty for a moment
    is no end.
    """
    for name, value in control_plane.in_cluster.items():
        monkeypatch.setenv(name, value)
    token = tmp_path / "token"
    namespace = tmp_path / "namespace"
    now = datetime.now(UTC)
    token.write_text(made_token(control_plane.admin(), NAMESPACE, "coadapt"))
    namespace.write_text(NAMESPACE)
    monkeypatch.setattr(api_module, "SERVICE_ACCOUNT_NAMESPACE", str(namespace))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(
        incluster_config, "SERVICE_CERT_FILENAME", str(control_plane.certificate)
    )
    clock = SimpleNamespace(
        datetime=SimpleNamespace(now=lambda: now), timedelta=timedelta
    )
    monkeypatch.setattr(incluster_config, "datetime", clock)
    api = KubeApi.connect()
    api.get(PODS)
    for text, refused in (("", "Token file exists but empty"), ("old", "Unauthorized")):
        token.write_text(text)
        now += timedelta(minutes=1)
        with pytest.raises(ApiError, match=refused):
            api.get(PODS)
    token.write_text(made_token(control_plane.admin(), NAMESPACE, "coadapt"))
    now += timedelta(minutes=1)
    api.get(PODS)
