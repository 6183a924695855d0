"""One run of a tracker over crashes and changes of replicas; each step of it once."""

import atexit
import json
import os
import re
import runpy
import signal
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.train.exits.stop import register_end
from coadapt.train.integrations import mlflow, tensorboard, wandb
from coadapt.train.integrations.tracker import Tracker
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_STEPS = 24
# The skinny MLflow comes without its database.
FILE_STORE = ("MLFLOW_ALLOW_FILE_STORE", "true")


def make_tracker(kind: str, run: ct.Run, folder: Path) -> Tracker:
    if kind == "tensorboard":
        return tensorboard.track(run, folder / "events")
    if kind == "mlflow":
        return mlflow.track(run, "experiment", tracking_uri=f"file://{folder}/mlflow")
    return wandb.track(run, project="project", mode="offline", dir=str(folder))


def as_script(job: tuple[str, str, int, int]) -> None:
    """Run `train` as the interpreter runs a script, exit handlers included."""
    atexit._clear()  # what the server of these processes registered
    register_end()
    try:
        train(job)
    finally:
        atexit._run_exitfuncs()


def train(job: tuple[str, str, int, int]) -> None:
    """Train NUM_STEPS steps; get a signal (0: none) in step `harm_at`."""
    kind, folder, harm_at, number = job
    torch.set_num_threads(1)
    run = ct.init(checkpoint_dir=Path(folder) / "checkpoints", checkpoint_every_s=0.001)
    tracker = make_tracker(kind, run, Path(folder))
    net = nn.Linear(1, 1)
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    loader = run.loader(TensorDataset(torch.ones(NUM_STEPS * 4, 1)), batch_size=8)
    for epoch in run.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            tracker.log(loss=loss)
            if number and run.progress.step == harm_at:
                os.kill(os.getpid(), number)
        tracker.log(epoch=epoch)


def read(kind: str, folder: Path) -> dict[str, list[int]]:
    """Return the steps of each series, as the tracker shows them, over all of its
    runs.
    """
    if kind == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import (
            EventAccumulator,
        )

        events = EventAccumulator(str(folder / "events"))
        events.Reload()
        return {
            tag: [item.step for item in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
    if kind == "mlflow":
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=f"file://{folder}/mlflow")
        experiment = client.get_experiment_by_name("experiment")
        assert experiment is not None
        (found,) = client.search_runs([experiment.experiment_id])
        assert found.info.status == "FINISHED"
        names = found.data.metrics
        return {
            name: [
                item.step for item in client.get_metric_history(found.info.run_id, name)
            ]
            for name in names
        }
    return read_wandb(folder)


def read_wandb(folder: Path) -> dict[str, list[int]]:
    from wandb.proto.wandb_internal_pb2 import Record

    ids = set()
    rows = []
    for path in sorted(
        (folder / "wandb").glob("offline-run-*/*.wandb"), key=os.path.getmtime
    ):
        ids.add(path.stem)
        for data in leveldb_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append(
                    {
                        item.key or "/".join(item.nested_key): item.value_json
                        for item in items
                    }
                )
    assert len(ids) == 1, ids
    return {
        name: [int(json.loads(row["step"])) for row in rows if name in row]
        for name in ("loss", "epoch")
    } | {
        "loss_by_progress": [
            round(json.loads(row["progress"])) for row in rows if "loss" in row
        ]
    }


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log as LevelDB writes it, after the 7 bytes by which wandb
    tells its own.
    """
    place = 7
    record = b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, size, part = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if part in (1, 4):  # a whole record, or the last part of one
            yield record
            record = b""


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("tensorboard", signal.SIGKILL),
        pytest.param("mlflow", signal.SIGKILL, marks=pytest.mark.slow),
        (
            "wandb",
            signal.SIGTERM,
        ),  # killed, it would lose what its service has not written yet
    ],
)
def test_a_run_that_ended_and_resumed_from_an_older_checkpoint(
    kind: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    monkeypatch.setenv(*FILE_STORE)
    jobs = [(kind, str(tmp_path), 15, sent) for sent in (number, 0)]
    ended = EXIT_STOPPED if number == signal.SIGTERM else -number
    assert ended in run_replicas(as_script, jobs, tmp_path, dict([FILE_STORE]))
    *_, newest = sorted((tmp_path / "checkpoints").glob("checkpoint-*.pt"))
    newest.unlink()
    last = [(kind, str(tmp_path), 0, 0)]
    assert run_replicas(as_script, last, tmp_path, dict([FILE_STORE])) == [0]
    series = read(kind, tmp_path)
    # The first step of the loop's body is step 0: nothing is done yet. The killed
    # replica wrote step 15.
    assert series["loss"] == list(range(NUM_STEPS))
    assert series["epoch"] == [NUM_STEPS // 2, NUM_STEPS]
    assert series["loss_by_progress"] == [8 * step for step in range(NUM_STEPS)]


def test_a_tracker_without_checkpoints_writes_from_the_first_replica_only(
    tmp_path: Path,
) -> None:
    class Memory:
        name = "memory"

        def __init__(self) -> None:
            self.rows: list[tuple[int, dict[str, float]]] = []

        def open(self, run_id: str) -> str:
            return run_id or "run"

        def write(self, step: int, progress: float, figures: object) -> None:
            assert isinstance(figures, dict)
            self.rows.append((step, figures))

        def close(self) -> None:
            self.rows.append((-1, {}))

    run = ct.init()
    memory = Memory()
    tracker = Tracker(run, memory)
    tracker.log(loss=torch.tensor(0.5), accuracy=0.25)
    tracker.log(other=1.0)
    tracker.close()
    assert memory.rows == [
        (0, {"loss": 0.5, "accuracy": 0.25}),
        (0, {"other": 1.0}),
        (-1, {}),
    ]


def test_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    script = Path(__file__).parents[3] / "examples" / "integrations" / "tracked_loop.py"
    monkeypatch.setattr(
        sys,
        "argv",
        [str(script), "--folder", str(tmp_path / "events"), "--epochs", "2"],
    )
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(r"^epoch 1: loss 0\.0\d+$", capsys.readouterr().out, re.MULTILINE)
    assert read("tensorboard", tmp_path)["loss"] == list(range(100))


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_a_run_of_wandb_that_the_script_began_itself_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb#9449: its init returned the script's run, and our end finished that."""
    import wandb as library

    monkeypatch.setenv("WANDB_SILENT", "true")
    place = {"mode": "offline", "project": "project", "dir": str(tmp_path)}
    own = library.init(**place)  # type: ignore[arg-type]  # plain options
    sink = wandb.WandbSink(dict(place))
    assert sink.open("abcd1234") == "abcd1234"
    sink.write(1, 8.0, {"loss": 1.0})
    sink.close()
    own.log({"mine": 1.0})
    own.finish()
    folders = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert {name.rpartition("-")[2] for name in folders} == {"abcd1234", own.id}
