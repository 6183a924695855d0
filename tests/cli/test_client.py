"""`coadapt.Client` drives a real scheduler."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt import Client
from coadapt.client import (
    InputError,
    RefusedError,
    StillWaitingError,
    UnreachableError,
)
from tests.cli.live_cluster import LiveCluster
from tests.test_docs import snippets

pytestmark = pytest.mark.processes

REPORTS = """\
import json, os, time
from urllib.request import Request, urlopen

def report(samples, loss):
    body = {
        "generation": int(os.environ["COADAPT_GENERATION"]),
        "report": {
            "progress": samples, "samples": samples, "metrics": {"loss": loss},
        },
    }
    url = f"{os.environ['COADAPT_URL']}/v1/jobs/{os.environ['COADAPT_JOB']}/reports"
    headers = {
        "Authorization": f"Bearer {os.environ['COADAPT_TOKEN']}",
        "Content-Type": "application/json",
    }
    urlopen(Request(url, json.dumps(body).encode(), headers)).read()

report(10.0, 0.5)
time.sleep(1.5)
report(20.0, 0.25)
time.sleep(0.5)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    live = LiveCluster(tmp_path_factory.mktemp("client"))
    live.up()
    yield live
    live.close()


def job(name: str, run: str, **more: object) -> dict[str, object]:
    return {"name": name, "run": run, "batch": {"initial": 8}, **more}


def test_a_job_from_its_submission_to_its_end(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    client = Client(cluster.state)
    script = tmp_path / "reports.py"
    script.write_text(REPORTS)
    run = f"{sys.executable} {script.name}"
    first = client.submit(job("reports", run, workdir=str(tmp_path)))
    losses = [each.metrics.get("loss") for each in client.figures(first)]
    (ended,) = client.wait(first, timeout_s=60)
    assert (ended.state, ended.ended) == ("succeeded", True)
    assert losses[-2:] == [0.5, 0.25]
    assert ended.figures.samples == 20
    assert ended.gpu_s > 1.0
    texts = [event.text for event in client.events(first)]
    assert any("submitted" in text for text in texts)
    assert first in [each.id for each in client.jobs(name="reports")]


def test_the_example_of_the_docs_runs(
    cluster: LiveCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [(place, text)] = [
        each for each in snippets("python") if "from coadapt import Client" in each[1]
    ]
    (tmp_path / "reports.py").write_text(REPORTS)
    (tmp_path / "train.yaml").write_text(
        f"name: example\nrun: {sys.executable} reports.py\nbatch: {{initial: 8}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COADAPT_STATE", str(cluster.state))
    exec(compile(text, place, "exec"), {"__name__": "snippet"})
    *figures, end = capsys.readouterr().out.splitlines()
    assert figures[-1] == "20.0 {'loss': 0.25}"
    assert end.startswith("succeeded ")


def test_a_key_makes_one_job_of_two_submissions(cluster: LiveCluster) -> None:
    client = Client(cluster.state)
    first = client.submit(job("once", "true"), key="a")
    assert client.submit(job("once", "true"), key="a") == first
    assert client.submit(job("once", "true"), key="b") != first
    with pytest.raises(RefusedError, match="another job") as caught:
        client.submit(job("once", "false"), key="a")
    assert caught.value.status == 409


def test_a_file_is_read_as_the_verb_reads_it(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    client = Client(cluster.state)
    file = tmp_path / "job.yaml"
    file.write_text("name: a\nrun: sleep 60\nbatch: {initial: 8}\n")
    submitted = client.submit(file)
    with pytest.raises(StillWaitingError) as late:
        client.wait(submitted, timeout_s=0.1)
    assert late.value.waiting == [submitted]
    assert client.get(submitted).picture["name"] == "a"
    client.cancel(submitted)
    (ended,) = client.wait(submitted, timeout_s=60)
    assert ended.state == "cancelled"


def test_errors_have_types(cluster: LiveCluster, tmp_path: Path) -> None:
    client = Client(cluster.state)
    with pytest.raises(InputError, match=r"batch\.initial"):
        client.submit({"name": "a", "run": "true", "batch": {"initial": 0}})
    with pytest.raises(RefusedError) as unknown:
        client.get("nobody")
    assert unknown.value.status == 404
    with pytest.raises(UnreachableError, match="coadapt up"):
        Client(tmp_path / "nothing")


def test_the_client_loads_neither_torch_nor_a_web_server() -> None:
    code = (
        "import sys; from coadapt import Client; import coadapt.cli.jobs.submit, "
        "coadapt.service.jobfile; "
        "print([name for name in ('torch', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
