"""An ElasticJob is a job like one that was submitted: a scheduler on a real API server,
its controller.
"""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
import yaml

pytest.importorskip("kubernetes")

from coadapt.cli.client import Client
from coadapt.cli.cluster.elastic_jobs import Mirror
from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.elastic_jobs import (
    EDITED,
    ObservedJob,
    resources_path,
    status,
)
from tests.cli.live_cluster import LiveCluster
from tests.contracts.executor_contract import SLOTS_PER_NODE, until
from tests.executors.kubernetes.control_plane import SCHEDULER
from tests.executors.kubernetes.site import (
    DEPLOY,
    NAMESPACE,
    PLACES,
    KubernetesSite,
    apply,
)

JOBS = resources_path(NAMESPACE)
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:00:05Z"


def elastic_job(
    name: str, run: str, workdir: str = "/work", **resources: object
) -> JsonObject:
    spec = {
        "run": run,
        "workdir": workdir,
        "batch": {"initial": 8},
        "resources": resources,
    }
    kind = {"apiVersion": "coadapt.dev/v1alpha1", "kind": "ElasticJob"}
    return {**kind, "metadata": {"name": name, "generation": 1}, "spec": spec}


def mirror_of(site: KubernetesSite) -> Mirror:
    """The controller, with the rights that the deployment grants."""
    return Mirror(KubeApi.connect(site.control_plane.kubeconfig(SCHEDULER)), NAMESPACE)


def events_of(site: KubernetesSite, name: str) -> list[str]:
    """Return why an object's Events were made, in order."""
    query = {
        "fieldSelector": f"involvedObject.kind=ElasticJob,involvedObject.name={name}"
    }
    found = site.api.get(EVENTS, **query)["items"]
    return [
        each["reason"]
        for each in sorted(
            found, key=lambda each: int(each["metadata"]["resourceVersion"])
        )
    ]


def kubectl(site: KubernetesSite, *command: str) -> str | None:
    """Return what kubectl prints, None where there is none."""
    if shutil.which("kubectl") is None:
        return None
    argv = ["kubectl", "--kubeconfig", site.control_plane.kubeconfig(), *command]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_a_condition_turns_only_when_its_truth_does() -> None:
    found = elastic_job("a", "x")
    first = status(
        found, ObservedJob(job="a-1", picture={"state": "pending", "num_gpus": 0}), NOW
    )
    assert (first["phase"], first["replicas"]) == ("Pending", 0)
    picture = {"state": "running", "num_gpus": 2, "explanation": "it gains most"}
    second = status(
        {**found, "status": first}, ObservedJob(job="a-1", picture=picture), LATER
    )
    assert (second["phase"], second["replicas"], second["reason"]) == (
        "Running",
        2,
        "it gains most",
    )
    turned = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert turned == {"Submitted": NOW, "Running": LATER, "Finished": NOW}


@pytest.mark.parametrize("state", ["pending", "rescaling", "succeeded"])
def test_an_edit_of_the_spec_is_reported_while_the_job_lives(state: str) -> None:
    """kueue#13646: two owners of the size. Here the scheduler alone decides on it."""
    found = elastic_job("a", "x", gpus="1..2")
    observed = ObservedJob(job="a-1", picture={"state": state, "num_gpus": 2})
    first = status(found, observed, NOW)
    assert first["submittedGeneration"] == 1
    edited = {
        **elastic_job("a", "x", gpus="1..4"),
        "metadata": {"name": "a", "generation": 2},
        "status": first,
    }
    second = status(edited, observed, LATER)
    assert (EDITED in second["reason"]) == (state != "succeeded")
    assert second["replicas"] == first["replicas"]
    assert (second["observedGeneration"], second["submittedGeneration"]) == (2, 1)
    # The job of an object that an earlier version submitted is that of its spec.
    assert EDITED not in status({**edited, "status": {}}, observed, LATER)["reason"]


@pytest.fixture
def scheduler(site: KubernetesSite) -> Iterator[Client]:
    """`coadapt up` itself."""
    apply(site.api, "crd.yaml")
    live = LiveCluster(site.folder, engine=site.engine)
    live.up(SLOTS_PER_NODE)
    yield live.client
    live.close()
    for each in site.api.get(JOBS)["items"]:
        site.api.ask(
            "PATCH",
            f"{JOBS}/{each['metadata']['name']}",
            {"metadata": {"finalizers": None}},
        )
        site.api.delete(f"{JOBS}/{each['metadata']['name']}")


@pytest.mark.processes
@pytest.mark.slow
def test_an_object_becomes_a_job_and_tells_of_it_until_it_is_deleted(
    site: KubernetesSite, scheduler: Client
) -> None:
    mirror = mirror_of(site)

    def has_phase(name: str, phase: str) -> bool:
        mirror.look(scheduler)
        return bool(
            (site.api.get(f"{JOBS}/{name}").get("status") or {}).get("phase") == phase
        )

    waits = "trap 'exit 75' TERM; touch up; while [ ! -e end ]; do sleep 0.05; done"
    for body in (
        elastic_job("ends", waits, str(site.folder), gpus=2),
        elastic_job("large", "true", gpus=64),
        elastic_job("deleted", "sleep 600", str(site.folder), gpus=1),
    ):
        site.api.ask("POST", JOBS, body)
    until(lambda: has_phase("ends", "Running"))
    assert has_phase("large", "Refused")
    assert (
        "all that this cluster has" in site.api.get(f"{JOBS}/large")["status"]["reason"]
    )
    found = site.api.get(f"{JOBS}/ends")["status"]
    assert found["replicas"] == 2
    until(
        lambda: (
            found["job"]
            in [pod["metadata"]["labels"]["coadapt.dev/job"] for pod in site.pods()]
        )
    )
    until(lambda: has_phase("deleted", "Running"))
    job = site.api.get(f"{JOBS}/deleted")["status"]["job"]
    site.api.delete(f"{JOBS}/deleted")
    until((site.folder / "up").exists)
    (site.folder / "end").touch()
    until(lambda: has_phase("ends", "Succeeded"))
    until(lambda: scheduler.get(scheduler.job_path(job))["state"] == "cancelled")
    with pytest.raises(ApiError, match="not found"):
        site.api.get(f"{JOBS}/deleted")
    until(lambda: site.pods() == [])
    mirror.look(scheduler)
    assert events_of(site, "ends") == ["Submitted", "Starting", "Started", "Succeeded"]
    assert events_of(site, "large") == ["Refused"]


@pytest.mark.processes
@pytest.mark.slow
def test_the_events_of_an_object_tell_of_its_lost_node_once_over_two_controllers(
    site: KubernetesSite, scheduler: Client
) -> None:
    body = elastic_job(
        "moves",
        "trap 'exit 75' TERM; while true; do sleep 0.05; done",
        str(site.folder),
        gpus=1,
    )
    site.api.ask("POST", JOBS, body)

    def has_started(phase: str, starts: int) -> bool:
        mirror_of(site).look(
            scheduler
        )  # a new one each time, as if the one before had died
        found = site.api.get(f"{JOBS}/moves").get("status") or {}
        return (
            found.get("phase") == phase
            and events_of(site, "moves").count("Started") == starts
        )

    until(lambda: has_started("Running", 1))
    until(
        lambda: [pod["spec"].get("nodeName") for pod in site.pods()] not in ([], [None])
    )
    [node] = [pod["spec"]["nodeName"] for pod in site.pods()]
    site.kubelet.cordon(node)
    until(lambda: has_started("Running", 2))
    site.kubelet.cordon(node, unschedulable=False)
    events = events_of(site, "moves")
    assert events == [
        "Submitted",
        "Starting",
        "Started",
        "NodeLost",
        "Starting",
        "Started",
    ]
    described = kubectl(site, "describe", "elasticjob", "moves")
    if described is not None:
        assert f"node {node}" in next(
            line for line in described.splitlines() if "NodeLost" in line
        )


@pytest.mark.processes
@pytest.mark.slow
def test_without_the_right_to_tell_events_the_status_is_kept_all_the_same(
    site: KubernetesSite, scheduler: Client
) -> None:
    role = f"{PLACES['Role']}/coadapt"
    rules = site.api.get(role)["rules"]
    site.api.ask(
        "PATCH",
        role,
        {"rules": [rule for rule in rules if rule["resources"] != ["events"]]},
    )
    try:
        mirror = mirror_of(site)
        site.api.ask(
            "POST", JOBS, elastic_job("silent", "true", str(site.folder), gpus=1)
        )

        def ended() -> bool:
            mirror.look(scheduler)
            return bool(
                (site.api.get(f"{JOBS}/silent").get("status") or {}).get("phase")
                == "Succeeded"
            )

        until(ended)
        assert "events is forbidden" in mirror.silence
    finally:
        site.api.ask("PATCH", role, {"rules": rules})


IMPORTS_S = 240.0  # of PyTorch and transformers, on a machine with a load of 20
HUGGING_FACE = """
import time, pathlib, torch
from transformers import Trainer, TrainingArguments

class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.line(x) - labels).square().mean()}

data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
given = TrainingArguments("out", max_steps=4, logging_steps=1, use_cpu=True, save_strategy="no")
Trainer(model=Line(), args=given, train_dataset=data).train()
while not pathlib.Path("end").exists():
    time.sleep(0.05)
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_hugging_face_trainer_tells_the_object_how_far_it_is(
    site: KubernetesSite, scheduler: Client
) -> None:
    """Its own callback for Kubeflow's TrainJobs (KEP-2779), which knows nothing of
    Coadapt.
    """
    pytest.importorskip("transformers")
    (site.folder / "train.py").write_text(HUGGING_FACE)
    mirror = mirror_of(site)
    site.api.ask(
        "POST", JOBS, elastic_job("hf", "python train.py", str(site.folder), gpus=1)
    )

    def shown() -> dict[str, object]:
        mirror.look(scheduler)
        return dict(
            (site.api.get(f"{JOBS}/hf").get("status") or {}).get("trainerStatus") or {}
        )

    until(lambda: shown().get("progressPercentage") == 100, IMPORTS_S)
    figures = {each["name"]: float(each["value"]) for each in shown()["metrics"]}  # type: ignore[attr-defined]  # JSON
    assert figures["total_steps"] == 4
    assert "train_loss" in figures
    assert shown()["estimatedRemainingSeconds"] == 0
    (site.folder / "end").touch()
    until(lambda: shown() is not None and scheduler.jobs()[0]["state"] == "succeeded")


def test_the_example_is_a_job_of_what_the_image_has() -> None:
    job = yaml.safe_load((DEPLOY / "elasticjob.yaml").read_text())
    assert elastic_job("shapes", "x").keys() >= job.keys()
    recipe = (DEPLOY / "Dockerfile").read_text().splitlines()
    [copied] = [line.split()[2:] for line in recipe if line.startswith("COPY --chown")]
    scripts = [each.name for each in DEPLOY.parents[1].glob(copied[0])]
    assert job["spec"]["run"].split()[1] in scripts
    assert f"WORKDIR {job['spec']['workdir']}" in recipe
