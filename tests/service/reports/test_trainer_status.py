"""Trainers that speak Kubeflow's status protocol (KEP-2779): what is taken in of it,
and how often.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from coadapt.core.events import TrainingReported
from coadapt.service.reports.trainer_status import (
    BURST,
    PER_S,
    StatusBody,
    Throttle,
    report_of,
)
from tests.service.in_process import InProcess, until
from tests.service.test_app import job_file, kinds

STATUS = {
    "progressPercentage": 45,
    "estimatedRemainingSeconds": 795649,
    "metrics": [{"name": "loss", "value": "0.2347"}, {"name": "note", "value": "warm"}],
    "lastUpdatedTime": "2025-01-23T10:30:45Z",
}
SAID = {
    "loss": 0.2347,
    "progress_percentage": 45.0,
    "estimated_remaining_seconds": 795649.0,
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    service = InProcess(tmp_path)
    with service.turning():
        yield service


def running(service: InProcess) -> tuple[str, TestClient]:
    """Return a job that runs, and a client with its own token."""
    operator = service.client()
    job = operator.post("/v1/jobs", json=job_file(service.folder)).json()["id"]
    until(lambda: operator.get(f"/v1/jobs/{job}").json()["state"] == "running")
    return job, service.client(service.credentials.job_token(job))


def test_what_a_trainer_tells_is_among_the_jobs_figures_and_its_samples_stay(
    service: InProcess,
) -> None:
    job, client = running(service)
    answer = client.post(
        f"/v1/jobs/{job}/trainer-status", json={"trainerStatus": STATUS}
    )
    assert (answer.status_code, answer.json()) == (200, {"id": job})
    found = client.get(f"/v1/jobs/{job}").json()
    assert (found["metrics"], found["progress"], found["progress_target"]) == (
        SAID,
        0.0,
        None,
    )
    assert found["silent_s"] is not None
    [event] = kinds(service, TrainingReported)
    assert event.generation == 1


@pytest.mark.parametrize(
    "status",
    [
        {"progressPercentage": 101},
        {"progressPercentage": 4.5},
        {"estimatedRemainingSeconds": -1},
        {"metrics": [{"name": "", "value": "1"}]},
        {"metrics": [{"name": "a\nb", "value": "1"}]},
        {"metrics": [{"name": "loss", "value": 1}]},
    ],
)
def test_what_the_protocol_does_not_allow_is_refused(
    service: InProcess, status: dict[str, object]
) -> None:
    job, client = running(service)
    assert (
        client.post(
            f"/v1/jobs/{job}/trainer-status", json={"trainerStatus": status}
        ).status_code
        == 422
    )
    assert kinds(service, TrainingReported) == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "three", ""])
def test_a_figure_that_is_no_finite_number_is_passed_over(value: str) -> None:
    body = StatusBody.model_validate(
        {"trainerStatus": {"metrics": [{"name": "loss", "value": value}]}}
    )
    assert report_of(body.trainerStatus) == {"progress": 0.0, "metrics": {}}


def test_parts_for_others_than_trainers_are_none_of_ours() -> None:
    body = StatusBody.model_validate({"dataInitializerStatus": {"x": 1}})
    assert report_of(body.trainerStatus) == {"progress": 0.0, "metrics": {}}


def test_a_trainer_that_tells_at_each_step_is_held_back(service: InProcess) -> None:
    job, client = running(service)
    path = f"/v1/jobs/{job}/trainer-status"
    body = {"trainerStatus": {"progressPercentage": 1}}
    answers = [client.post(path, json=body) for _ in range(4 * BURST)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert len(kinds(service, TrainingReported)) == len(answers) - len(refused) >= BURST


def test_each_job_has_a_burst_and_then_its_rate() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(BURST):
        throttle.check("a")
    with pytest.raises(HTTPException):
        throttle.check("a")
    throttle.check("b")
    now[0] += 1.0 / PER_S
    throttle.check("a")
    with pytest.raises(HTTPException):
        throttle.check("a")
