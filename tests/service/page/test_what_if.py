"""What-if questions of the page: one at a time, in another process, answered or not."""

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from coadapt.cli.forecast.page_question import CURVE_POINTS, curve
from coadapt.service.page.questions import Asked, BusyError, Questions, QuestionState
from tests.service.in_process import InProcess, until
from tests.service.page.served import service_with_questions
from tests.service.page.test_page_data import state_of, submitted

pytestmark = pytest.mark.processes

GIVEN = {"policies": ["srtf"], "nodes": [], "quotas": {}, "without": []}


def answered_by(program: str, timeout_s: float = 60.0) -> Questions:
    return Questions([sys.executable, "-c", program], time.time, timeout_s)


def ended(questions: Questions) -> Asked:
    questions.ask(GIVEN)  # type: ignore[arg-type]
    until(lambda: latest(questions).state is not QuestionState.BUSY)
    return latest(questions)


def latest(questions: Questions) -> Asked:
    found = questions.latest()
    assert found is not None
    return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcess]:
    with service_with_questions(tmp_path) as service:
        yield service


def answer_of(client: TestClient, body: object) -> dict[str, object]:
    asked = client.post("/v1/page/what-if", json=body)
    assert asked.status_code == 202, asked.text

    def last() -> dict[str, object]:
        found: dict[str, object] = client.get("/v1/page/what-if").json()["last"]
        return found

    until(lambda: last()["state"] != "busy")
    return last()


def test_the_process_is_given_the_question_and_its_answer_is_kept() -> None:
    echo = "import json, sys; print(json.dumps({'got': json.load(sys.stdin)}))"
    found = ended(answered_by(echo))
    assert found.state is QuestionState.DONE
    assert found.answer == {"got": GIVEN}


def test_the_progress_of_the_process_is_shown_until_it_answers(tmp_path: Path) -> None:
    goes_on = tmp_path / "goes_on"
    questions = answered_by(
        "import json, pathlib, time\n"
        "print(json.dumps({'progress': [3, 80]}), flush=True)\n"
        f"while not pathlib.Path({str(goes_on)!r}).exists(): time.sleep(0.05)\n"
        "print(json.dumps({'answer': 7}))\n"
    )
    questions.ask(GIVEN)  # type: ignore[arg-type]
    until(lambda: latest(questions).progress == (3, 80))
    assert latest(questions).values()["progress"] == [3, 80]
    assert latest(questions).state is QuestionState.BUSY
    goes_on.touch()
    until(lambda: latest(questions).state is QuestionState.DONE)
    assert latest(questions).answer == {"answer": 7}


def test_a_second_question_is_refused_until_the_first_one_is_stopped() -> None:
    questions = answered_by("import time; time.sleep(600)")
    questions.ask(GIVEN)  # type: ignore[arg-type]
    with pytest.raises(BusyError):
        questions.ask(GIVEN)  # type: ignore[arg-type]
    questions.stop()
    until(lambda: latest(questions).state is QuestionState.STOPPED)
    assert questions.ask(GIVEN).number == 2  # type: ignore[arg-type]
    questions.stop()


def test_stopping_ends_what_the_process_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    program = (
        "import subprocess, time, pathlib\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(started)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    questions = answered_by(program)
    questions.ask(GIVEN)  # type: ignore[arg-type]
    until(lambda: started.exists() and started.read_text() != "")
    questions.stop()
    pid = int(started.read_text())
    until(lambda: not runs(pid))


def runs(pid: int) -> bool:
    with suppress(OSError):
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    return False


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ('print(\'{"error": "no such job"}\')', "no such job"),
        ("raise ValueError('broken')", "exit code 1: ValueError: broken"),
        ("print('no JSON')", "exit code 0: it printed nothing"),
        ("import os; os.abort()", "exit code -6: it printed nothing"),
    ],
)
def test_a_process_that_fails_is_told(program: str, told: str) -> None:
    found = ended(answered_by(program))
    assert (found.state, found.error) == (QuestionState.FAILED, told)


def test_one_that_takes_too_long_is_ended() -> None:
    found = ended(answered_by("import time; time.sleep(600)", timeout_s=0.5))
    assert found.state is QuestionState.FAILED
    assert "longer than 0.5 s" in found.error


def test_the_page_is_answered_as_the_command_line_is(service: InProcess) -> None:
    client = service.client()
    first = submitted(client, service.folder, name="first", resources={"gpus": "4"})
    until(lambda: state_of(client, first) == "running")
    second = submitted(client, service.folder, name="<b>second</b>")
    begun = time.monotonic()
    body = {"policies": ["srtf", "las"], "nodes": [1], "quotas": {"vision": None}}
    found = answer_of(client, body)
    assert found["state"] == "done", found
    answer = found["answer"]
    assert isinstance(answer, dict)
    assert answer["num_jobs"] == 2
    named = [each["name"] for each in answer["scenarios"]]
    changed = "+1 node, quota vision=none"
    assert named == ["as it is", f"srtf, {changed}", f"las, {changed}"]
    as_it_is, more, _ = answer["scenarios"]
    assert as_it_is["left"][0] == [0.0, 2]
    assert as_it_is["left"][-1][1] == 0
    assert more["mean_end_s"]["median"] < as_it_is["mean_end_s"]["median"]
    rows = {job: (name, cells) for job, name, cells in answer["jobs"]}
    name, cells = rows[second]
    assert name == "<b>second</b>"
    assert cells[0]["starts_s"]["median"] > cells[1]["starts_s"]["median"]
    assert time.monotonic() - begun < 60.0
    # What was said is kept, and scored later, as that of the command line.
    lines = (service.folder / "estimates.jsonl").read_text().splitlines()
    assert {json.loads(line)[1] for line in lines} == {first, second}


def test_a_cluster_without_jobs_is_answered(service: InProcess) -> None:
    found = answer_of(service.client(), {"nodes": [2]})
    assert found["state"] == "done", found
    answer = found["answer"]
    assert isinstance(answer, dict)
    assert answer["num_jobs"] == 0


def test_a_job_that_is_not_there_is_an_error(service: InProcess) -> None:
    found = answer_of(service.client(), {"without": ["nobody"]})
    assert found["state"] == "failed"
    assert "nobody" in str(found["error"])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"policies": ["os:system"]},
        {"policies": ["nothing"]},
        {"policies": ["srtf"] * 5},
        {"nodes": [1001]},
        {"nodes": [1, 2, 3, 4, 5]},
        {"quotas": {"vision": -1}},
        {"nodes": ["4"]},
        {"submit": ["/etc/passwd"]},
    ],
)
def test_what_is_no_question_is_refused(service: InProcess, body: object) -> None:
    answer = service.client().post("/v1/page/what-if", json=body)
    assert answer.status_code == 422, answer.text
    assert service.client().get("/v1/page/what-if").json()["last"] is None


def test_it_needs_the_token_and_a_scheduler(service: InProcess, tmp_path: Path) -> None:
    stranger = service.client(None)
    for call in (stranger.get, stranger.post, stranger.delete):
        assert call("/v1/page/what-if").status_code == 401
    service.questions = None
    client = service.client()
    assert client.get("/v1/page/what-if").json()["available"] is False
    assert client.post("/v1/page/what-if", json={"nodes": [1]}).status_code == 404


def test_a_curve_has_few_points_and_keeps_both_ends() -> None:
    ends = [float(number) for number in range(1, 1001)] + [math.inf] * 3
    steps = curve(ends)
    assert len(steps) <= CURVE_POINTS
    assert steps[0] == [0.0, 1003]
    assert steps[-1] == [1000.0, 3]
    assert curve([]) == [[0.0, 0]]
    assert curve([5.0, 9.0]) == [[0.0, 2], [5.0, 1], [9.0, 0]]
