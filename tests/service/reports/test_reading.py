"""A report tells only what its own job could have measured; one that does not changes
nothing.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from coadapt.core.events import TrainingReported, TrainingResumed
from tests.service.in_process import InProcess, until

JOB = {
    "name": "a",
    "run": "true",
    "workdir": "/",
    "batch": {"initial": 8, "max": 256},
    "resources": {"gpus": "1..4"},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    service = InProcess(tmp_path_factory.mktemp("service"))
    with service.turning():
        yield service


@pytest.fixture(scope="module")
def client(service: InProcess) -> TestClient:
    return service.client()


@pytest.fixture(scope="module")
def job(client: TestClient) -> str:
    """Return a job that has started: its batch, too, changes by nothing but reports
    from then on.
    """
    job = str(client.post("/v1/jobs", json=JOB).json()["id"])
    until(lambda: client.get(f"/v1/jobs/{job}").json()["batch"] is not None)
    return job


def text(report: dict[str, object]) -> str:
    """Return a body; json.dumps writes numbers that no client of ours would."""
    return json.dumps({"generation": 1, "report": {"progress": 1.0, **report}})


LARGE = 10**400
PARAMS = {"alpha_c": 0.1, "beta_c": 0.1}


@pytest.mark.parametrize(
    ("report", "field"),
    [
        # the report that ended the scheduler for good
        (
            {
                "grad": {"sqr": 1.0, "var": 1.0},
                "batch": {"total": LARGE, "atomic": LARGE},
            },
            "report.batch.atomic",
        ),
        ({"batch": {"total": 257, "atomic": 1}}, "report.batch.total"),
        ({"batch": {"total": 8, "atomic": 257}}, "report.batch.atomic"),
        (
            {"batch": {"total": 8, "atomic": 1, "accumulation": 10**7}},
            "report.batch.accumulation",
        ),
        # the report that broke every list for good
        ({"progress": "inf", "progress_target": 1.0}, "report"),
        ({"progress": "nan"}, "report"),
        ({"progress": LARGE}, "report.progress"),
        ({"progress": -1.0}, "report"),
        ({"progress": 1e16}, "report.progress"),
        ({"progress": 10**15 + 1}, "report.progress"),
        ({"progress_target": "inf"}, "report"),
        ({"samples": 1e300}, "report.samples"),
        ({"step_time_s": 1e10}, "report.step_time_s"),
        ({"step_time_s": "-inf"}, "report"),
        (
            {"by_type": {"g": {"params": PARAMS, "num_replicas_profiled": 10**9}}},
            "report.by_type.g.num_replicas_profiled",
        ),
        (
            {"by_type": {"g": {"params": PARAMS, "num_replicas_profiled": -1}}},
            "report.by_type.g",
        ),
        (
            {"by_type": {"g": {"params": PARAMS, "max_atomic": 10**12}}},
            "report.by_type.g.max_atomic",
        ),
        ({"metrics": {"loss": "nan"}}, "report"),
        ({"metrics": {"a\u001b[2J": 1.0}}, "report.metrics, a key"),
        ({"metrics": {"x" * 201: 1.0}}, "report.metrics, a key"),
        ({"metrics": {f"m{index}": 1.0 for index in range(101)}}, "report.metrics"),
        (
            {"by_type": {f"g{index}": {"params": PARAMS} for index in range(101)}},
            "report.by_type",
        ),
        (
            {"by_type": {"g": {"params": {**PARAMS, "alpha_r": 1e12}}}},
            "report.by_type.g.params.alpha_r",
        ),
        ({"grad": {"sqr": "inf", "var": 1.0}}, "report.grad"),
        (
            {"grad": {"sqr": 1.0, "var": 1.0, "noise_scale_stderr": "nan"}},
            "report.grad.noise_scale_stderr",
        ),
        (
            {"forecast": {"remaining_steps": 1e15 + 1, "step_time_s": [1.0]}},
            "report.forecast.remaining_steps",
        ),
        (
            {"forecast": {"remaining_steps": 1.0, "step_time_s": [1e10]}},
            "report.forecast.step_time_s",
        ),
        (
            {"forecast": {"remaining_steps": 1.0, "step_time_s": ["inf"]}},
            "report.forecast",
        ),
        ({"batch": [[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]}, "report.batch"),
    ],
)
def test_what_the_job_cannot_have_measured_is_refused(
    client: TestClient,
    service: InProcess,
    job: str,
    report: dict[str, object],
    field: str,
) -> None:
    before = client.get(f"/v1/jobs/{job}").json()
    answer = client.post(
        f"/v1/jobs/{job}/reports",
        content=text(report),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["field"].startswith(field), answer.text
    after = client.get(f"/v1/jobs/{job}").json()
    figures = (
        "progress",
        "progress_target",
        "samples",
        "batch",
        "metrics",
        "step_time_s",
        "noise_scale",
    )
    assert [after[name] for name in figures] == [before[name] for name in figures]
    assert not [
        event for event in service.store.events() if isinstance(event, TrainingReported)
    ]


def test_names_of_metrics_count_over_all_reports(tmp_path: Path) -> None:
    service = InProcess(tmp_path)
    with service.turning():
        client = service.client()
        job = client.post("/v1/jobs", json=JOB).json()["id"]
        until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
        answers = []
        for part in range(3):
            report = {
                "progress": 1.0,
                "metrics": {f"m{part}-{index}": 1.0 for index in range(40)},
            }
            answers.append(
                client.post(
                    f"/v1/jobs/{job}/reports", json={"generation": 1, "report": report}
                )
            )
        assert [answer.status_code for answer in answers] == [202, 202, 422]
        assert len(client.get(f"/v1/jobs/{job}").json()["metrics"]) == 80


@pytest.mark.parametrize(
    "body",
    [
        '{"generation": 1, "generation": 2, "report": {"progress": 1.0}}',
        '{"generation": 1, "report": {"progress": NaN}}',
        '{"generation": 1, "report": {"progress": Infinity}}',
        '{"generation": 1, "report": {"progress": ' + "9" * 5_000 + "}}",
        "[" * 100_000,
        '{"generation": 1, "report": {"progress": 1.0}}'.encode("utf-16"),
        b"\xff",
    ],
)
def test_what_is_not_json_is_400(
    client: TestClient, job: str, body: str | bytes
) -> None:
    answer = client.post(
        f"/v1/jobs/{job}/reports",
        content=body,
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"generation": 1, "rescale_s": 1e10},
        {"generation": 10**10, "rescale_s": 1.0},
        {"generation": 1, "rescale_s": 1.0, "pause": {"a\u001b": 1.0}},
        {"generation": 1, "rescale_s": 1.0, "pause": {"": 1.0}},
        {"generation": 1, "rescale_s": 1.0, "pause": {"a": 1e10}},
        {
            "generation": 1,
            "rescale_s": 1.0,
            "pause": {str(part): 1.0 for part in range(21)},
        },
    ],
)
def test_a_pause_has_bounds_too(
    client: TestClient, service: InProcess, job: str, body: dict[str, object]
) -> None:
    assert client.post(f"/v1/jobs/{job}/rescaled", json=body).status_code == 422
    assert not [
        event for event in service.store.events() if isinstance(event, TrainingResumed)
    ]


def test_an_unknown_key_is_told_the_keys_of_its_own_body(
    client: TestClient, job: str
) -> None:
    answer = client.post(
        f"/v1/jobs/{job}/reports", json={"generation": 1, "report": {}, "raport": 1}
    )
    assert (
        answer.json()["error"]["allowed"]
        == "only the keys generation, report; did you mean report?"
    )
    answer = client.post("/v1/jobs", json=[])
    assert answer.json()["error"]["message"].startswith(
        "body: got []; allowed: a mapping with name, run"
    )


@pytest.mark.parametrize(
    "query",
    [
        "rank=" + "9" * 300,
        "rank=" + "9" * 5_000,
        "rank=-1",
        "offset=" + "9" * 30,
        "follow=maybe",
    ],
)
def test_questions_have_bounds_too(client: TestClient, job: str, query: str) -> None:
    answer = client.get(f"/v1/jobs/{job}/logs?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == query.partition("=")[0]
