"""Changing the replicas of living processes, with real ones: whatever happens, the same
run.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.executors.processes.control_server import ControlServer
from coadapt.model.contract_env import ENV_JOB, ENV_RESCALE_DIR, ENV_URL
from coadapt.model.rescale import (
    ORDER_FILE,
    RescaleOrder,
    begun_file,
    decided_file,
    ready_file,
)
from coadapt.model.wire import to_json
from coadapt.train.checkpoint.store import CheckpointStore
from coadapt.train.rescale.rendezvous import WAIT_S
from coadapt.train.samples import pace
from tests.train.replicas import TIMEOUT_S, Elastic
from tests.train.report.test_reporter import serving
from tests.train.rescale.test_elastic import assert_same_run
from tests.train.schedules import few_and_many, killed_at_random, random_changes
from tests.train.toy import NUM_FEATURES, Toy, run_toy

pytestmark = [pytest.mark.train, pytest.mark.processes]


def test_a_run_that_changes_in_place_is_the_undisturbed_one(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=25, pace_s=0.03)
    few_and_many(toy)


def test_groups_that_a_script_adds_while_it_trains_go_over(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=25, pace_s=0.03, optimizer="added")
    few_and_many(toy)


def test_a_declared_schedule_goes_on_through_changes_in_place(tmp_path: Path) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=8,
        pace_s=0.05,
        schedule="0:64 150:32 640:48 1500:16",
        max_atomic=40,
    )
    run = Elastic(run_toy, toy, tmp_path)
    try:
        run.start(1)
        for num_replicas in (2, 1):
            leaving = run.order(num_replicas)
            run.await_done()
            assert run.done(), run.outputs()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


def test_over_the_network_it_is_the_same(tmp_path: Path) -> None:
    """Replicas that hear of their orders from a launcher's server, and see none of its
    files.
    """
    toy = Toy(folder=str(tmp_path), num_epochs=25, pace_s=0.03)
    server = ControlServer(tmp_path / "rescale", "127.0.0.1")
    run = Elastic(
        run_toy, toy, tmp_path, **server.envs, **{ENV_RESCALE_DIR: "/nowhere"}
    )
    try:
        run.start(1)
        for num_replicas in (3, 1):
            leaving = run.order(num_replicas)
            run.await_done()
            assert run.done(), run.outputs()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        run.order(2)
        until((run.control_dir / ready_file(run.members[1])).exists)
        assert run.take_back() or run.done()
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0] * len(run.members), run.outputs()
    finally:
        run.kill()
        server.close()
    assert_same_run(toy)


def test_orders_are_taken_back_or_have_begun_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=30, pace_s=0.03)
    run = Elastic(run_toy, toy, tmp_path)
    won = []
    try:
        run.start(1)
        for seen, num_replicas in (
            (ORDER_FILE, 3),
            ("{}-1.ready", 2),
            ("{}.decided", 3),
            (ORDER_FILE, 1),
        ):
            leaving = run.order(num_replicas)
            until((run.control_dir / seen.format(run.generation)).exists)
            won.append(run.take_back())
            if not won[-1]:
                run.await_done()
                assert run.done(), run.outputs()
                assert run.join(leaving) == [0] * len(leaving), run.outputs()
        (tmp_path / "fast").touch()
        assert run.join(run.members) == [0] * len(run.members), run.outputs()
    finally:
        run.kill()
    assert (won[0], won[2]) == (True, False)
    assert_same_run(toy)


def test_an_order_that_was_taken_back_is_not_followed_though_all_are_ready(
    tmp_path: Path,
) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=80, pace_s=0.005)
    run = Elastic(run_toy, toy, tmp_path)
    try:
        run.start(1)
        (run.control_dir / decided_file(2)).touch()
        run.order(2)
        until((run.control_dir / ready_file("2-1")).exists)
        # They talk every 0.4 s at most, that is 80 steps.
        enough = num_passes(tmp_path) + 160
        until(lambda: num_passes(tmp_path) > enough or not run.alive())
        assert not (run.control_dir / begun_file(2)).exists()
        (tmp_path / "fast").touch()
        assert run.join(["1-0"]) == [0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


def num_passes(folder: Path) -> int:
    return sum(path.read_text().count("\n") for path in folder.glob("ids-*.jsonl"))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:g} s"
        time.sleep(0.001)


def test_the_first_replica_of_the_moment_reports_the_pause(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=25, pace_s=0.03)
    with serving() as scheduler:
        run = Elastic(
            run_toy, toy, tmp_path, **{ENV_URL: scheduler.url, ENV_JOB: "job-1"}
        )
        try:
            run.start(2)
            scheduler.wait("/v1/jobs/job-1/rescaled", 1)
            for num_replicas, keep in ((2, [1]), (1, [])):
                leaving = run.order(num_replicas, keep=keep)
                run.await_done()
                assert run.join(leaving) == [0] * len(leaving), run.outputs()
            bodies = scheduler.wait("/v1/jobs/job-1/rescaled", 3)
            (tmp_path / "fast").touch()
            assert run.join(run.members) == [0], run.outputs()
        finally:
            run.kill()
    assert [body["generation"] for body in bodies] == [1, 2, 3]
    assert all(0.0 < float(str(body["rescale_s"])) < WAIT_S for body in bodies[1:])
    assert "pause" not in bodies[0]
    for body in bodies[1:]:
        parts = body["pause"]
        assert isinstance(parts, dict)
        assert list(parts) == [
            "agree",
            "destroy",
            "form",
            "transfer",
            "wrap",
            "first step",
        ]
        assert sum(parts.values()) == pytest.approx(body["rescale_s"])
    assert_same_run(toy)


def test_processes_that_fetch_data_follow_the_change(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=20, fetchers=1, pace_s=0.02)
    run = Elastic(run_toy, toy, tmp_path)
    try:
        run.start(1)
        run.order(2)
        run.await_done()
        assert run.done(), run.outputs()
        assert run.join(run.members) == [0, 0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_schedule_of_changes_is_the_undisturbed_run(
    tmp_path: Path, seed: int
) -> None:
    random_changes(tmp_path, seed)


# During a change to fewer replicas, and before or after one to more.
@pytest.mark.parametrize("seed", [1, 5])
def test_a_replica_killed_around_a_change_costs_steps_only(
    tmp_path: Path, seed: int
) -> None:
    killed_at_random(tmp_path, seed)


def slow_to_write(toy: Toy) -> None:
    """`run_toy`, where a checkpoint takes long to come into its place."""
    real = CheckpointStore._put_in_place

    def slow(store: CheckpointStore, beside: Path, ending: str) -> Path:
        time.sleep(0.5)
        return real(store, beside, ending)

    CheckpointStore._put_in_place = slow  # type: ignore[method-assign]  # in a process of its own
    run_toy(toy)


@pytest.mark.parametrize("keep", [[1], [1, 0]])
def test_a_checkpoint_in_flight_is_written_before_another_replica_writes(
    tmp_path: Path, keep: list[int]
) -> None:
    """The first replica leaves, or stays but is no longer the first, while it
    writes.
    """
    toy = Toy(folder=str(tmp_path), num_epochs=20, pace_s=0.01, checkpoint_every_s=0.1)
    run = Elastic(slow_to_write, toy, tmp_path)
    try:
        run.start(2)
        while not list((tmp_path / "checkpoints").glob("*.writing")):
            assert run.alive(), run.outputs()
            time.sleep(0.01)
        leaving = run.order(len(keep), keep=keep)
        run.await_done()
        assert run.join(leaving) == [0] * len(leaving), run.outputs()
        assert run.join(run.members) == [0] * len(keep), run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)
    assert "damaged" not in run.outputs()


def taciturn(toy: Toy) -> None:
    """`run_toy`, where replicas talk as seldom as they ever do."""
    pace.SYNC_EVERY_S = 1e6
    run_toy(toy)


def test_replicas_that_talk_seldom_and_those_who_join_keep_step(tmp_path: Path) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=60, pace_s=0.005)
    run = Elastic(taciturn, toy, tmp_path)
    try:
        run.start(2)
        while (
            sum(len(path.read_text().splitlines()) for path in tmp_path.glob("ids-*"))
            < 2 * 60
        ):
            time.sleep(0.01)
        for num_replicas in (3, 2):
            leaving = run.order(num_replicas)
            run.await_done()
            assert run.join(leaving) == [0] * len(leaving), run.outputs()
        assert run.join(run.members) == [0, 0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)


class Note:
    """What one replica alone knows."""

    def __init__(self, value: str) -> None:
        self.value = value

    def state_dict(self) -> dict[str, object]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.value = str(state_dict["value"])


def train_with_a_note(folder: str) -> None:
    torch.set_num_threads(1)
    run = ct.init()
    note = Note(f"of {run.rank}")
    run.register("note", note)
    net = nn.Linear(NUM_FEATURES, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(3000, NUM_FEATURES)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
    Path(folder, f"note-{run.rank}.txt").write_text(note.value)
    run.close()


def test_what_only_the_first_replica_knows_does_not_leave_with_it(
    tmp_path: Path,
) -> None:
    run = Elastic(train_with_a_note, str(tmp_path), tmp_path)
    try:
        run.start(2)
        leaving = run.order(2, keep=[1])
        run.await_done()
        assert run.join([*leaving, *run.members]) == [0, 0, 0], run.outputs()
    finally:
        run.kill()
    assert [(tmp_path / f"note-{rank}.txt").read_text() for rank in range(2)] == [
        "of 0"
    ] * 2


def begin_unlike(folder: str) -> None:
    """Train from weights that each replica drew for itself, before the first of which
    the replicas change.
    """
    torch.set_num_threads(1)
    run = ct.init()
    torch.manual_seed(run.rank)
    net = nn.Linear(NUM_FEATURES, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(80, NUM_FEATURES)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.save(net.weight, Path(folder, f"weight-{run.rank}.pt"))
    run.close()


def test_a_change_before_the_first_step_leaves_all_with_the_same_weights(
    tmp_path: Path,
) -> None:
    run = Elastic(begin_unlike, str(tmp_path), tmp_path)
    order = RescaleOrder(generation=2, members=("1-0", "1-1"), placement=(2,))
    (run.control_dir / ORDER_FILE).write_text(json.dumps(to_json(order)))
    try:
        run.start(3)
        assert run.join(run.members) == [0, 0, 0], run.outputs()
    finally:
        run.kill()
    first, second = (torch.load(tmp_path / f"weight-{rank}.pt") for rank in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_connections_of_former_groups_are_closed(tmp_path: Path, strategy: str) -> None:
    """Else a run that changes often reaches its limit of open files."""
    toy = Toy(folder=str(tmp_path), num_epochs=1000, pace_s=0.005, strategy=strategy)
    run = Elastic(run_toy, toy, tmp_path)
    num_open = []
    try:
        run.start(1)
        for num_replicas in (2, 1, 2, 1, 2):
            run.order(num_replicas)
            run.await_done()
            assert run.done(), run.outputs()
            num_open.append(
                len(list(Path(f"/proc/{run.processes['1-0'].pid}/fd").iterdir()))
            )
    finally:
        run.kill()
    # Each group of two has over ten of them; a checkpoint in between opens one more.
    assert num_open[4] - num_open[0] < 30, num_open
