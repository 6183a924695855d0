"""The rows of docs/security.md that the API keeps: what a token is good for, and what
it is not.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.events import CancelRequested, TrainingReported
from coadapt.service.auth import Caller, Credentials
from tests.service.in_process import TOKEN, InProcess
from tests.service.test_app import EVERY_ROUTE, job_file, kinds, submitted


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    service = InProcess(tmp_path)
    with service.turning():
        yield service


@pytest.fixture
def operator(service: InProcess) -> TestClient:
    return service.client()


OWN = {
    *(("GET", path) for path in ("", "/story", "/logs")),
    *(("POST", path) for path in ("/reports", "/rescaled", "/trainer-status")),
}
REPORT = {"generation": 1, "report": {"progress": 1.0}}


def test_a_jobs_token_reads_and_reports_of_that_job_and_nothing_else(
    service: InProcess, operator: TestClient
) -> None:
    own = submitted(operator, service)
    other = submitted(operator, service)
    client = service.client(service.credentials.job_token(own))
    for method, path in EVERY_ROUTE:
        for job in (
            own,
            other,
            own[:-1],
            f"{own}x",
            f"{own}%2f..%2f{other}",
            f"{own}/",
        ):
            answer = client.request(
                method, path.replace("/jobs/a", f"/jobs/{job}"), json=REPORT
            )
            may = (
                job == own
                and "/jobs/a" in path
                and (method, path.removeprefix("/v1/jobs/a")) in OWN
            )
            assert (answer.status_code == 403) == (not may), (method, path, job)
    assert [event.job for event in kinds(service, TrainingReported)] == [own]
    assert kinds(service, CancelRequested) == []
    answer = client.post("/v1/jobs", json=job_file(service.folder))
    assert answer.status_code == 403
    assert own in answer.json()["error"]["message"]


def test_a_jobs_token_is_of_one_state_directory(
    tmp_path: Path, service: InProcess
) -> None:
    elsewhere = Credentials("open-sesame-2", "another key")
    client = service.client(elsewhere.job_token("a-12345678"))
    assert client.get("/v1/jobs/a-12345678").status_code == 401


def test_it_holds_over_restarts(tmp_path: Path) -> None:
    first = Credentials.load(tmp_path / "token", tmp_path / "key")
    again = Credentials.load(tmp_path / "token", tmp_path / "key")
    assert again.caller(f"Bearer {first.job_token('a')}".encode()) == Caller(job="a")


@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode()))
def test_no_guess_is_anybodys_token(guess: bytes) -> None:
    credentials = Credentials("secret", "key")
    assert credentials.caller(guess) is None
    assert credentials.caller(b"Bearer " + guess) is None or guess.strip() == b"secret"
    assert credentials.caller(b"Bearer job." + guess) is None


@given(st.text(min_size=1, max_size=40), st.integers(0, 200), st.integers(1, 255))
def test_a_token_with_a_byte_changed_is_nobodys(
    job: str, place: int, change: int
) -> None:
    credentials = Credentials("secret", "key")
    token = credentials.job_token(job).encode("latin-1", "replace")
    place %= len(token)
    forged = token[:place] + bytes([token[place] ^ change]) + token[place + 1 :]
    assert credentials.caller(b"Bearer " + forged) is None


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_scheme_is_read_without_regard_to_case(
    service: InProcess, scheme: str
) -> None:
    client = service.client(None)
    assert (
        client.get(
            "/v1/jobs", headers={"Authorization": f"{scheme} {TOKEN}"}
        ).status_code
        == 200
    )


@pytest.mark.parametrize(
    "value", [f"Basic {TOKEN}", TOKEN, f"Bearer{TOKEN}", "Bearer", f"Token {TOKEN}"]
)
def test_another_scheme_is_not(service: InProcess, value: str) -> None:
    assert (
        service.client(None)
        .get("/v1/jobs", headers={"Authorization": value})
        .status_code
        == 401
    )


def test_two_tokens_are_none(service: InProcess) -> None:
    headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")]
    assert service.client(None).get("/v1/jobs", headers=headers).status_code == 401
    assert (
        service.client(None).get("/v1/jobs", headers=headers[::-1]).status_code == 401
    )


def test_a_new_operators_token_ends_the_old_one_and_leaves_the_jobs_theirs(
    service: InProcess, operator: TestClient
) -> None:
    job = submitted(operator, service)
    of_job = service.client(service.credentials.job_token(job))
    assert operator.post("/v1/token").json() == {"rotated": True}
    assert operator.get("/v1/jobs").status_code == 401
    token_file = service.folder / "token"
    assert oct(token_file.stat().st_mode & 0o777) == "0o600"
    token = token_file.read_text()
    assert token != TOKEN
    assert service.client(token).get("/v1/jobs").status_code == 200
    assert of_job.get(f"/v1/jobs/{job}").status_code == 200


def test_many_new_tokens_at_once_leave_one_that_is_good(service: InProcess) -> None:
    threads = [threading.Thread(target=service.credentials.rotate) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    token = (service.folder / "token").read_text()
    assert service.credentials.caller(f"Bearer {token}".encode()) == Caller()
    assert [
        name for name in os.listdir(service.folder) if name.startswith("token")
    ] == ["token"]
