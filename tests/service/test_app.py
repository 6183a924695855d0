"""The HTTP API: what each route does and refuses, and that nothing is answered before
it is durable.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from coadapt.core.events import (
    CancelRequested,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    PriorityChanged,
    TrainingReported,
    TrainingResumed,
)
from coadapt.model import GradStats, Node, TrainingReport
from coadapt.model.wire import to_json
from coadapt.service.app import create_app
from coadapt.service.guard import BODY_BYTES_MAX
from tests.service.fuzz import ask
from tests.service.in_process import NODE, InProcess, until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    service = InProcess(tmp_path)
    with service.turning():
        yield service


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """One service for all tests whose requests are refused."""
    service = InProcess(tmp_path_factory.mktemp("untouched"))
    with service.turning():
        yield service
    assert kinds(service, JobSubmitted) == []


@pytest.fixture(scope="module")
def app(untouched: InProcess) -> FastAPI:
    return create_app(untouched.service)


@pytest.fixture
def client(service: InProcess) -> TestClient:
    return service.client()


def job_file(folder: Path, **changes: object) -> dict[str, object]:
    return {
        "name": "my job",
        "run": "true",
        "workdir": str(folder),
        "batch": {"initial": 8, "max": 64},
        "resources": {"gpus": "1..2"},
        **changes,
    }


def submitted(client: TestClient, service: InProcess, **changes: object) -> str:
    answer = client.post("/v1/jobs", json=job_file(service.folder, **changes))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def kinds(service: InProcess, *wanted: type) -> list[object]:
    return [event for event in service.store.events() if isinstance(event, wanted)]


EVERY_ROUTE = [
    ("GET", "/v1/cluster"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/a"),
    ("GET", "/v1/jobs/a/story"),
    ("GET", "/v1/jobs/a/changes"),
    ("GET", "/v1/jobs/a/logs"),
    ("POST", "/v1/jobs/a/cancel"),
    ("PUT", "/v1/jobs/a/priority"),
    ("POST", "/v1/jobs/a/reports"),
    ("POST", "/v1/jobs/a/rescaled"),
    ("POST", "/v1/jobs/a/trainer-status"),
    ("GET", "/v1/tenants"),
    ("PUT", "/v1/tenants/t"),
    ("POST", "/v1/token"),
    ("GET", "/v1/notices"),
    ("GET", "/v1/nodes"),
    ("POST", "/v1/nodes/n/take-back"),
    ("POST", "/v1/nodes/n/notice"),
    ("POST", "/v1/prune"),
    ("GET", "/v1/usage"),
    ("POST", "/v1/studies"),
    ("GET", "/v1/studies"),
    ("GET", "/v1/studies/s"),
    ("POST", "/v1/studies/s/stop"),
    ("POST", "/v1/studies/s/resume"),
    ("DELETE", "/v1/studies/s"),
    ("GET", "/v1/page/now"),
    ("GET", "/v1/page/jobs"),
    ("GET", "/v1/page/jobs/a"),
    ("GET", "/v1/page/jobs/a/log"),
    ("GET", "/v1/page/tenants"),
    ("GET", "/v1/page/policy"),
    ("GET", "/v1/page/stream"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/v1/no-such-route"),
]


@pytest.mark.parametrize("token", [None, "wrong", "open-sesam", "open-sesame2", ""])
def test_without_the_token_there_is_only_401(
    untouched: InProcess, app: FastAPI, token: str | None
) -> None:
    client = untouched.client(token, app)
    for method, path in EVERY_ROUTE:
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (
            401,
            "Bearer",
        ), path
        assert "bearer token" in answer.json()["error"]["message"]


def test_every_route_is_in_the_list_above(client: TestClient) -> None:
    paths = client.get("/v1/openapi.json").json()["paths"]
    routes = {
        (
            method.upper(),
            path.replace("{job}", "a")
            .replace("{tenant}", "t")
            .replace("{node}", "n")
            .replace("{study}", "s"),
        )
        for path, known in paths.items()
        for method in known
    }
    assert routes - set(EVERY_ROUTE) == {
        ("GET", "/v1/healthz"),
        ("GET", "/v1/livez"),
    }


def test_health_needs_no_token_and_tells_nothing(service: InProcess) -> None:
    for path in ("/v1/healthz", "/v1/livez"):
        assert service.client(None).get(path).json().keys() == {"status", "version"}


def test_a_submitted_job_is_journaled_before_the_answer_and_then_runs(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    assert job.startswith("my-job-")
    (event,) = kinds(service, JobSubmitted)
    assert isinstance(event, JobSubmitted)
    assert (event.job, event.spec.name, event.spec.replicas.max) == (job, "my job", 2)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    found = client.get(f"/v1/jobs/{job}").json()
    assert found["allocation"] == [["here", 1]]
    assert found["spec"]["launch"]["run"] == "true"
    assert (
        found["decisions"][0]["text"]
        == "waits: submitted, the next round will look at it"
    )
    assert [entry["id"] for entry in client.get("/v1/jobs").json()["jobs"]] == [job]


def test_a_repeat_under_the_same_key_makes_no_second_job(
    client: TestClient, service: InProcess
) -> None:
    headers = {"Idempotency-Key": "k"}
    body = job_file(service.folder)
    answers = [client.post("/v1/jobs", json=body, headers=headers) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(kinds(service, JobSubmitted)) == 1
    other = client.post("/v1/jobs", json={**body, "run": "false"}, headers=headers)
    assert other.status_code == 409
    assert submitted(client, service) != submitted(client, service)


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"resources": {"gpus": "8..2"}}, "resources.gpus", "'8..2'"),
        ({"resources": {"gpus": "5..8"}}, "resources.gpus", "'5..8'"),
        ({"nmae": "x"}, "nmae", "'x'"),
        ({"batch": {"initial": "8"}}, "batch.initial", "'8'"),
        ({"run": "python gone.py"}, "run", "'gone.py'"),
        ({"workdir": "."}, "workdir", "'.'"),
    ],
)
def test_a_wrong_job_is_refused_and_changes_nothing(
    untouched: InProcess,
    app: FastAPI,
    changes: dict[str, object],
    field: str,
    value: str,
) -> None:
    body = job_file(untouched.folder, **changes)
    answer = untouched.client(app=app).post("/v1/jobs", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["field"], error["value"]) == (422, field, value)
    assert error["message"] == f"{field}: got {value}; allowed: {error['allowed']}"
    assert kinds(untouched, JobSubmitted) == []


def test_an_impossible_request_names_both_numbers(
    client: TestClient, service: InProcess
) -> None:
    answer = client.post(
        "/v1/jobs", json=job_file(service.folder, resources={"gpus": "5..8"})
    )
    assert answer.json()["error"]["message"] == (
        "resources.gpus: got '5..8'; "
        "allowed: a minimum of at most 4, which is all that this cluster has of one "
        "type"
    )


def test_a_request_may_count_on_nodes_that_the_executor_can_get(
    client: TestClient, service: InProcess
) -> None:
    service.to_come = (Node(id="to-come", num_gpus=1, gpu_type=NODE.gpu_type),)
    body = job_file(service.folder, resources={"gpus": "5..8"})
    assert service.client().post("/v1/jobs", json=body).status_code == 202
    assert client.post("/v1/jobs", json=body).status_code == 422


def test_a_job_waits_while_the_cluster_has_no_node(
    client: TestClient, service: InProcess
) -> None:
    service.loop.post(NodeLost(at=service.clock.now(), node=NODE.id))
    until(lambda: client.get("/v1/nodes").json()["nodes"] == [])
    resources = {"gpus": "5..8", "gpu_types": [NODE.gpu_type]}
    job = submitted(client, service, resources=resources)
    until(
        lambda: (
            client.get(f"/v1/jobs/{job}").json()["explanation"]
            == "waits: needs at least 5 GPUs of type cpu, the cluster has no node: "
            "node here was lost"
        )
    )


def test_a_job_waits_while_all_nodes_of_its_type_are_away(
    client: TestClient, service: InProcess
) -> None:
    at = service.clock.now()
    service.loop.post(
        NodeJoined(at=at, node=Node(id="n2", num_gpus=2, gpu_type="a100"))
    )
    service.loop.post(NodeLost(at=at, node="n2"))
    until(lambda: kinds(service, NodeLost) != [])
    assert submitted(client, service, resources={"gpus": 3, "gpu_types": ["a100"]})
    answer = client.post(
        "/v1/jobs", json=job_file(service.folder, resources={"gpu_types": ["t4"]})
    )
    assert answer.json()["error"]["message"] == (
        "resources.gpu_types: got ['t4']; allowed: one of a100, cpu"
    )


def test_a_priority_is_journaled_and_shown(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    path = f"/v1/jobs/{job}/priority"
    answer = client.put(path, json={"priority": 7})
    assert (answer.status_code, answer.json()["priority"]) == (202, 7)
    assert client.get(f"/v1/jobs/{job}").json()["priority"] == 7
    [event] = kinds(service, PriorityChanged)
    assert isinstance(event, PriorityChanged)
    assert (event.job, event.priority) == (job, 7)
    for refused in ({"priority": 1.5}, {"priority": 10**12}, {}):
        assert client.put(path, json=refused).status_code == 422


def test_a_cancelled_job_ends(client: TestClient, service: InProcess) -> None:
    job = submitted(client, service)
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert len(kinds(service, CancelRequested)) == 1
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled")
    assert client.post(f"/v1/jobs/{job}/cancel").status_code == 202


def test_reports_reach_the_books_and_old_ones_do_not(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    report = TrainingReport(
        progress=50.0,
        progress_target=100.0,
        grad=GradStats(sqr=1.0, var=2.0),
        metrics={"loss": 0.5},
    )
    path = f"/v1/jobs/{job}/reports"
    for generation, progress in ((1, report), (0, TrainingReport(progress=99.0))):
        answer = client.post(
            path, json={"generation": generation, "report": to_json(progress)}
        )
        assert answer.status_code == 202
    rescaled = {"generation": 1, "rescale_s": 2.5}
    assert client.post(f"/v1/jobs/{job}/rescaled", json=rescaled).status_code == 202
    found = client.get(f"/v1/jobs/{job}").json()
    assert (found["progress"], found["progress_target"], found["metrics"]) == (
        50.0,
        100.0,
        {"loss": 0.5},
    )
    assert found["rescale_s"] == 2.5
    assert len(kinds(service, TrainingReported)) == 2
    assert len(kinds(service, TrainingResumed)) == 1


def test_a_pause_is_told_wherever_one_would_look(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    rescaled = {
        "generation": 1,
        "rescale_s": 0.25,
        "pause": {"agree": 0.05, "first step": 0.2},
    }
    assert client.post(f"/v1/jobs/{job}/rescaled", json=rescaled).status_code == 202
    found = client.get(f"/v1/jobs/{job}").json()
    told = "rescaled 0 -> 1 in place, pause 0.25 s (agree 50, first step 200 ms)"
    assert told in [entry["text"] for entry in found["decisions"]]
    assert told in [
        line["text"] for line in client.get(f"/v1/jobs/{job}/story").json()["lines"]
    ]
    lines = client.get("/metrics").text.splitlines()
    assert "coadapt_rescales_in_place_total 1.0" in lines
    assert "coadapt_rescale_seconds_total 0.25" in lines
    assert f'coadapt_job_pause_seconds{{job="{job}",part="first step"}} 0.2' in lines


@pytest.mark.parametrize(
    "body",
    [
        {"generation": 1},
        {"generation": -1, "report": {"progress": 1.0}},
        {"generation": "1", "report": {"progress": 1.0}},
        {"generation": 1, "report": {"progress": "much"}},
        {"generation": 1, "report": {"progress": 1.0, "unknown": 1}},
        {
            "generation": 1,
            "report": {"progress": 1.0, "grad": {"sqr": -1.0, "var": 1.0}},
        },
    ],
)
def test_a_wrong_report_is_refused(
    client: TestClient, service: InProcess, body: dict[str, object]
) -> None:
    job = submitted(client, service)
    answer = client.post(f"/v1/jobs/{job}/reports", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"]
    assert kinds(service, TrainingReported) == []


@pytest.mark.parametrize("rescale_s", [-1.0, "soon", None])
def test_a_wrong_rescale_time_is_refused(
    client: TestClient, service: InProcess, rescale_s: object
) -> None:
    job = submitted(client, service)
    answer = client.post(
        f"/v1/jobs/{job}/rescaled", json={"generation": 1, "rescale_s": rescale_s}
    )
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "rescale_s")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/jobs/gone", None),
        ("GET", "/v1/jobs/gone/story", None),
        ("GET", "/v1/jobs/gone/logs", None),
        ("POST", "/v1/jobs/gone/cancel", None),
        ("PUT", "/v1/jobs/gone/priority", {"priority": 1}),
        (
            "POST",
            "/v1/jobs/gone/reports",
            {"generation": 1, "report": {"progress": 1.0}},
        ),
        ("POST", "/v1/jobs/gone/rescaled", {"generation": 1, "rescale_s": 1.0}),
    ],
)
def test_an_unknown_job_is_404(
    untouched: InProcess, app: FastAPI, method: str, path: str, body: object
) -> None:
    answer = untouched.client(app=app).request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        (
            "job: got 'gone'; allowed: the id of a job, or its beginning: no job was "
            "submitted yet"
        ),
    )


@pytest.mark.parametrize(
    "path", ["/v1/jobs/", "/v1/jobs/a/", "/v1/tenants/", "/metrics/", "/v1/healthz/"]
)
def test_a_slash_too_many_is_404_whatever_is_asked(app: FastAPI, path: str) -> None:
    """A redirect was made of it, which failed, with 500, on a question that is not
    UTF-8.
    """
    status, answer = asyncio.run(ask(app, "GET", path, query="x=\udced"))
    assert (status, b"error" in answer) == (404, True)


def test_bodies_have_a_limit(client: TestClient, service: InProcess) -> None:
    body = job_file(service.folder, run="x" * BODY_BYTES_MAX)
    assert client.post("/v1/jobs", json=body).status_code == 413
    chunks = (b"x" * 10_000 for _ in range(BODY_BYTES_MAX // 10_000 + 1))
    answer = client.post(
        "/v1/jobs", content=chunks, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert kinds(service, JobSubmitted) == []


def test_a_story_is_told_from_the_journal(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    lines = [
        line["text"] for line in client.get(f"/v1/jobs/{job}/story").json()["lines"]
    ]
    assert lines[0] == "submitted: 1..2 GPUs, batch 8..64, contract fixed"
    assert lines[1].startswith("starting; generation 1 on 1 GPU (here: 1)")


def test_logs_of_all_generations_are_one_stream(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    folder = service.folder / "logs"
    folder.mkdir()
    (folder / f"{job}-1-0.log").write_text("first\n")
    (folder / f"{job}-2-0.log").write_text("second\n")
    path = f"/v1/jobs/{job}/logs"
    assert client.get(path).text == "first\nsecond\n"
    assert [
        client.get(path, params={"offset": offset}).text for offset in (3, 6, 9, 99)
    ] == [
        "st\nsecond\n",
        "second\n",
        "ond\n",
        "",
    ]
    assert client.get(path, params={"rank": 1}).text == ""
    assert client.get(path, params={"rank": -1}).status_code == 422


def test_a_followed_log_goes_on_until_the_job_ends(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    folder = service.folder / "logs"
    folder.mkdir()
    log = folder / f"{job}-1-0.log"
    log.write_text("one\n")
    client.post(f"/v1/jobs/{job}/cancel")
    with client.stream(
        "GET", f"/v1/jobs/{job}/logs", params={"follow": True}
    ) as answer:
        assert "".join(answer.iter_text()) == "one\n"


def test_the_cluster_is_one_picture(client: TestClient, service: InProcess) -> None:
    job = submitted(client, service)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    cluster = client.get("/v1/cluster").json()
    assert (cluster["num_gpus"], cluster["policy"]) == (4, "fifo")
    assert [node["id"] for node in cluster["nodes"]] == [NODE.id]
    assert [entry["id"] for entry in cluster["jobs"]] == [job]


def test_figures_for_prometheus(client: TestClient, service: InProcess) -> None:
    job = submitted(client, service)
    until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "running")
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'coadapt_jobs{state="running"} 1.0',
        "coadapt_gpus 4.0",
        "coadapt_gpus_used 1.0",
        f'coadapt_job_gpus{{job="{job}"}} 1.0',
        'coadapt_job_gpu_seconds_total{state="rescale"} 0.0',
        "coadapt_plan_failures_total 0.0",
        "coadapt_job_wait_seconds_count 1.0",
    ):
        assert line in lines
    names = {
        line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")
    }
    assert names >= {
        "coadapt_build_info",
        "coadapt_decision_seconds_bucket",
        "coadapt_events_waiting",
        "coadapt_last_plan_age_seconds",
        "process_resident_memory_bytes",
    }


def test_a_new_service_on_the_same_journal_knows_the_jobs(tmp_path: Path) -> None:
    first = InProcess(tmp_path)
    with first.turning():
        job = submitted(first.client(), first)
        until(
            lambda: first.client().get(f"/v1/jobs/{job}").json()["state"] == "running"
        )
    second = InProcess(tmp_path)
    with second.turning():
        found = second.client().get(f"/v1/jobs/{job}").json()
    assert (found["state"], found["generation"]) == ("running", 1)
    assert [order.generation for order in second.executor.orders] == [1]


def test_errors_and_tokens_are_in_the_openapi_document(client: TestClient) -> None:
    document = client.get("/v1/openapi.json").json()
    assert [
        scheme["scheme"]
        for scheme in document["components"]["securitySchemes"].values()
    ] == ["bearer"]
    assert document["paths"]["/metrics"]["get"]["security"] == [{"HTTPBearer": []}]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert {"400", "401", "403", "404", "409", "413", "422", "503"} <= route[
                "responses"
            ].keys()
            if path.startswith("/v1"):
                needed = (
                    None
                    if path in ("/v1/healthz", "/v1/livez")
                    else [{"HTTPBearer": []}]
                )
                assert route.get("security") == needed, (method, path)
    assert "ErrorBody" in document["components"]["schemas"]


def test_metrics_tell_how_long_requests_commits_and_events_take(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service)
    client.get(f"/v1/jobs/{job}")
    client.get("/v1/no/such/route")
    client.get(f"/v1/jobs/{job}", headers={"Authorization": "Bearer wrong"})
    figures = {
        name: float(value)
        for name, _, value in (
            line.rpartition(" ") for line in client.get("/metrics").text.splitlines()
        )
        if not name.startswith("#")
    }
    asked = "coadapt_api_request_seconds_count"
    assert (
        figures[f'{asked}{{method="GET",route="/v1/jobs/{{job}}",status="200"}}'] == 1.0
    )
    assert figures[f'{asked}{{method="POST",route="/v1/jobs",status="202"}}'] == 1.0
    assert figures[f'{asked}{{method="GET",route="none",status="404"}}'] == 1.0
    assert figures[f'{asked}{{method="GET",route="none",status="401"}}'] == 1.0
    assert figures["coadapt_event_lag_seconds_count"] >= 1.0
    assert figures["coadapt_journal_bytes"] > 0.0
