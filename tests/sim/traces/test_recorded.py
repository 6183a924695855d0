"""A live run becomes a workload, which the simulator plays again."""

import csv
import json
from pathlib import Path

import pytest

from coadapt.core.lifecycle import JobState
from coadapt.model import BatchLimits, JobSpec, ReplicaLimits
from coadapt.runtime.history import History, JobHistory, Span
from coadapt.sim.traces.recorded import recorded
from tests.cli.live_cluster import LiveCluster, run_cli


def span(start: float, end: float, count: int, state: JobState) -> Span:
    shape = (count,) if count else ()
    return Span(start=start, end=end, num_gpus=count, shape=shape, state=state)


def job(name: str, state: JobState, *spans: Span) -> JobHistory:
    return JobHistory(
        id=name,
        spec=JobSpec(
            name=name,
            batch=BatchLimits(initial=8, max_total=8),
            replicas=ReplicaLimits(min=1, max=2, requested=2),
        ),
        submitted_at=spans[0].start,
        ended_at=spans[-1].end,
        state=state,
        spans=list(spans),
    )


def test_training_time_is_written_at_the_requested_size() -> None:
    done = job(
        "done",
        JobState.SUCCEEDED,
        span(100.0, 110.0, 0, JobState.PENDING),
        span(110.0, 114.0, 1, JobState.STARTING),
        span(114.0, 134.0, 1, JobState.RUNNING),
        span(134.0, 164.0, 2, JobState.RUNNING),
    )
    failed = job("failed", JobState.FAILED, span(100.0, 120.0, 1, JobState.RUNNING))
    found = recorded(History(at=200.0, jobs={"done": done, "failed": failed}))
    assert dict(found.left_out) == {"failed": 1}
    assert found.start_s == 4.0
    [row] = found.rows
    assert (row["arrival_s"], row["gpus"], row["curve"]) == ("0.000", "2", "1:1 2:2")
    # 20 s on one GPU and 30 s on two are 40 s on two.
    assert row["length_s"] == "40.000"


@pytest.mark.processes
def test_a_live_run_is_played_again(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path)
    try:
        cluster.up(slots=2)
        jobs = [
            cluster.submit(f"job-{seconds}", run=f"sleep {seconds}")
            for seconds in (4, 6, 8)
        ]
        for name in jobs:
            cluster.wait_for(name, "succeeded")
        ended = [float(str(cluster.job(name)["age_s"])) for name in jobs]
    finally:
        cluster.close()
    table = tmp_path / "run.csv"
    shown = run_cli(
        "trace", "from-journal", str(cluster.state), "--out", str(table), "--json"
    )
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert (facts["num_jobs"], facts["left_out"]) == (3, {})
    with table.open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == jobs
    played = run_cli(
        "simulate", str(table), "--cluster", "1x2", "--policy", "fifo",
        "--rescale", str(facts["start_s"]), "--round", "1", "--json",
    )  # fmt: skip
    assert played.returncode == 0, played.stderr
    [run] = json.loads(played.stdout)["results"]
    mean_s = sum(ended) / len(ended)
    assert run["jct_mean_s"] == pytest.approx(mean_s, abs=3.0)
