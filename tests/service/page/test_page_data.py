"""The data of the page: what is wrong, GPUs by job, queue with reasons, jobs over time,
logs, tenants.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from coadapt.core.events import TrainingReported
from coadapt.model import GradStats, TrainingReport
from coadapt.runtime.ports import LogPart
from coadapt.service.page.job_log import FIRST_STEP, log_end, log_values
from coadapt.service.page.job_record import thinned
from coadapt.service.page.stream import beats
from tests.service.in_process import InProcess, until

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    service = InProcess(tmp_path)
    with service.turning():
        yield service


@pytest.fixture
def client(service: InProcess) -> TestClient:
    return service.client()


def submitted(client: TestClient, folder: Path, **changes: object) -> str:
    body = {
        "name": "my job",
        "run": "true",
        "workdir": str(folder),
        "batch": {"initial": 8, "max": 64},
        "resources": {"gpus": "2"},
        **changes,
    }
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def state_of(client: TestClient, job: str) -> str:
    return str(client.get(f"/v1/jobs/{job}").json()["state"])


def test_the_page_is_open_and_loads_nothing_from_elsewhere(service: InProcess) -> None:
    answer = service.client(None).get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "http://" not in answer.text
    assert "https://" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["app.js", "page.css", "uplot.js", "index.html"])
def test_its_files_are_open(service: InProcess, name: str) -> None:
    assert service.client(None).get(f"/page/{name}").status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "uplot.LICENSE", "..%2Froutes.py", "%2e%2e/routes.py", ""]
)
def test_no_other_file_is(service: InProcess, name: str) -> None:
    assert service.client(None).get(f"/page/{name}").status_code in (401, 404)


def test_what_it_shows_needs_the_token(service: InProcess) -> None:
    for path in ("now", "jobs", "jobs/a", "jobs/a/log", "tenants", "policy", "stream"):
        answer = service.client(None).get(f"/v1/page/{path}")
        assert answer.status_code == 401, path


def test_nothing_is_wrong_on_a_good_day(client: TestClient, service: InProcess) -> None:
    job = submitted(client, service.folder, name=MARKUP)
    until(lambda: state_of(client, job) == "running")
    time.sleep(0.6)
    found = client.get("/v1/page/now").json()
    assert found["troubles"] == []
    assert (found["num_gpus"], found["num_gpus_used"]) == (4, 2.0)
    [[node, gpu_type, gpus, _, holders, _]] = found["nodes"]
    assert (node, gpu_type, gpus) == ("here", "cpu", 4)
    assert holders == [[job, MARKUP, 2.0]]


def test_the_queue_is_by_priority_and_says_why(
    client: TestClient, service: InProcess
) -> None:
    first = submitted(client, service.folder, resources={"gpus": "4"})
    until(lambda: state_of(client, first) == "running")
    low = submitted(client, service.folder, name="low")
    high = submitted(client, service.folder, name="high", priority=5)
    until(lambda: "needs" in client.get(f"/v1/jobs/{low}").json()["explanation"])
    time.sleep(0.6)
    found = client.get("/v1/page/now").json()
    assert [row[0] for row in found["queue"]] == [high, low]
    assert found["num_waiting"] == 2
    told = {row[0]: row[7] for row in found["queue"]}
    for job in (high, low):
        assert told[job] == client.get(f"/v1/jobs/{job}").json()["explanation"]
    later = client.get("/v1/page/now", params={"queue_from": 1}).json()
    assert [row[0] for row in later["queue"]] == [low]


def test_a_job_that_can_never_start_is_wrong(
    client: TestClient, service: InProcess
) -> None:
    client.put("/v1/tenants/small", json={"quota_gpus": 3})
    first = submitted(client, service.folder, resources={"gpus": "4"})
    until(lambda: state_of(client, first) == "running")
    job = submitted(client, service.folder, tenant="small", resources={"gpus": "2"})
    client.put("/v1/tenants/small", json={"quota_gpus": 1})
    until(lambda: client.get(f"/v1/jobs/{job}").json()["reason"] == "impossible")
    time.sleep(0.6)
    [[kind, text, about, _]] = client.get("/v1/page/now").json()["troubles"]
    assert (kind, about) == ("impossible", job)
    assert "quota" in text


def test_jobs_that_wait_for_kernels_say_so(
    client: TestClient, service: InProcess
) -> None:
    service.no_plan_yet = "it compiles its kernels"
    client = service.client()
    first = submitted(client, service.folder, resources={"gpus": "4"})
    until(lambda: state_of(client, first) == "running")
    job = submitted(client, service.folder)
    told = "waits: the policy gives no plan, because it compiles its kernels"
    time.sleep(0.6)
    assert client.get(f"/v1/jobs/{job}").json()["explanation"] == told
    now = client.get("/v1/page/now").json()
    assert [row[7] for row in now["queue"]] == [told]
    assert now["troubles"] == []
    listed = client.get("/v1/page/jobs", params={"name": job}).json()["jobs"]
    assert [row["explanation"] for row in listed] == [told]
    shown = client.get(f"/v1/page/jobs/{job}").json()["job"]
    assert shown["explanation"] == told
    for path in ("/v1/jobs", "/v1/cluster"):
        found = client.get(path).json()["jobs"]
        reasons = {row["id"]: row["explanation"] for row in found}
        assert reasons[job] == told
        assert reasons[first] != told


def test_the_list_of_jobs_comes_in_pages(
    client: TestClient, service: InProcess
) -> None:
    jobs = [submitted(client, service.folder, name=f"job {i}") for i in range(5)]
    found: list[str] = []
    cursor = ""
    while True:
        page = client.get("/v1/page/jobs", params={"limit": 2, "cursor": cursor}).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if not cursor:
            break
    assert found == jobs[::-1]
    one = client.get("/v1/page/jobs", params={"name": "job 3"}).json()
    assert [job["id"] for job in one["jobs"]] == [jobs[3]]
    assert "spec" not in one["jobs"][0]
    refused = client.get("/v1/page/jobs", params={"state": "nowhere"})
    assert refused.status_code == 422
    assert "pending" in refused.json()["error"]["allowed"]


def test_a_job_has_its_batch_noise_and_loss_over_time(
    client: TestClient, service: InProcess
) -> None:
    job = submitted(client, service.folder, envs={"SECRET": "do not show"})
    until(lambda: state_of(client, job) == "running")
    generation = client.get(f"/v1/jobs/{job}").json()["generation"]
    report = TrainingReport(
        progress=100.0,
        samples=100.0,
        grad=GradStats(sqr=1.0, var=2.0),
        metrics={"loss": 0.5, "straggler_rank": -1.0},
        step_time_s=0.1,
    )
    event = TrainingReported(
        at=service.loop.now(), job=job, generation=generation, report=report
    )
    service.loop.commit(event).result()
    found = client.get(f"/v1/page/jobs/{job}").json()
    assert "do not show" not in str(found)
    [point] = found["points"]
    assert point[5:] == [16.0, {"loss": 0.5}]
    assert found["spans"][-1][2] == 2
    assert any("starting" in text for _, text in found["story"])
    assert client.get("/v1/page/jobs/none").status_code == 404


def test_a_row_of_an_earlier_version_has_no_noise(service: InProcess) -> None:
    from coadapt.runtime.job_history import points_of
    from coadapt.runtime.job_index import POINT, Row

    row = Row(job="old", seq=1, n=0, kind=POINT, at=5.0, payload=[8, 0.5, 10.0, 0.1])
    service.index.add(1, [row])
    [point] = points_of(service.index, "old")
    assert (point.total_batch, point.noise_scale, dict(point.metrics)) == (8, None, {})


def test_decisions_say_how_long_they_took(
    client: TestClient, service: InProcess
) -> None:
    submitted(client, service.folder)
    until(lambda: client.get("/v1/page/policy").json()["decisions"] != [])
    round_number, _, took_s, num_jobs, error, _ = client.get("/v1/page/policy").json()[
        "decisions"
    ][0]
    assert (round_number, num_jobs, error) == (1, 1, "")
    assert took_s >= 0.0


def test_tenants_have_what_they_hold_and_what_they_are_entitled_to(
    client: TestClient, service: InProcess
) -> None:
    client.put("/v1/tenants/a", json={"weight": 3.0})
    client.put("/v1/tenants/b", json={"weight": 1.0})
    job = submitted(client, service.folder, tenant="a", resources={"gpus": "4"})
    submitted(client, service.folder, tenant="b")
    until(lambda: state_of(client, job) == "running")
    rows = {row["id"]: row for row in client.get("/v1/page/tenants").json()["tenants"]}
    assert (rows["a"]["num_gpus"], rows["a"]["entitled_gpus"]) == (4.0, 3.0)
    assert (rows["b"]["num_gpus"], rows["b"]["entitled_gpus"]) == (0.0, 1.0)
    client.post(f"/v1/jobs/{job}/cancel")
    until(lambda: state_of(client, job) == "cancelled")
    [(tenant, number, gpu_s)] = service.index.ended_use(0.0)
    assert (tenant, number) == ("a", 1)
    assert gpu_s > 0.0


# -- logs ------------------------------------------------------------------------------


def reader(data: bytes, chunk: int = 1000):  # type: ignore[no-untyped-def]
    def read(offset: int) -> LogPart:
        part = data[offset : offset + chunk]
        return LogPart(data=part, next_offset=offset + len(part))

    return read


@pytest.mark.parametrize(
    "size", [0, 1, FIRST_STEP - 1, FIRST_STEP, FIRST_STEP + 1, 5 * FIRST_STEP + 17]
)
def test_the_end_of_a_log_is_found(size: int) -> None:
    assert log_end(reader(b"x" * size)) == size


def test_the_end_of_a_long_log_is_shown_and_all_of_it_is_searched() -> None:
    lines = [f"step {number} done" for number in range(20_000)]
    lines[7] = "NaN in Layer 3"
    data = "\n".join(lines).encode()
    tail = log_values(reader(data), "")
    assert str(tail["text"]).endswith("step 19999 done")
    assert tail["end"] == len(data)
    found = log_values(reader(data), "layer")
    assert (found["text"], found["num_found"]) == ("NaN in Layer 3", 1)
    many = log_values(reader(data), "step")
    assert many["num_found"] == 19_999
    assert str(many["text"]).splitlines()[-1] == "step 19999 done"


def test_a_log_that_is_no_text_is_shown_all_the_same() -> None:
    assert log_values(reader(b"\xff\xfe\n"), "")["text"] == "��\n"


def test_points_are_thinned_to_what_a_chart_shows() -> None:
    assert thinned([1, 2, 3], 5) == [1, 2, 3]
    kept = thinned(range(1000), 11)
    assert (kept[0], kept[-1], len(kept)) == (0, 999, 11)


# -- stream ----------------------------------------------------------------------------


async def collected(service: InProcess, number: int) -> list[str]:
    from coadapt.service.app import _page_source

    found: list[str] = []
    async for text in beats(_page_source(service.service), apart_s=0.01):
        found.append(text.split("\n")[0])
        if len(found) == number:
            break
    return found


def test_the_stream_says_that_it_lives_and_what_is_new(service: InProcess) -> None:
    import asyncio

    until(lambda: service.loop.num_events() > 0)
    quiet = asyncio.run(collected(service, 3))
    assert quiet == ["event: changed", "event: beat", "event: beat"]
