"""what-if, explain and the dry run of submit, against a real scheduler."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from coadapt.cli.forecast.explain import _change
from coadapt.cli.forecast.live_question import read_live
from coadapt.cli.forecast.words import about_deadline, clock
from coadapt.cli.state_dir import StateDir
from coadapt.sim.ahead.estimate import JobEstimate, Range
from tests.cli.live_cluster import LiveCluster, call_cli, run_cli, until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("live"))
    try:
        cluster.up(slots=2)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def jobs(cluster: LiveCluster) -> dict[str, str]:
    """Return a job that holds both slots, and one that waits for them."""
    done = cluster.submit("short", run="sleep 2")
    cluster.wait_for(done, "succeeded")
    holder = cluster.submit("holder", run="sleep 600", gpus="2")
    cluster.wait_for(holder, "running")
    waiter = cluster.submit("waiter", run="sleep 600")
    # Until it has used more, it is taken to end as soon as the short one did.
    needed = used_gpu_s(cluster, done)
    until(lambda: used_gpu_s(cluster, holder) > needed, "the holder has used more")
    return {"holder": holder, "waiter": waiter}


def used_gpu_s(cluster: LiveCluster, job: str) -> float:
    return cast(float, cluster.job(job)["attained_service_gpu_s"])


def asked(cluster: LiveCluster, *arguments: str) -> str:
    found = run_cli(*arguments, state=cluster.state)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_another_node_starts_the_waiting_job_now(
    cluster: LiveCluster, jobs: dict[str, str]
) -> None:
    before = cluster.job(jobs["waiter"])["state"]
    answer = json.loads(
        asked(cluster, "what-if", "--nodes", "+1", "--runs", "4", "--json")
    )
    now, then = answer["scenarios"]
    assert (now["scenario"], then["scenario"]) == ("as it is", "+1 node")
    assert now["jobs"][jobs["waiter"]]["starts_s"]["median"] > 1.0
    assert then["jobs"][jobs["waiter"]]["starts_s"]["median"] < 1.0
    # Nothing of it came to the scheduler.
    assert cluster.job(jobs["waiter"])["state"] == before
    assert len(cluster.client.get("/v1/nodes")["nodes"]) == 1  # type: ignore[arg-type]


def test_a_question_has_what_the_policy_saw_last(
    cluster: LiveCluster, jobs: dict[str, str]
) -> None:
    past = read_live(StateDir(cluster.state)).question.past
    assert jobs["waiter"] in [job.id for job in past[-1].jobs]
    instants = [view.at for view in past]
    assert instants == sorted(instants)
    assert len(instants) > 1


def test_without_a_job_and_its_table(
    cluster: LiveCluster, jobs: dict[str, str]
) -> None:
    answer = asked(cluster, "what-if", "--without", "holder", "--runs", "2")
    assert f"WITHOUT {jobs['holder'].upper()}" in answer.replace("\n", " ")
    assert jobs["waiter"] in answer
    assert "mean of all jobs" in answer


def test_a_dry_run_submits_nothing(
    cluster: LiveCluster, jobs: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        f"name: newbie\nrun: sleep 5\nworkdir: {tmp_path}\nbatch: {{initial: 8}}\n"
    )
    answer = asked(cluster, "submit", "--dry-run", str(file))
    assert answer.startswith("new: newbie: starts in about ")
    assert "ends in about" in answer
    assert "newbie" not in asked(cluster, "ls", "--all")
    wide = tmp_path / "wide.yaml"
    wide.write_text(file.read_text() + "resources: {gpus: 64}\n")
    refused = run_cli("submit", "--dry-run", str(wide), state=cluster.state)
    assert refused.returncode == 2
    assert "64" in refused.stderr


def test_explain_says_why_when_and_what_would_help(
    cluster: LiveCluster, jobs: dict[str, str]
) -> None:
    answer = asked(cluster, "explain", "waiter", "--runs", "4")
    why = cluster.job(jobs["waiter"])["explanation"]
    assert answer.splitlines()[0] == f"{jobs['waiter']}: {why}"
    assert "It starts in about " in answer
    assert "4 GPUs more: starts in 0 s instead of " in answer
    assert "the highest priority: " in answer
    running = asked(cluster, "explain", "holder", "--runs", "2")
    assert "It runs on 2 GPUs, ends in about " in running


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["what-if"], "--policy, --nodes"),
        (["what-if", "--quota", "x"], "TENANT=GPUS"),
        (["what-if", "--without", "nobody"], "live job"),
        (["what-if", "--nodes", "-1"], "fewer than"),
        (["what-if", "--nodes", "+1,x"], "such as"),
        (["what-if", "--policy", "nothing"], "policy"),
        (["explain", "nobody"], "live job"),
    ],
)
def test_bad_input_is_one_line(
    cluster: LiveCluster, jobs: dict[str, str], arguments: list[str], named: str
) -> None:
    found = call_cli(*arguments, state=cluster.state)
    assert found.returncode == 2, found.stderr
    assert named in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("median", "low", "high", "due_s", "answer"),
    [
        (600.0, 500.0, 700.0, -120.0, "passed 2 min ago."),
        (600.0, 500.0, 700.0, 300.0, "will be missed, by about 5 min."),
        (math.inf, math.inf, math.inf, 300.0, "will be missed, by more than 14 days."),
        (600.0, 500.0, 700.0, 650.0, "may be missed."),
        (600.0, 500.0, 700.0, 800.0, "will be kept."),
    ],
)
def test_explain_says_what_becomes_of_a_deadline(
    median: float, low: float, high: float, due_s: float, answer: str
) -> None:
    starts = Range(median=0.0, low=0.0, high=0.0)
    ends = Range(median=median, low=low, high=high)
    found = JobEstimate(starts=starts, ends=ends, sizes=(1,))
    at = time.time()
    due_at = at + due_s
    expected = f"Its deadline, {clock(due_at)}, {answer}"
    assert about_deadline(found, at, due_at) == expected


def test_a_change_that_rounds_to_nothing_is_no_difference() -> None:
    # 31 s less, and both are told as 6 min.
    assert _change("starts", 386.0, 355.0) == ""
    assert _change("ends", 400.0, 330.0) == "ends in 6 min instead of 7 min"


def test_the_beginning_of_two_ids_names_both(cluster: LiveCluster) -> None:
    twins = [cluster.submit(f"twin{number}", run="sleep 600") for number in (1, 2)]
    answer = run_cli("explain", "twin", state=cluster.state)
    assert answer.returncode == 2
    assert f"the id of a live job, or its beginning: {twins[0]}, {twins[1]}" in (
        answer.stderr
    )


def test_what_was_said_of_live_jobs_is_kept(
    cluster: LiveCluster, jobs: dict[str, str]
) -> None:
    path = cluster.state / "estimates.jsonl"
    path.unlink(missing_ok=True)
    # The intervals of few futures are too narrow.
    asked(cluster, "explain", "waiter", "--runs", "2")
    assert not path.exists()
    asked(cluster, "explain", "waiter", "--runs", "10")
    new = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(row[1], row[2]) for row in new} >= {(jobs["waiter"], "starts")}
    answer = path.read_text()
    path.write_text(answer + "no estimate\n")
    asked(cluster, "explain", "waiter", "--runs", "10")
    assert "no estimate" not in path.read_text()
