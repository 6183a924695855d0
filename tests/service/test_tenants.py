"""Tenants over HTTP: granted, listed, refused; and deadlines that count from a job's
submission.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from coadapt.cli.cluster.tenant import _budget
from coadapt.cli.cluster.usage import _budget_line
from coadapt.core.events import TenantConfigured
from coadapt.model import InputError
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
            "budget_period": None,
            "budget_spent": None,
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
        (row,) = client.get("/v1/usage").json()["budgets"]
        assert (row["tenant"], row["budget"], row["period"]) == ("vision", 1.0, None)
        assert (row["since"], row["until"]) == (None, None)
        assert row["spent"] == pytest.approx(1.0 - row["left"])
        assert row["left"] <= 0.0
        client.put("/v1/tenants/vision", json={"budget": 1e6})
        until(lambda: client.get(f"/v1/jobs/{second}").json()["state"] == "running")


def test_usage_shows_how_much_of_a_monthly_budget_is_left(tmp_path: Path) -> None:
    run = InProcess(tmp_path, prices=Prices(currency="EUR", default=3600.0))
    with run.turning(), run.client() as client:
        monthly = {"budget": 1e6, "budget_period": "month"}
        granted = client.put("/v1/tenants/vision", json=monthly).json()
        assert granted["budget_period"] == "month"
        client.post("/v1/jobs", json=JOB)
        until(lambda: client.get("/v1/tenants").json()["tenants"][0]["cost"] > 0.0)
        (row,) = client.get("/v1/usage").json()["budgets"]
        assert (row["period"], row["currency"]) == ("month", "EUR")
        assert row["since"] <= run.loop.now() < row["until"]
        assert row["left"] == pytest.approx(1e6 - row["spent"])
        assert 0.0 < row["spent"] < 1e6
        (tenant,) = client.get("/v1/tenants").json()["tenants"]
        assert tenant["budget_spent"] >= row["spent"]
        for body, allowed in (
            ({"budget": 1.0, "budget_period": "year"}, "day, week, month"),
            ({"budget_period": "day"}, "name a budget"),
        ):
            refused = client.put("/v1/tenants/vision", json=body)
            assert refused.status_code == 422
            assert refused.json()["error"]["field"] == "budget_period"
            assert allowed in refused.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500", (500.0, None)),
        ("500/month", (500.0, "month")),
        ("0.5/day", (0.5, "day")),
        ("none", (None, None)),
    ],
)
def test_the_option_budget_has_a_period_or_none(
    text: str, expected: tuple[float | None, str | None]
) -> None:
    assert _budget(text) == expected


@pytest.mark.parametrize("text", ["500/", "500/year", "/day", "much", "none/day"])
def test_another_budget_is_refused_with_the_periods(text: str) -> None:
    with pytest.raises(InputError, match=r"500/month \(periods: day, week, month\)"):
        _budget(text)


def test_usage_says_what_of_a_budget_is_left() -> None:
    row = {"tenant": "vision", "budget": 500.0, "spent": 120.5, "left": 379.5}
    row |= {"currency": "EUR", "period": "month", "since": 0.0, "until": 31 * 86_400.0}
    line = "budget of vision: spent 120.50 of 500.00 EUR, 379.50 left"
    assert _budget_line(row) == f"{line}, for the month until 1970-02-01 00:00 UTC"
    assert _budget_line({**row, "until": None}) == line
    above = _budget_line({**row, "spent": 510.0, "left": -10.0, "until": None})
    assert above == "budget of vision: spent 510.00 of 500.00 EUR, 10.00 above it"
