"""Tenants over HTTP: granted, listed, refused; and deadlines that count from a job's
submission.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from coadapt.core.events import TenantConfigured
from coadapt.model.prices import Prices
from tests.service.in_process import InProcess, until

JOB = {
    "name": "a",
    "run": "true",
    "workdir": "/",
    "batch": {"initial": 8},
    "tenant": "vision",
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    service = InProcess(tmp_path)
    with service.turning():
        yield service


@pytest.fixture
def client(service: InProcess) -> TestClient:
    return service.client()


def test_what_is_granted_is_told_and_counts(
    client: TestClient, service: InProcess
) -> None:
    job = client.post("/v1/jobs", json=JOB).json()["id"]
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    assert client.get("/v1/tenants").json()["tenants"] == [
        {
            "id": "vision",
            "weight": 1.0,
            "quota_gpus": None,
            "priority": 0,
            "budget": None,
            "value_of_time": None,
            "cost": 0.0,
            "num_gpus": 1.0,
            "num_jobs": 1,
            "num_jobs_with_gpus": 1,
            "num_jobs_beyond_quota": 0,
        }
    ]
    valued = client.put("/v1/tenants/vision", json={"value_of_time": 2.5})
    assert valued.json()["value_of_time"] == 2.5
    assert client.put("/v1/tenants/a", json={"value_of_time": -1}).status_code == 422
    answer = client.put(
        "/v1/tenants/vision", json={"quota_gpus": 0, "weight": 2.5, "priority": -1}
    )
    assert (
        answer.status_code,
        answer.json()["quota_gpus"],
        answer.json()["weight"],
    ) == (200, 0, 2.5)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "pending")
    assert answer.json()["num_jobs_beyond_quota"] == 1
    assert (
        "the quota of tenant vision is 0; it cannot start until the quota is raised"
        in client.get(f"/v1/jobs/{job}").json()["explanation"]
    )
    client.put("/v1/tenants/vision", json={})
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    assert (
        service.client(token="wrong").put("/v1/tenants/vision", json={}).status_code
        == 401
    )


@pytest.mark.parametrize(("quota", "gpus"), [(0, 1), (0, "1..2"), (1, 2)])
def test_a_job_larger_than_its_quota_is_refused(
    client: TestClient, quota: int, gpus: int | str
) -> None:
    client.put("/v1/tenants/vision", json={"quota_gpus": quota})
    answer = client.post("/v1/jobs", json={**JOB, "resources": {"gpus": gpus}})
    assert answer.status_code == 422
    given = answer.json()["error"]["value"]
    assert given == repr(str(gpus))
    allowed = "no job" if quota == 0 else f"a minimum of at most {quota}"
    assert (
        f"allowed: {allowed}, as tenant vision may have {quota}; an operator raises "
        f"that with: coadapt tenant set vision --quota {quota + 1}"
    ) in answer.text
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_a_job_larger_than_the_quota_of_all_waits(client: TestClient) -> None:
    """Kueue changes that quota: a job that does not fit now may fit later."""
    client.put("/v1/tenants/*", json={"quota_gpus": 0})
    assert client.post("/v1/jobs", json=JOB).status_code == 202


def test_everybody_together_is_granted_like_a_tenant_and_owns_no_job(
    client: TestClient,
) -> None:
    for tenant in ("vision", "speech"):
        job = client.post("/v1/jobs", json={**JOB, "tenant": tenant}).json()["id"]
        until(
            lambda job=job: client.get(f"/v1/jobs/{job}").json()["state"] == "running"
        )  # type: ignore[misc]
    assert [each["id"] for each in client.get("/v1/tenants").json()["tenants"]] == [
        "speech",
        "vision",
    ]
    answer = client.put("/v1/tenants/*", json={"quota_gpus": 1}).json()
    assert (answer["id"], answer["quota_gpus"], answer["num_jobs"]) == ("*", 1, 2)
    until(lambda: _waiting(client) == 1)
    refused = client.post("/v1/jobs", json={**JOB, "tenant": "*"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "tenant")


def _waiting(client: TestClient) -> int:
    return len(client.get("/v1/jobs?state=pending").json()["jobs"])


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("vision", {"quota_gpus": -1}, "quota_gpus"),
        ("vision", {"quota_gpus": 10**9}, "quota_gpus"),
        ("vision", {"weight": 0}, "weight"),
        ("vision", {"weight": 1e300}, "weight"),
        ("vision", {"priority": 1.5}, "priority"),
        ("vision", {"qota": 1}, "qota"),
        ("a%1b", {}, "tenant"),
        ("x" * 101, {}, "tenant"),
    ],
)
def test_what_cannot_be_granted_is_refused(
    client: TestClient,
    service: InProcess,
    name: str,
    body: dict[str, object],
    field: str,
) -> None:
    answer = client.put(f"/v1/tenants/{name}", json=body)
    assert answer.status_code == 422, answer.text
    assert field in answer.json()["error"]["field"], answer.text
    assert not [
        event for event in service.store.events() if isinstance(event, TenantConfigured)
    ]


def test_a_repeated_submission_has_the_deadline_of_the_first(
    client: TestClient,
) -> None:
    given = {**JOB, "deadline": "2h"}
    headers = {"Idempotency-Key": "one"}
    first, second = (
        client.post("/v1/jobs", json=given, headers=headers) for _ in range(2)
    )
    assert (first.status_code, second.status_code) == (202, 202)
    told = client.get(f"/v1/jobs/{first.json()['id']}").json()
    assert told["spec"]["deadline_at"] == told["submitted_at"] + 7200.0


def test_a_limit_of_costs_needs_prices(tmp_path: Path) -> None:
    run = InProcess(tmp_path)
    with run.turning(), run.client() as client:
        refused = client.put("/v1/tenants/vision", json={"budget": 5.0})
        assert refused.status_code == 422
        assert "knows no prices" in refused.text
        refused = client.post("/v1/jobs", json={**JOB, "max_cost": 5.0})
        assert refused.status_code == 422
        assert "knows no prices" in refused.text


def test_a_budget_is_granted_and_its_share_is_a_metric(tmp_path: Path) -> None:
    # 3,600 for an hour of a GPU is 1 for a second.
    run = InProcess(tmp_path, prices=Prices(currency="EUR", default=3600.0))
    with run.turning(), run.client() as client:
        told = client.put("/v1/tenants/vision", json={"budget": 1.0}).json()
        assert told["budget"] == 1.0
        first = client.post("/v1/jobs", json=JOB).json()["id"]
        until(lambda: client.get("/v1/tenants").json()["tenants"][0]["cost"] > 1.0)
        until(lambda: bool(run.loop.read(lambda state: state.budget_levels)))
        second = client.post("/v1/jobs", json=JOB).json()["id"]
        described = client.get(f"/v1/jobs/{second}").json()
        assert (described["state"], described["reason"]) == ("pending", "budget")
        assert client.get(f"/v1/jobs/{first}").json()["state"] == "running"
        (line,) = [
            line
            for line in client.get("/metrics").text.splitlines()
            if line.startswith('coadapt_budget_used{tenant="vision"}')
        ]
        assert float(line.split()[1]) >= 1.0
        client.put("/v1/tenants/vision", json={"budget": 1e6})
        until(lambda: client.get(f"/v1/jobs/{second}").json()["state"] == "running")
