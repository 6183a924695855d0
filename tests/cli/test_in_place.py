"""Real training under a real scheduler changes its replicas in place, and kill -9 in
the middle of it.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live_cluster import LiveCluster, run_cli, until
from tests.train.rescale.test_elastic import assert_same_parameters, assert_same_run
from tests.train.toy import Toy

pytestmark = [pytest.mark.train, pytest.mark.processes]

POLICY = "tests.cli.by_file:ByFile"


class Training:
    """One job of the toy on a cluster whose policy does as the test says."""

    def __init__(self, folder: Path, toy: Toy) -> None:
        self.folder = folder
        self.cluster = LiveCluster(folder, policy=POLICY)
        self.cluster.up()
        self.toy = toy
        obey = f"from tests.cli.joiners import obey; obey('{folder}')"
        script = f"{obey}; from tests.train.toy import Toy, run_toy; run_toy({toy!r})"
        job = {
            "name": "toy",
            "run": f'{sys.executable} -c "{script}"',
            "workdir": str(Path.cwd()),
            "batch": {"initial": toy.batch_size},
            "resources": {"gpus": "1..4"},
        }
        self.job = str(self.cluster.client.post("/v1/jobs", job)["id"])
        until(lambda: any(self.folder.glob("ids-*")), "training begins")

    @property
    def generations(self) -> Path:
        return self.cluster.state / "jobs" / self.job / "generations"

    @property
    def records(self) -> Path:
        return self.cluster.state / "runs" / self.job / "generations"

    def give(self, num_gpus: int) -> None:
        (self.folder / "gpus").write_text(str(num_gpus))

    def await_changes(self, count: int) -> None:
        until(
            lambda: self.cluster.job(self.job)["num_in_place"] == count,
            f"{count} changes: {self.told()}",
        )

    def pid(self, member: str) -> int:
        """Return the process that was started under a name, once it is there."""
        until(lambda: self._find(member) is not None, f"{member} lives")
        found = self._find(member)
        assert found is not None
        return found

    def _find(self, member: str) -> int | None:
        generation, rank = member.split("-")
        marks = {
            f"COADAPT_GENERATION={generation}",
            f"RANK={rank}",
            f"COADAPT_JOB={self.job}",
        }
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environ = (entry / "environ").read_bytes().decode().split("\0")
                command = (entry / "cmdline").read_bytes()
            except (OSError, UnicodeDecodeError):
                continue
            if (
                marks <= set(environ)
                and b"run_toy" in command
                and b"bash" not in command
            ):
                return int(entry.name)
        return None

    def finish(self) -> None:
        (self.folder / "fast").touch()
        assert (
            self.cluster.wait_for(self.job, "succeeded", "failed")["state"]
            == "succeeded"
        ), self.told()

    def told(self) -> str:
        lines = self.cluster.client.get(f"/v1/jobs/{self.job}/story")["lines"]
        return "\n".join(str(line) for line in lines)  # type: ignore[union-attr]


def test_an_operator_may_have_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that cannot change in place shows what the scheduler ordered, and starts
    anew both times.
    """
    monkeypatch.setenv("COADAPT_TEST_GPUS", str(tmp_path / "gpus"))
    (tmp_path / "gpus").write_text("1")
    cluster = LiveCluster(tmp_path, policy=POLICY)
    try:
        cluster.up(in_place=False)
        job = cluster.submit(
            "sleeper",
            "trap 'exit 75' TERM; while true; do sleep 0.05; done",
            gpus="1..4",
        )
        cluster.wait_for(job, "running")
        for generation, orders in ((2, ["stopping"]), (3, ["stopping", "rescaling"])):
            (tmp_path / "gpus").write_text(str(generation))
            until(
                lambda count=generation: cluster.job(job)["generation"] == count,
                "it is changed",
            )  # type: ignore[misc]
            cluster.wait_for(job, "running")
            lines = cluster.client.get(f"/v1/jobs/{job}/story")["lines"]
            told = [str(line["text"]).split("; ")[0] for line in lines]  # type: ignore[index, union-attr]
            assert [
                order for order in told if order in ("stopping", "rescaling")
            ] == orders
            cluster.kill()
            cluster.up()
    finally:
        cluster.close()


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("COADAPT_TEST_GPUS", str(tmp_path / "gpus"))
    (tmp_path / "gpus").write_text("1")
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=60,
        pace_s=0.4,
        checkpoint_every_s=0.5,
        double=True,
    )
    training = Training(tmp_path, toy)
    yield training
    training.cluster.close()


def test_a_job_grows_and_shrinks_in_place_even_if_the_scheduler_dies_meanwhile(
    training: Training,
) -> None:
    first = training.pid("1-0")
    training.give(2)
    training.await_changes(1)
    training.give(3)
    until(
        lambda: training.cluster.job(training.job)["state"] == "rescaling",
        "the change is ordered",
    )
    training.cluster.kill()
    training.cluster.up()
    training.await_changes(2)
    training.give(1)
    training.await_changes(3)
    assert training.pid("1-0") == first
    described = run_cli("describe", training.job, state=training.cluster.state).stdout
    assert "3 of them in place" in described
    assert re.search(
        r"Last pause  +\d+ ms, no step lost \(.*first step \d+ ms", described
    )
    assert "rescaled 3 -> 1 in place, pause 0." in described
    training.finish()
    assert_same_run(training.toy)
    assert training.cluster.job(training.job)["generation"] == 4
    story = run_cli("story", training.job, state=training.cluster.state).stdout
    for change in ("1 -> 2", "2 -> 3", "3 -> 1"):
        assert story.count(f"rescaled {change} in place, pause ") == 1, story
    assert "ended: succeeded" in story
    assert story.count("replicas of generation") == 1


def test_a_replica_killed_in_a_growth_or_soon_after_it_costs_steps_only(
    training: Training,
) -> None:
    training.give(2)
    until(
        (training.generations / "1" / "rescale" / "2-1.ready").exists,
        "the change begins",
    )
    os.kill(training.pid("1-0"), signal.SIGKILL)
    # It goes back to the one GPU on which it trained, and grows once more from there.
    training.await_changes(1)
    os.kill(training.pid("4-1"), signal.SIGKILL)
    until(
        lambda: training.cluster.job(training.job)["generation"] == 5,
        "the job starts once more",
    )
    training.cluster.wait_for(training.job, "running")
    training.finish()
    assert_same_parameters(training.toy)
    for generation in (2, 4):
        assert f"replicas of generation {generation} ended: lost" in training.told()
    assert "are set aside for this job, they failed 2 times" in training.told()


def test_another_plan_or_one_that_fails_to_join_costs_the_training_nothing(
    training: Training,
) -> None:
    first = training.pid("1-0")
    (training.folder / "slow").touch()
    training.give(3)
    until((training.records / "2" / "order.json").exists, "others prepare to join")
    training.give(2)
    until(
        lambda: "the change of generation 2 was taken back in time" in training.told(),
        "it is taken back",
    )
    (training.folder / "slow").unlink()
    training.await_changes(1)
    (training.folder / "broken").touch()
    training.give(3)
    until(
        lambda: (
            "which was to join, exited with code 1: RuntimeError: boom"
            in training.told()
        ),
        "one fails",
    )
    assert training.pid("1-0") == first
    training.give(2)
    training.finish()
    assert_same_run(training.toy)
    told = training.told()
    assert (
        "trains on with 2 GPUs, a later round may try again: the change to 3 failed: "
        "replica 2" in told
    )
    assert "rescaled 1 -> 2 in place" in told
    assert training.cluster.job(training.job)["num_rescales"] == 1
    assert training.cluster.job(training.job)["num_failures"] == 0


def test_another_plan_that_comes_too_late_follows_after_the_change(
    training: Training,
) -> None:
    training.give(2)
    board = training.generations / "1" / "rescale"
    until((board / "2-1.ready").exists, "the change may begin")
    joiner = training.pid("2-1")
    os.kill(joiner, signal.SIGSTOP)
    until((board / "2.begun").exists, "the change begins")
    training.give(3)
    until((training.records / "2" / "retract").exists, "the order is to be taken back")
    os.kill(joiner, signal.SIGCONT)
    training.await_changes(2)
    training.finish()
    assert_same_run(training.toy)
    told = training.told()
    assert "rescaled 1 -> 2 in place" in told
    assert "rescaled 2 -> 3 in place" in told
    assert "taken back" not in told
