"""Kill -9 of the scheduler, of launchers and of replicas: no job is lost, none lives
twice.
"""

import signal
from collections.abc import Iterator

import pytest

from coadapt.executors.processes.job_processes import marked_processes
from tests.cli.live_cluster import LiveCluster, run_cli, until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """One scheduler's life for all tests here: each leaves it up, and no job behind."""
    cluster = LiveCluster(tmp_path_factory.mktemp("cluster"))
    cluster.up()
    yield cluster
    cluster.close()


def test_a_killed_scheduler_comes_back_to_its_jobs(cluster: LiveCluster) -> None:
    """Of five jobs one ends while no scheduler lives, three run through, and one waits
    all the time.
    """
    gate = cluster.folder / "gate"
    long_gate = cluster.folder / "long-gate"
    short = cluster.submit("short", TARGET=1, GATE=str(gate))
    long = [
        cluster.submit(f"long-{index}", TARGET=1, GATE=str(long_gate))
        for index in range(3)
    ]
    waiting = cluster.submit(
        "waiting", 'echo $RANK >> "$COADAPT_CHECKPOINT_DIR/trace"', gpus="4"
    )
    for job in (short, *long):
        cluster.wait_for(job, "running")
    cluster.kill()
    gate.touch()
    until(lambda: len(cluster.trace(short)) == 2, "the short job ends unseen")
    cluster.up()
    cluster.kill()
    cluster.up()
    assert cluster.wait_for(short, "succeeded")["generation"] == 1
    for job in long:
        found = cluster.job(job)
        assert (found["state"], found["generation"]) == ("running", 1)
    assert cluster.job(waiting)["state"] == "pending"
    long_gate.touch()
    for job in (*long, waiting):
        assert cluster.wait_for(job, "succeeded", "failed")["state"] == "succeeded"
    assert [entry["id"] for entry in cluster.client.jobs()][-5:] == [
        short,
        *long,
        waiting,
    ]
    assert sorted(cluster.trace(waiting)) == ["0", "1", "2", "3"]
    for job in (short, *long):
        starts, ends = cluster.trace(job)
        assert starts == "generation 1 starts at 0"
        assert ends.startswith("generation 1 ends at ")


@pytest.mark.parametrize("launcher", [False, True], ids=["replica", "launcher"])
def test_a_killed_job_goes_on_from_its_checkpoint(
    cluster: LiveCluster, launcher: bool
) -> None:
    job = cluster.submit("counter", TARGET=30)
    until(lambda: cluster.count(job) >= 5, "the job is under way")
    cluster.kill_job(job, launcher=launcher)
    until(lambda: len(cluster.trace(job)) >= 2, "the job starts again")
    cluster.wait_for(job, "succeeded")
    first, second, last = cluster.trace(job)
    assert first == "generation 1 starts at 0"
    assert int(second.removeprefix("generation 2 starts at ")) >= 5
    assert last == "generation 2 ends at 30"


def test_scheduler_launcher_and_replica_killed_at_once(cluster: LiveCluster) -> None:
    job = cluster.submit("counter", TARGET=30)
    until(lambda: cluster.count(job) >= 5, "the job is under way")
    cluster.kill()
    cluster.kill_job(job, launcher=True)
    cluster.kill_job(job, launcher=False)
    cluster.up()
    cluster.wait_for(job, "succeeded")
    trace = cluster.trace(job)
    assert [line.split(" at ")[0] for line in trace] == [
        "generation 1 starts",
        "generation 2 starts",
        "generation 2 ends",
    ]


def test_a_job_that_never_gets_anywhere_is_given_up(cluster: LiveCluster) -> None:
    job = cluster.submit("hopeless", run="kill -9 $$", max_failures=1)
    assert cluster.wait_for(job, "failed", "succeeded")["state"] == "failed"
    assert cluster.job(job)["num_failures"] == 2


def test_ctrl_c_ends_the_scheduler_and_leaves_its_jobs(cluster: LiveCluster) -> None:
    job = cluster.submit("counter", TARGET=30)
    cluster.wait_for(job, "running")
    assert cluster.kill(signal.SIGINT) == 0
    log = (cluster.folder / "up.log").read_text()
    assert "Traceback" not in log
    assert "Ctrl-C stops the scheduler; its jobs keep running" in log
    cluster.up()
    cluster.wait_for(job, "succeeded")
    assert cluster.trace(job) == ["generation 1 starts at 0", "generation 1 ends at 30"]


def test_jobs_move_onto_the_slots_that_are_left(cluster: LiveCluster) -> None:
    gate = cluster.folder / "moving-gate"
    jobs = [
        cluster.submit(f"moving-{index}", TARGET=1, GATE=str(gate))
        for index in range(4)
    ]
    for job in jobs:
        cluster.wait_for(job, "running")
    cluster.kill()
    cluster.up(slots=2, round_s=2)
    until(
        lambda: cluster.client.get("/v1/cluster")["num_gpus"] == 2,
        "the node is smaller",
    )
    for job in jobs[:2]:
        until(lambda: len(cluster.trace(job)) == 2, "the job starts again")  # noqa: B023 - called at once
    for job in jobs[2:]:
        assert cluster.wait_for(job, "pending")["num_gpus"] == 0
    gate.touch()
    for job in jobs:
        cluster.wait_for(job, "succeeded")
    assert not any("two lives" in line for job in jobs for line in cluster.trace(job))
    cluster.kill()
    cluster.up()


def test_a_lost_journal_beside_living_jobs_is_refused(cluster: LiveCluster) -> None:
    job = cluster.submit("forgotten", TARGET=1, GATE="/no/such/gate")
    cluster.wait_for(job, "running")
    cluster.kill()
    for path in cluster.state.glob("journal.sqlite*"):
        path.unlink()
    done = run_cli("up", "--slots", "4", "--policy", "fifo", state=cluster.state)
    assert done.returncode == 1
    line = (
        f"error: the journal is empty, but 1 of its jobs run here ({job}): bring "
        f"back the file from a backup"
    )
    assert done.stderr.startswith(line)
    assert marked_processes(cluster.checkpoints(job)) != []
    done = run_cli("doctor", "--end-jobs", state=cluster.state)
    assert f"{job} was ended; its checkpoints and logs stay" in done.stdout
    assert marked_processes(cluster.checkpoints(job)) == []
    cluster.up()
    assert cluster.client.jobs() == []
