"""Retention over HTTP, and the thread that does it by itself."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.cli.up.housekeeping import Housekeeping
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.runtime.retention import Step
from coadapt.service import pruning
from tests.service.in_process import InProcess, until
from tests.service.test_app import submitted

FORGET_ALL = {"keep_days": 0.0, "logs_mib": 0}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    service = InProcess(tmp_path)
    with service.turning():
        yield service


def test_ended_jobs_are_forgotten_and_others_stay(
    service: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = service.client()
    ended = [submitted(client, service), submitted(client, service)]
    living = submitted(client, service)
    for job in [*ended, living]:
        JobDir.of(service.folder, job).generation(1).make()
        JobDir.of(service.folder, job).log("1-0").write_text("x" * 10)
    for job in ended:
        client.post(f"/v1/jobs/{job}/cancel")
        until(
            lambda job=job: client.get(f"/v1/jobs/{job}").json()["state"] == "cancelled"
        )
    pruned = client.post("/v1/prune", json={**FORGET_ALL, "dry_run": True}).json()
    assert pruned == {
        "jobs": ended,
        "logs": [living][:0],
        "num_bytes": 20,
        "num_events": 0,
        "done": True,
    }
    assert {job["id"] for job in client.get("/v1/jobs").json()["jobs"]} == {
        *ended,
        living,
    }
    monkeypatch.setattr(pruning, "ANSWER_S", 0.0)
    first = client.post("/v1/prune", json=FORGET_ALL).json()
    assert (first["jobs"], first["done"]) == (ended[:1], False)
    assert client.post("/v1/prune", json=FORGET_ALL).json()["jobs"] == ended[1:]
    assert client.post("/v1/prune", json=FORGET_ALL).json()["done"]
    page = client.get("/v1/jobs").json()
    assert [job["id"] for job in page["jobs"]] == [living]
    assert "cancelled" not in page["num_jobs"]
    assert client.get(f"/v1/jobs/{ended[0]}").status_code == 404
    assert not JobDir.of(service.folder, ended[0]).path.exists()
    assert JobDir.of(service.folder, living).log("1-0").exists()


@pytest.mark.parametrize(
    "change",
    [{"keep_days": -1.0}, {"keep_days": 1e9}, {"logs_mib": -1}, {"jobs": "all"}],
)
def test_nonsense_is_refused(service: InProcess, change: dict[str, object]) -> None:
    assert (
        service.client().post("/v1/prune", json={**FORGET_ALL, **change}).status_code
        == 422
    )


def test_what_cannot_be_deleted_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[float] = []

    def steps(at: float) -> Iterator[Step]:
        asked.append(at)
        yield Step(what="job", job="a", num_bytes=2**20)
        raise PermissionError("the disk is mounted read-only")

    housekeeping = Housekeeping(steps, lambda: 7.0)
    with caplog.at_level(logging.INFO):
        housekeeping.prune()
        housekeeping.prune()
    assert asked == [7.0, 7.0]
    assert "could not be deleted: the disk is mounted read-only" in caplog.text
    assert (
        "deleted old data: 1 ended jobs, logs of 0 more, 1.0 MiB of files, 0 "
        "events" in caplog.text
    )
    housekeeping.close()
    housekeeping.run()
