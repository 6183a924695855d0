"""Trying a larger batch first: what is undone leaves no trace, and the loss decides."""

import logging
import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import coadapt.train as ct
from coadapt.goodput.batch import split_total
from coadapt.model import BatchConfig, InputError
from coadapt.train.checkpoint.store import CheckpointStore, State, read_checkpoint
from coadapt.train.checkpoint.writer import BackgroundWriter
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train]

NUM_SAMPLES = 320
BATCH = 4
LARGER = 16
BRANCH = 64


class Proposing:
    """Telemetry that promises more from batch LARGER in each step from `since` on."""

    def __init__(self, run: ct.Run, since: int) -> None:
        self._run = run
        self._since = since

    def batch_changed(self) -> None: ...

    def decide(self) -> None: ...

    def decided(self) -> BatchConfig | None:
        run = self._run
        if run.progress.step < self._since:
            return None
        return split_total(
            LARGER, run.num_replicas, run._session.data.limits, exact=True
        )

    def begin_pass(self) -> None: ...
    def end_step(self) -> None: ...
    def break_off(self) -> None: ...
    def retire(self) -> None: ...
    def close(self) -> None: ...


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(NUM_SAMPLES, 5, generator=generator).double()
    return TensorDataset(x, x.sum(1))


class Stream(IterableDataset[tuple[Tensor, ...]]):
    """The points, in their order."""

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        data = points()
        return (data[index] for index in range(NUM_SAMPLES))


class StatefulStream(Stream):
    """It can tell where it stands, and go on from there."""

    def __init__(self) -> None:
        self.begin = self.given = 0

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        self.given = self.begin
        self.begin = 0
        data = points()
        while self.given < NUM_SAMPLES:
            self.given += 1
            yield data[self.given - 1]

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = self.given = state["given"]


def in_shards() -> ct.ShardedStream[int, tuple[Tensor, ...]]:
    return ct.ShardedStream(
        list(range(0, NUM_SAMPLES, 40)),
        lambda begin: [points()[begin + index] for index in range(40)],
        num_samples=[40] * (NUM_SAMPLES // 40),
        num_lanes=4,
    )


DATA: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "map": lambda: (points(), {"shuffle": True}),
    "stream": lambda: (Stream(), {"num_samples": NUM_SAMPLES}),
    "stateful": lambda: (StatefulStream(), {"num_samples": NUM_SAMPLES}),
    "shards": lambda: (in_shards(), {}),
    "unknown": lambda: (Stream(), {}),
    "overstated": lambda: (StatefulStream(), {"num_samples": 2 * NUM_SAMPLES}),
}


def new_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
    ).double()


def train(
    rate: float,
    *,
    since: int = 10,
    tolerance: float = 0.0,
    says_loss: bool = True,
    epochs: int = 2,
    folder: Path | None = None,
    every_s: float = 1e9,
    body: Callable[[ct.Run], object] = lambda _: None,
    data: str = "map",
    shard: bool = False,
) -> tuple[ct.Run, list[dict[str, float]], list[Tensor]]:
    """Return the run, the totals of its epochs and the parameters in the end.

    `body` runs in each pass; True leaves the loop over the loader.
    """
    run = ct.init(
        contract="adaptive", checkpoint_dir=folder, checkpoint_every_s=every_s
    )
    model = new_model()
    model, optimizer = run.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5),
        scaling="none",
        shard=shard,
    )
    dataset, options = DATA[data]()
    loader = run.loader(dataset, batch_size=BATCH, max_batch_size=64, **options)
    run.require_growth_trial(BRANCH, tolerance=tolerance)
    totals = []
    for epoch in run.epochs(epochs):
        if (
            run.is_first
            and since >= 0
            and not isinstance(run._step_loop.telemetry, Proposing)
        ):
            assert epoch >= 0
            run._step_loop.telemetry = Proposing(run, since)  # type: ignore[assignment]  # as far as it is used
        for x, y in loader:
            if body(run):
                break
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x)[:, 0], y)
            loss.backward()
            optimizer.step()
            if says_loss:
                run.mean(loss=loss)
            run.sum(seen=len(x))
        totals.append(run.totals())
    return run, totals, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("data", ["map", "stream", "stateful", "shards"])
def test_a_larger_batch_that_learns_less_is_undone_without_a_trace(
    data: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It makes a quarter of the steps; dropout's random numbers are those of the
    undisturbed run as well.
    """
    with caplog.at_level(logging.INFO, "coadapt.train"):
        run, totals, parameters = train(0.01, data=data)
    run.close()
    plain, plain_totals, wanted = train(0.01, since=-1, data=data)
    plain.close()
    assert totals == plain_totals
    assert totals[0]["seen"] == NUM_SAMPLES
    assert run.batch.total == BATCH
    assert all(
        torch.equal(one, other) for one, other in zip(parameters, wanted, strict=True)
    )
    trials = [
        record.getMessage()
        for record in caplog.records
        if "trying batch" in record.getMessage()
    ]
    assert len(trials) == 1  # of two epochs: a refused batch is not tried again at once
    assert "stays" in caplog.text


def test_a_stream_is_tried_once_its_length_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "coadapt.train"):
        run, totals, _ = train(0.01, data="unknown")
    run.close()
    assert [figures["seen"] for figures in totals] == [NUM_SAMPLES] * 2
    (begun,) = (
        record for record in caplog.records if "trying batch" in record.getMessage()
    )
    assert begun.args is not None
    assert begun.args[0] >= NUM_SAMPLES // BATCH  # type: ignore[index, operator]  # the step's number


def test_a_stream_that_ends_in_a_branch_ends_the_trial(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its length was overstated. The samples of the branch are lost, the next epoch is
    whole.
    """
    with caplog.at_level(logging.INFO, "coadapt.train"):
        run, totals, _ = train(
            0.01,
            since=(NUM_SAMPLES - BRANCH // 2) // BATCH - 8,
            data="overstated",
            epochs=3,
        )
    run.close()
    assert [figures["seen"] for figures in totals[1:]] == [NUM_SAMPLES] * 2
    assert run.progress.epoch == 3
    assert run.batch.total == BATCH


def cut_over_two(arguments: tuple[str, int]) -> None:
    folder, since = arguments
    torch.set_num_threads(1)
    run, totals, _ = train(0.01, since=since, shard=True)
    state = run._rescaler.models[0].full_state_dict()
    if run.is_first:
        torch.save(
            (totals, state, run._step_loop.branches._refused[0]),
            Path(folder) / f"{since}.pt",
        )
    run.close()


@pytest.mark.processes
def test_of_a_model_in_parts_a_branch_is_undone_as_well(tmp_path: Path) -> None:
    for since in (10, -1):
        assert run_replicas(cut_over_two, [(str(tmp_path), since)] * 2, tmp_path) == [
            0,
            0,
        ]
    totals, state, refused = torch.load(tmp_path / "10.pt")
    wanted_totals, wanted, never = torch.load(tmp_path / "-1.pt")
    assert (refused, never) == (LARGER, math.inf)
    for figures, expected in zip(totals, wanted_totals, strict=True):
        assert figures == pytest.approx(expected, rel=1e-12)
    assert all(torch.equal(value, wanted[name]) for name, value in state.items())


def test_a_larger_batch_within_the_tolerance_is_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "coadapt.train"):
        run, totals, _ = train(0.01, tolerance=100.0)
    run.close()
    assert "grows" in caplog.text
    assert run.batch.total == LARGER
    assert [figures["seen"] for figures in totals] == [NUM_SAMPLES] * 2
    assert run.progress.samples == 2 * NUM_SAMPLES


def test_what_will_be_undone_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[State] = []
    monkeypatch.setattr(BackgroundWriter, "write", lambda _, state: saved.append(state))
    run, _, _ = train(0.01, folder=tmp_path, every_s=1e-9)
    run.close()
    assert len(saved) > NUM_SAMPLES // BATCH
    assert all(is_of_the_narrow_batch(state) for state in saved)


def is_of_the_narrow_batch(state: State) -> bool:
    """Return whether nothing but steps of BATCH led to `state`."""
    record = state["run"]
    assert isinstance(record, dict)
    progress = record["progress"]
    return bool(
        record["batch"]["total"] == BATCH
        and progress["samples"] == BATCH * progress["step"]
    )


def test_a_loop_that_is_left_in_a_branch_goes_on_from_before_it() -> None:
    left: list[int] = []

    def leave(run: ct.Run) -> bool:
        if run.batch.total == LARGER and not left:
            left.append(run.progress.step)
            return True
        assert not left or run.batch.total == BATCH or run.progress.step > left[0]
        return False

    run, totals, _ = train(0.01, body=leave)
    run.close()
    assert left
    assert run.progress.epoch == 2
    assert totals[1]["seen"] == NUM_SAMPLES
    assert run.progress.samples == BATCH * run.progress.step


def test_values_out_of_range_are_named() -> None:
    run = ct.init(contract="adaptive")
    with pytest.raises(
        RuntimeError, match=r"run.prepare\(...\) before run.require_growth_trial"
    ):
        run.require_growth_trial(8)
    model = new_model()
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError, match=r"^require_growth_trial\(tolerance\): got -1"):
        run.require_growth_trial(8, tolerance=-1.0)
    with pytest.raises(
        InputError, match=r"^require_growth_trial\(num_samples\): got 0"
    ):
        run.require_growth_trial(0)
    run.close()


def test_a_trial_fits_into_the_epoch_or_does_not_begin() -> None:
    run, totals, _ = train(0.01, since=(NUM_SAMPLES - BRANCH) // BATCH, epochs=1)
    run.close()
    assert totals[0]["seen"] == NUM_SAMPLES
    assert run.progress.samples == NUM_SAMPLES


def test_without_a_loss_the_batch_stays_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run, _, _ = train(0.01, says_loss=False)
    run.close()
    assert run.batch.total == BATCH
    assert caplog.text.count("needs run.mean(loss=...)") == 1


def _harmed(folder: str) -> None:
    """One replica of two; rank 1 is told to stop in the middle of the larger batch's
    branch, once.
    """
    torch.set_num_threads(1)
    mark = Path(folder, "harmed")

    def harm(run: ct.Run) -> None:
        if run.rank == 1 and run.batch.total == LARGER and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)

    run, totals, parameters = train(0.01, folder=Path(folder, "checkpoints"), body=harm)
    if run.is_first:
        torch.save(
            [totals[-1]["seen"], run.progress.samples, parameters],
            Path(folder, "end.pt"),
        )
    run.close()


@pytest.mark.processes
def test_a_stop_in_a_branch_saves_the_state_before_it(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert run_replicas(_harmed, [folder, folder], tmp_path) == [75, 75]
    outputs = "".join(path.read_text() for path in tmp_path.glob("output-*"))
    newest = CheckpointStore(tmp_path / "checkpoints").newest()
    assert newest is not None
    assert is_of_the_narrow_batch(read_checkpoint(newest))
    assert run_replicas(_harmed, [folder, folder], tmp_path) == [0, 0], outputs
    seen, samples, _ = torch.load(tmp_path / "end.pt", weights_only=True)
    assert (seen, samples) == (NUM_SAMPLES, 2 * NUM_SAMPLES)
