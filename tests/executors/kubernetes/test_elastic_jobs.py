"""An ElasticJob is a job like one that was submitted: a scheduler on a real API server, its controller."""

from collections.abc import Iterator

import pytest
import yaml

pytest.importorskip("kubernetes")

from coadapt.cli.client import Client
from coadapt.cli.cluster.elastic_jobs import reconcile
from coadapt.executors.kubernetes.api import ApiError, JsonObject, KubeApi
from coadapt.executors.kubernetes.elastic_jobs import Standing, resources_path, status
from tests.contracts.executor_contract import until
from tests.executors.kubernetes.control_plane import SCHEDULER
from tests.executors.kubernetes.live import LiveOnKubernetes
from tests.executors.kubernetes.site import DEPLOY, NAMESPACE, KubernetesSite, apply

JOBS = resources_path(NAMESPACE)
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"


def elastic_job(name: str, run: str, workdir: str = "/work", **resources: object) -> JsonObject:
    spec = {"run": run, "workdir": workdir, "batch": {"initial": 8}, "resources": resources}
    kind = {"apiVersion": "coadapt.dev/v1alpha1", "kind": "ElasticJob"}
    return {**kind, "metadata": {"name": name, "generation": 1}, "spec": spec}


def test_a_condition_turns_only_when_its_truth_does() -> None:
    found = elastic_job("a", "x")
    first = status(found, Standing(job="a-1", picture={"state": "pending", "num_gpus": 0}), NOW)
    assert (first["phase"], first["replicas"]) == ("Pending", 0)
    picture = {"state": "running", "num_gpus": 2, "explanation": "it gains most"}
    second = status({**found, "status": first}, Standing(job="a-1", picture=picture), LATER)
    assert (second["phase"], second["replicas"], second["reason"]) == ("Running", 2, "it gains most")
    turned = {each["type"]: each["lastTransitionTime"] for each in second["conditions"]}
    assert turned == {"Submitted": NOW, "Running": LATER, "Finished": NOW}


@pytest.fixture
def scheduler(site: KubernetesSite) -> Iterator[Client]:
    """`coadapt up` itself."""
    apply(site.api, "crd.yaml")
    live = LiveOnKubernetes(site)
    live.up()
    yield live.client
    live.close()
    for each in site.api.get(JOBS)["items"]:
        site.api.ask("PATCH", f"{JOBS}/{each['metadata']['name']}", {"metadata": {"finalizers": None}})
        site.api.delete(f"{JOBS}/{each['metadata']['name']}")


@pytest.mark.processes
@pytest.mark.slow
def test_an_object_becomes_a_job_and_tells_of_it_until_it_is_deleted(
    site: KubernetesSite, scheduler: Client
) -> None:
    controller = KubeApi.connect(site.control_plane.kubeconfig(SCHEDULER))

    def told(name: str, phase: str) -> bool:
        reconcile(controller, NAMESPACE, scheduler)
        return bool((site.api.get(f"{JOBS}/{name}").get("status") or {}).get("phase") == phase)

    waits = "trap 'exit 75' TERM; touch up; while [ ! -e end ]; do sleep 0.05; done"
    for body in (
        elastic_job("ends", waits, str(site.folder), gpus=2),
        elastic_job("large", "true", gpus=64),
        elastic_job("deleted", "sleep 600", str(site.folder), gpus=1),
    ):
        site.api.ask("POST", JOBS, body)
    until(lambda: told("ends", "Running"))
    assert told("large", "Refused")
    assert "all that this cluster has" in site.api.get(f"{JOBS}/large")["status"]["reason"]
    found = site.api.get(f"{JOBS}/ends")["status"]
    assert found["replicas"] == 2
    until(lambda: found["job"] in [pod["metadata"]["labels"]["coadapt.dev/job"] for pod in site.pods()])
    until(lambda: told("deleted", "Running"))
    job = site.api.get(f"{JOBS}/deleted")["status"]["job"]
    site.api.delete(f"{JOBS}/deleted")
    until((site.folder / "up").exists)
    (site.folder / "end").touch()
    until(lambda: told("ends", "Succeeded"))
    until(lambda: scheduler.get(scheduler.job_path(job))["state"] == "cancelled")
    with pytest.raises(ApiError, match="not found"):
        site.api.get(f"{JOBS}/deleted")
    until(lambda: site.pods() == [])


def test_the_example_is_a_job() -> None:
    job = yaml.safe_load((DEPLOY / "elasticjob.yaml").read_text())
    assert elastic_job("cifar", "x").keys() >= job.keys()
