"""A disk or quota that is full while checkpoints are written costs no training."""

import json
import logging
import os
import re
import resource
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.checkpoint.store import CheckpointStore
from coadapt.train.exits.stop import EXIT_UNSAVED
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

NUM_STEPS = 24
STOP_AT = 5
FULL = range(6, 18)  # steps during which no file may be larger than this
LIMIT_BYTES = 16384


def train(job: tuple[str, bool, int]) -> None:
    """Train; on the replica `poor`, files cannot grow for some steps."""
    folder, shard, poor = job
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    run = ct.init(checkpoint_dir=Path(folder, "kept"), checkpoint_every_s=0.001)
    net = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    model, optimizer = run.prepare(net, optimizer, shard=shard)
    data = TensorDataset(torch.ones(NUM_STEPS * 8, 64))
    loader = run.loader(data, batch_size=8)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in run.epochs(1):
        for (x,) in loader:
            if run.rank == poor:
                full = run.progress.step in FULL
                soft = LIMIT_BYTES if full else unlimited[0]
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, unlimited[1]))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            run._saver._writer._join()  # type: ignore[union-attr]  # so that none is passed over
    Path(folder, f"done-{run.rank}.json").write_text(json.dumps(run.progress.step))
    run.close()


@pytest.mark.parametrize(
    ("num_replicas", "shard", "poor"),
    [(1, False, 0), (2, False, 0), (2, True, 0), (2, True, 1)],
)
def test_training_goes_on_and_the_next_checkpoint_is_whole(
    num_replicas: int, shard: bool, poor: int, tmp_path: Path
) -> None:
    jobs = [(str(tmp_path), shard, poor)] * num_replicas
    codes = run_replicas(train, jobs, tmp_path)
    output = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
    assert codes == [0] * num_replicas, output
    for rank in range(num_replicas):
        assert json.loads((tmp_path / f"done-{rank}.json").read_text()) == NUM_STEPS
    assert "a checkpoint was not written" in output
    assert "training goes on, and the next one is tried in its turn" in output
    assert CheckpointStore(tmp_path / "kept").newest() is not None
    left = [path.name for path in (tmp_path / "kept").iterdir()]
    assert all(name.startswith("checkpoint-") for name in left), left


def test_a_write_that_fails_leaves_no_part(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save({"x": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    try:
        with pytest.raises((OSError, RuntimeError)):
            store.save({"x": torch.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(list(tmp_path.iterdir())) == 1


def stop_without_room(folder: str) -> None:
    """Save once, then stop where files cannot grow."""
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    run = ct.init(checkpoint_dir=Path(folder, "kept"), checkpoint_every_s=1000.0)
    net = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    model, optimizer = run.prepare(net, optimizer)
    loader = run.loader(TensorDataset(torch.ones(NUM_STEPS * 8, 64)), batch_size=8)
    for _ in run.epochs(1):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if run.progress.step == STOP_AT:
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_stop_without_room_is_said_in_one_line(
    num_replicas: int, tmp_path: Path
) -> None:
    codes = run_replicas(stop_without_room, [str(tmp_path)] * num_replicas, tmp_path)
    output = "".join(path.read_text() for path in tmp_path.glob("output-*.txt"))
    assert codes == [EXIT_UNSAVED] * num_replicas, output
    said = r"stopped at step \d+, and its state could not be saved: \[Errno 27\]"
    assert len(re.findall(said, output)) == 1
    assert "Traceback" not in output
