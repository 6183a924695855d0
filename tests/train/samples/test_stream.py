"""Streams: read in their own order by every replica, cut alike, and gone on with
anywhere.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import coadapt.train as ct
from coadapt.model import BatchConfig, InputError
from coadapt.train.run import Run
from coadapt.train.samples.stream import (
    Cut,
    StreamPass,
    StreamPosition,
    StreamReader,
    plain_copy,
    same,
)
from tests.train.replicas import run_replicas
from tests.train.rescale.test_elastic import assert_same_run, live
from tests.train.schedules import random_changes
from tests.train.toy import (
    NUM_SAMPLES,
    PointStream,
    StatefulPointStream,
    Toy,
    sample_order,
)

pytestmark = pytest.mark.train


class Numbers:
    """0, 1, 2, ... as a stream with or without a state."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


class StatefulNumbers(Numbers):
    begin = given = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.begin, self.count):
            self.given = number + 1
            yield number

    def state_dict(self) -> dict[str, object]:
        return {"given": self.given}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.begin = self.given = state_dict["given"]


def cut(
    total: int,
    *,
    drop_last: bool = False,
    rank: int = 0,
    num_replicas: int = 1,
    atomic: int = 99,
) -> Cut:
    batch = BatchConfig(total=total, atomic=atomic)
    return Cut(
        batch=batch,
        drop_last=drop_last,
        max_atomic=None,
        rank=rank,
        num_replicas=num_replicas,
    )


def reader(
    numbers: Numbers,
    index: int = 0,
    start: StreamPosition = StreamPosition(),  # noqa: B008  # frozen
) -> StreamReader:
    return StreamReader(numbers, 0, index, start, resume="auto")


def steps(
    passes: Iterator[StreamPass],
) -> Iterator[tuple[list[object], StreamPosition]]:
    """Yield the samples of one replica in each step, and where the stream stands after
    it.
    """
    own: list[object] = []
    for item in passes:
        own += item.samples if item.current.num_samples else []
        if item.current.synchronising:
            yield own, item.after
            own = []


@given(
    count=st.integers(0, 60),
    total=st.integers(1, 25),
    atomic=st.integers(1, 8),
    num_replicas=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_replicas_share_each_step_and_all_know_the_last_one(
    count: int, total: int, atomic: int, num_replicas: int, drop_last: bool
) -> None:
    each = [
        list(
            steps(
                reader(Numbers(count)).passes(
                    cut(
                        total,
                        drop_last=drop_last,
                        rank=rank,
                        num_replicas=num_replicas,
                        atomic=atomic,
                    )
                )
            )
        )
        for rank in range(num_replicas)
    ]
    whole = [
        [sample for own, _ in step for sample in own]
        for step in zip(*each, strict=True)
    ]
    used = count - count % total if drop_last else count
    assert whole == [
        list(range(begin, min(begin + total, used))) for begin in range(0, used, total)
    ]
    for step in zip(*each, strict=True):
        assert len({after.over for _, after in step}) == 1
    assert [after.over for _, after in each[0]] == [False] * (len(whole) - 1) + [
        True
    ] * bool(whole)


@given(
    totals=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    drop_last=st.booleans(),
    kind=st.sampled_from([Numbers, StatefulNumbers]),
)
@example(totals=[1, 3, 12, 12, 11, 12], drop_last=True, kind=Numbers)
def test_a_reader_goes_on_with_another_batch_and_another_process_at_the_same_place(
    totals: list[int], drop_last: bool, kind: type[Numbers]
) -> None:
    """One reader stays open; at each change another one begins where the first one
    stands.
    """
    first = reader(kind(50))
    after = StreamPosition()
    index = 0
    for total in totals:
        other = reader(kind(50), index, after)
        one = steps(first.passes(cut(total, drop_last=drop_last)))
        two = steps(other.passes(cut(total, drop_last=drop_last)))
        if drop_last and index + total > 50:
            # The batch grew to more than is left.
            assert next(one, None) is next(two, None) is None
            return
        (samples, after), (again, after_again) = next(one), next(two)
        assert (
            samples == again == list(range(index, index + total))
            if index + total <= 50
            else True
        )
        assert after.over == after_again.over
        index += len(samples)
        assert after.at <= index
        assert (after.state is not None) == (kind is StatefulNumbers)
        if after.over:
            return


def test_a_state_spares_the_reading() -> None:
    one = steps(reader(StatefulNumbers(50)).passes(cut(10)))
    next(one)
    _, after = next(one)
    assert after == StreamPosition(at=20, state={"given": 20})
    again = reader(StatefulNumbers(50), 20, after)
    assert next(steps(again.passes(cut(10))))[0] == list(range(20, 30))
    assert "(its own state, then 0 samples read past)" in again.take_note()
    assert again.take_note() == ""


def test_a_stream_that_became_shorter_is_not_the_same() -> None:
    with pytest.raises(
        RuntimeError,
        match="ended after 20 samples of epoch 0, of which 30 were used before",
    ):
        next(reader(Numbers(20), 30).passes(cut(10)))


def test_a_state_that_no_checkpoint_can_hold_is_not_used() -> None:
    class Odd(StatefulNumbers):
        def state_dict(self) -> dict[str, object]:
            return {"path": Path("x")}

    found = [after for _, after in steps(reader(Odd(30)).passes(cut(10)))]
    assert [after.state for after in found] == [None] * 3
    assert "cannot be kept in a checkpoint: it holds a" in found[0].doubt


class Buffered(StatefulNumbers):
    """Gives out pairs in turned order; its state knows nothing of the one that it still
    holds.
    """

    def __iter__(self) -> Iterator[int]:
        numbers = super().__iter__()
        for held in numbers:
            other = next(numbers, None)
            if other is not None:
                yield other
            torch.rand(())
            yield held


def test_a_state_that_does_not_lead_back_is_not_used_unless_the_user_says_so() -> None:
    torch.manual_seed(0)
    found = [after for _, after in steps(reader(Buffered(30)).passes(cut(9)))]
    drawn = torch.rand(())
    assert [(after.state, after.doubt) for after in found] == [
        (None, "does not lead back to the next sample")
    ] * 4
    trusting = StreamReader(Buffered(30), 0, 0, StreamPosition(), resume="state")
    torch.manual_seed(0)
    assert None not in [after.state for _, after in steps(trusting.passes(cut(9)))]
    assert torch.rand(()) == drawn


def test_a_stream_that_cannot_be_copied_is_read() -> None:
    class Open(StatefulNumbers):
        def __deepcopy__(self, memo: object) -> "Open":
            raise TypeError("an open file")

    found = [after for _, after in steps(reader(Open(30)).passes(cut(10)))]
    assert [after.state for after in found] == [None] * 3
    assert "the stream cannot be copied (an open file)" in found[0].doubt
    came_back = StreamReader(
        Open(30), 0, 20, StreamPosition(at=20, state={"given": 20}), resume="state"
    )
    assert [own for own, _ in steps(came_back.passes(cut(10)))] == [list(range(20, 30))]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": [torch.ones(2), "x"]}, {"a": [torch.ones(2), "x"]}, True),
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}, False),
        ((np.ones(3), 1.5), (np.ones(3), 1.5), True),
        ([np.ones(3)], [np.zeros(3)], False),
        ([1, 2], [1], False),
        (torch.ones(1), 1.0, False),
        (object(), object(), False),
    ],
)
def test_equal_samples(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal


def test_states_are_copied() -> None:
    state = {"a": [torch.ones(2), ("x", None)], "b": 1.5}
    copied = plain_copy(state)
    state["a"][0][0] = 7.0  # type: ignore[index]  # the tensor
    assert str(copied) == str({"a": [torch.ones(2), ("x", None)], "b": 1.5})


# -- a run
# --------------------------------------------------------------------------------------


class Values(IterableDataset[Tensor]):
    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)

    def __iter__(self) -> Iterator[Tensor]:
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        return (torch.tensor([float(value)]) for value in range(count))


def floats(samples: list[int]) -> Tensor:
    return torch.tensor(samples, dtype=torch.float32).reshape(-1, 1)


def train(run: Run, loader: ct.ElasticLoader, num_epochs: int) -> list[list[int]]:
    model = nn.Linear(1, 1)
    elastic, optimizer = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-4)
    )
    seen = []
    for _ in run.epochs(num_epochs):
        for x in loader:
            elastic(x).square().mean().backward()
            optimizer.step()
            seen.append([int(value) for value in x])
    return seen


def test_an_epoch_ends_with_the_stream_and_its_length_is_known_from_then_on() -> None:
    run = ct.init()
    loader = run.loader(Values(10), batch_size=4)
    with pytest.raises(TypeError, match="not known yet"):
        len(loader)
    assert train(run, loader, 2) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert (len(loader), run.progress.samples, run.progress.step) == (3, 20, 6)
    hinted = ct.init()
    assert len(hinted.loader(Values(10), batch_size=4, num_samples=1000)) == 250


def test_drop_last_and_streams_of_different_lengths() -> None:
    run = ct.init()
    loader = run.loader(Values(10, 5, 8), batch_size=4, drop_last=True)
    assert [len(step) for step in train(run, loader, 3)] == [4, 4, 4, 4, 4]
    assert run.progress.step == 5


@pytest.mark.parametrize("fetchers", [0, 1, 3])
@pytest.mark.parametrize("kind", [PointStream, StatefulPointStream])
def test_processes_that_fetch_keep_the_order(
    fetchers: int, kind: type[PointStream]
) -> None:
    toy = Toy(folder="")
    run = ct.init()
    options = {"multiprocessing_context": "fork"} if fetchers else {}
    loader = run.loader(
        kind(toy), batch_size=64, max_atomic=10, num_workers=fetchers, **options
    )
    model = nn.Linear(6, 1)
    elastic, optimizer = run.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01)
    )
    for epoch in run.epochs(2):
        seen = []
        for x, y, index in loader:
            nn.functional.mse_loss(elastic(x), y).backward()
            optimizer.step()
            seen += index.tolist()
        assert seen == sample_order(toy).epoch(epoch).tolist()


def test_a_self_job_changes_its_batch_in_the_middle_of_a_stream() -> None:
    run = ct.init(contract="self")
    loader = run.loader(Values(20), batch_size=4)
    model = nn.Linear(1, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    seen = []
    for _ in run.epochs(1):
        for x in loader:
            seen.append([int(value) for value in x])
            loader.set_batch_size(7)
    assert seen == [[0, 1, 2, 3], list(range(4, 11)), list(range(11, 18)), [18, 19]]


@pytest.mark.parametrize("resume", ["auto", "state", "reading"])
def test_the_same_run_goes_on_in_the_middle_of_a_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, resume: str
) -> None:
    def points(stop_at: int | None) -> tuple[list[int], Run]:
        toy = Toy(folder="")
        run = ct.init(checkpoint_dir=tmp_path, checkpoint_every_s=1e-9)
        loader = run.loader(StatefulPointStream(toy), batch_size=50, resume=resume)
        model = nn.Linear(6, 1)
        elastic, optimizer = run.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.01)
        )
        seen: list[int] = []
        for _ in run.epochs(2):
            for x, y, index in loader:
                if run.progress.step == stop_at:
                    run._saver.wait()
                    run._saver.save(stopped=True)
                    return seen, run
                nn.functional.mse_loss(elastic(x), y).backward()
                optimizer.step()
                seen += index.tolist()
        return seen, run

    whole = [
        index
        for epoch in range(2)
        for index in sample_order(Toy(folder="")).epoch(epoch).tolist()
    ]
    first, _ = points(3)
    with caplog.at_level(logging.INFO, "coadapt.train"):
        rest, run = points(None)
    assert first + rest == whole
    said = "(150 samples" if resume == "reading" else "its own state, then 0 samples"
    assert f"{said} read past)" in caplog.text
    assert run.progress.samples == 2 * NUM_SAMPLES


@pytest.mark.parametrize("fetchers", [0, 2])
def test_a_state_that_is_not_used_is_mentioned_once(
    fetchers: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = ct.init()
    options = {"multiprocessing_context": "fork"} if fetchers else {}
    loader = run.loader(
        Buffered(30), batch_size=9, num_workers=fetchers, collate_fn=floats, **options
    )
    assert [len(step) for step in train(run, loader, 3)] == [9, 9, 9, 3] * 3
    assert caplog.text.count("its own state does not lead back to the next sample") == 1


def test_reports_of_a_stream_say_no_target_before_its_length_is_known() -> None:
    from coadapt.train.batch.tuning import fit, take_snapshot

    run = ct.init()
    loader = run.loader(Values(10), batch_size=4)
    model = nn.Linear(1, 1)
    run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    targets = []
    for _ in run.epochs(3):
        for _ in loader:
            pass
        targets.append(fit(take_snapshot(run._session, 3, None)).report.progress_target)
    assert targets == [None, 30.0, 30.0]


def test_what_is_wrong_with_a_stream_is_said_in_one_line() -> None:
    with pytest.raises(
        InputError,
        match=r"loader\(shuffle\): got True; allowed: False: the order of a stream",
    ):
        ct.init().loader(Values(3), batch_size=4, shuffle=True)
    with pytest.raises(InputError, match=r"loader\(num_samples\): got 0"):
        ct.init().loader(Values(3), batch_size=4, num_samples=0)
    with pytest.raises(
        InputError,
        match=r"loader\(num_samples\): got 4; allowed: 3, the dataset's length",
    ):
        ct.init().loader(TensorDataset(torch.zeros(3)), batch_size=3, num_samples=4)
    with pytest.raises(
        InputError,
        match=r"loader\(resume\): got 'x'; allowed: auto or state or reading",
    ):
        ct.init().loader(Values(3), batch_size=4, resume="x")
    for numbers, drop_last, least in (
        (Values(0), False, "one sample"),
        (Values(3), True, "one batch of 4"),
    ):
        run = ct.init()
        with pytest.raises(RuntimeError, match=f"the stream had less than {least}"):
            train(run, run.loader(numbers, batch_size=4, drop_last=drop_last), 1)
    run = ct.init()
    with pytest.raises(
        RuntimeError, match=r"in epoch 1; .* which a generator does not survive"
    ):
        train(run, run.loader((torch.zeros(1) for _ in range(8)), batch_size=4), 2)


# -- real processes
# -------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("stream", ["reading", "state"])
def test_a_rescaled_stream_is_the_undisturbed_run(tmp_path: Path, stream: str) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=3, stream=stream, max_atomic=20)
    live(toy, (1, 2), (3, 7), (2, None))
    assert_same_run(toy)


@pytest.mark.processes
def test_a_stream_with_fetch_processes_survives_a_restart(tmp_path: Path) -> None:
    toy = Toy(
        folder=str(tmp_path),
        num_epochs=2,
        stream="state",
        fetchers=2,
        drop_last=True,
        double=True,
    )
    live(toy, (2, 2), (1, None))
    assert_same_run(toy)


@pytest.mark.processes
@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_follows_changes_in_place(tmp_path: Path, seed: int) -> None:
    random_changes(tmp_path, seed, stream="state" if seed % 2 else "reading")


def shorter_for_some(toy: Toy) -> None:
    """Replica 1 gets a stream that ends two steps earlier, when steps have long been
    short.
    """
    run = ct.init()
    model = nn.Linear(1, 1)
    elastic, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = run.loader(Values(400 - 8 * run.rank), batch_size=4)
    for _ in run.epochs(2):
        for x in loader:
            optimizer.zero_grad()
            elastic(x).mean().backward()
            optimizer.step()


@pytest.mark.processes
def test_replicas_with_different_streams_are_told_so_and_do_not_hang(
    tmp_path: Path,
) -> None:
    toy = Toy(folder=str(tmp_path))
    assert run_replicas(shorter_for_some, [toy, replace(toy)], tmp_path) == [1, 1]
    said = "the data ends in 1 of 2 replicas and goes on in the others"
    assert said in (tmp_path / "output-1.txt").read_text()
