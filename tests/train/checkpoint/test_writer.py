"""Checkpoints written beside training: the moment of the call is saved, and no kill
costs the last one.
"""

import threading
import time
from pathlib import Path

import pytest
import torch

import coadapt.train as ct
from coadapt.train.checkpoint.store import CheckpointStore, State, read_checkpoint
from coadapt.train.checkpoint.writer import BackgroundWriter, copy_to_host
from tests.train.replicas import start

pytestmark = pytest.mark.train

NUM_KILLS = 4
TIMEOUT_S = 60.0


class SlowStore(CheckpointStore):
    """Writes when it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()

    def save(self, state: State) -> Path:
        assert self.gate.wait(TIMEOUT_S)
        return super().save(state)


def test_what_is_saved_is_the_moment_of_the_call(tmp_path: Path) -> None:
    store = SlowStore(tmp_path)
    writer = BackgroundWriter(store)
    value = torch.ones(3)
    writer.write({"value": value, "nested": [{"again": (value, 1)}]})
    assert writer.busy
    value.fill_(7.0)
    store.gate.set()
    writer.wait()
    assert not writer.busy
    path = store.newest()
    assert path is not None
    state = read_checkpoint(path)
    assert state == {
        "value": state["value"],
        "nested": [{"again": (state["nested"][0]["again"][0], 1)}],
    }
    assert (
        state["value"].tolist() == state["nested"][0]["again"][0].tolist() == [1.0] * 3
    )


def test_writes_keep_their_order_and_a_stop_waits_for_the_disk(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    writer = BackgroundWriter(store)
    for value in range(3):
        writer.write({"value": value})
    writer.write_now({"value": 3})
    assert not writer.busy
    path = store.newest()
    assert path is not None
    assert read_checkpoint(path) == {"value": 3}
    assert path.name.startswith("checkpoint-00000004")


def test_a_last_write_that_failed_is_raised_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    writer = BackgroundWriter(CheckpointStore(tmp_path / "file"))
    writer.write({"value": 1})
    with pytest.raises(OSError, match="file"):
        writer.wait()
    writer.wait()


class FullDisk(CheckpointStore):
    """Has no room for the first write."""

    full = True

    def save(self, state: State) -> Path:
        if self.full:
            self.full = False
            raise OSError("no space left on device")
        return super().save(state)


def test_a_stop_saves_although_the_write_before_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = BackgroundWriter(FullDisk(tmp_path))
    writer.write({"value": 1})
    writer.write_now({"value": 2})
    newest = CheckpointStore(tmp_path).newest()
    assert newest is not None
    assert read_checkpoint(newest) == {"value": 2}
    (message,) = caplog.messages
    assert message.startswith("a checkpoint was not written: no space left on device;")
    writer.wait()


def test_copies_share_what_was_shared() -> None:
    tensor = torch.arange(4.0, requires_grad=True)
    copy = copy_to_host(
        {"a": tensor, "b": [tensor], "part": tensor[:2], "empty": torch.empty(0)}
    )
    assert copy["a"] is copy["b"][0]  # type: ignore[index]
    assert copy["part"].tolist() == [0.0, 1.0]  # type: ignore[attr-defined]
    assert not copy["a"].requires_grad  # type: ignore[attr-defined]


def test_the_end_of_a_run_waits_for_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CheckpointStore.save
    monkeypatch.setattr(
        CheckpointStore,
        "save",
        lambda self, state: time.sleep(0.3) or real(self, state),
    )
    run = ct.init(checkpoint_dir=tmp_path)
    model = torch.nn.Linear(1, 1)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(torch.utils.data.TensorDataset(torch.ones(4, 1)), batch_size=4)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).mean().backward()
            optimizer.step()
    run.close()
    assert CheckpointStore(tmp_path).newest() is not None


def save_for_ever(folder: str) -> None:
    """Write checkpoints of 16 MB whose every number is their count; note each that is
    surely on disk.
    """
    value = torch.zeros(4_000_000)
    store = CheckpointStore(Path(folder))
    writer = BackgroundWriter(store)
    newest = store.newest()
    if newest is not None:
        value.copy_(read_checkpoint(newest)["value"])
    while True:
        value += 1.0
        writer.write({"value": value})
        value += 0.0  # training goes on while it is written
        writer.wait()
        Path(folder, "written").write_text(str(int(value[0])))


@pytest.mark.processes
def test_a_kill_while_a_write_is_in_flight_never_costs_the_last_good_one(
    tmp_path: Path,
) -> None:
    store = CheckpointStore(tmp_path)
    for kill in range(NUM_KILLS):
        process = start(save_for_ever, str(tmp_path), {}, tmp_path / "output.txt")
        began_at = time.monotonic()
        counted = 0
        while (
            counted <= 1 + kill % 3
        ):  # the second, third or fourth write of this process
            assert time.monotonic() < began_at + TIMEOUT_S, (
                tmp_path / "output.txt"
            ).read_text()
            counted += _wait_for_write(tmp_path, began_at + TIMEOUT_S)
        process.kill()
        process.join()
        surely = int((tmp_path / "written").read_text())
        newest = store.newest()
        assert newest is not None
        value = read_checkpoint(newest)["value"]
        assert value.min() == value.max() >= surely


def _wait_for_write(folder: Path, until: float) -> int:
    """Return 1 in the middle of a write that begins after this call."""
    seen = set(folder.glob("*.writing"))
    while time.monotonic() < until:
        found = set(folder.glob("*.writing")) - seen
        if any(path.exists() and path.stat().st_size > 1_000_000 for path in found):
            return 1
        seen &= set(folder.glob("*.writing"))
        time.sleep(0.0005)
    return 0
