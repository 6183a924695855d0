"""A replica that cannot train ends with the cause before it joins, and what its dry
step changes is undone.
"""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model.contract_env import ENV_JOINING
from coadapt.model.rescale import RescaleOrder, begun_file
from coadapt.train.rescale.dry_step import CallNotes, DryStep, DryStepError
from coadapt.train.rng import rng_state
from tests.train.replicas import Elastic
from tests.train.rescale.test_elastic import assert_same_run
from tests.train.toy import NUM_FEATURES, Points, Toy, run_toy

pytestmark = pytest.mark.train

GROWTH = RescaleOrder(generation=2, members=("1-0", "2-1"), placement=(2,))


class Net(nn.Module):
    """Has all that a forward may change: running means, a buffer outside of
    checkpoints, attributes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(NUM_FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        )
        self.head = nn.Linear(8, 1)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.num_calls = 0
        self.sizes: list[int] = []
        self.error: Exception | None = None

    def forward(self, x: Tensor, *, scale: dict[str, float]) -> dict[str, Tensor]:
        self.num_calls += 1
        self.sizes.append(len(x))
        self.seen += 1.0
        if self.error is not None:
            raise self.error
        return {"y": self.head(self.body(x)) * scale["by"], "x": x}


class Staged:
    """A run that has noted how its model is called, and what a joining replica would
    try.
    """

    def __init__(self, optimizer: str = "Adam", num_samples: int = 64) -> None:
        torch.manual_seed(0)
        self.run = ct.init()
        self.net = Net()
        kind = getattr(torch.optim, optimizer)
        model, self.optimizer = self.run.prepare(
            self.net, kind(self.net.parameters(), lr=0.1)
        )
        data = TensorDataset(torch.randn(num_samples, NUM_FEATURES))
        loader = self.run.loader(data, batch_size=16)
        pairs = self.run._rescaler.pairs
        notes = CallNotes(self.run._session)
        assert not notes.taken(2, pairs)
        for _ in self.run.epochs(1):
            for (x,) in loader:
                model(x, scale={"by": 2.0})["y"].mean().backward()
                self.optimizer.step()
                break
        assert notes.taken(2, pairs)
        self.notes = notes.write()
        self.dry = DryStep(self.run._session, pairs, loader.try_first)

    def close(self) -> None:
        self.run.close()


@pytest.fixture
def staged() -> Any:
    made = Staged()
    yield made
    made.close()


def state_of(staged: Staged) -> list[object]:
    """Return all that a dry step may change, tensors as lists."""
    net = staged.net
    tensors = [*net.state_dict().values(), net.seen]
    moments = [
        value.tolist()
        for state in staged.optimizer.state.values()
        for value in state.values()
    ]
    drawn = rng_state(torch.device("cpu"))
    drawn["torch"] = drawn["torch"].tolist()  # type: ignore[attr-defined]  # a tensor
    return copy.deepcopy(
        [[item.tolist() for item in tensors], net.num_calls, net.sizes, moments, drawn]
    )


def test_a_dry_step_runs_the_noted_call_on_this_replicas_share_and_undoes_it(
    staged: Staged,
) -> None:
    before = state_of(staged)
    calls: list[tuple[int, bool, float]] = []
    staged.net.register_forward_hook(
        lambda _net, args, output: calls.append(
            (len(args[0]), torch.is_grad_enabled(), float(output["y"].abs().sum()))
        )
    )
    staged.dry.run(staged.notes, GROWTH)
    # Two replicas share what one had.
    assert [call[:2] for call in calls] == [(8, True)]
    assert calls[0][2] > 0.0
    assert state_of(staged) == before
    assert all(item.grad is None for item in staged.net.parameters())
    assert staged.net.training


def test_the_first_step_of_an_optimiser_leaves_it_without_state() -> None:
    staged = Staged()
    try:
        staged.optimizer.state.clear()
        staged.dry.run(staged.notes, GROWTH)
        assert not staged.optimizer.state
    finally:
        staged.close()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: no kernel image is available for execution"),
        ImportError("libcudnn.so.9: cannot open shared object file"),
        FileNotFoundError(2, "No such file or directory", "/data/vocabulary"),
    ],
)
def test_an_error_that_would_end_its_first_step_is_named(
    staged: Staged, error: Exception
) -> None:
    before = state_of(staged)
    staged.net.error = error
    with pytest.raises(DryStepError, match="before joining, a step of") as raised:
        staged.dry.run(staged.notes, GROWTH)
    assert type(error).__name__ in str(raised.value)
    assert str(error) in str(raised.value)
    assert state_of(staged) == before


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("'Net' object has no attribute 'hidden'"),
        ValueError("Default process group has not been initialized, please call"),
        TypeError("step() missing 1 required positional argument: 'closure'"),
    ],
)
def test_what_the_loops_body_would_have_set_up_is_no_reason_against_a_growth(
    staged: Staged, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    staged.net.error = error
    staged.dry.run(staged.notes, GROWTH)
    assert f"not tried: a step of 16 samples: {type(error).__name__}" in caplog.text


def test_rows_that_are_no_samples_are_not_cut(staged: Staged) -> None:
    """A weight with as many rows as the pass has samples: the smaller step cannot be
    made up, so the noted one is.
    """
    sizes: list[int] = []

    def whole(x: Tensor, **_: object) -> Tensor:
        sizes.append(len(x))
        if len(x) != 16:
            raise RuntimeError("shape mismatch")
        return staged.net.head(torch.zeros(16, 8))

    staged.net.forward = whole  # type: ignore[method-assign,assignment]
    staged.dry.run(staged.notes, GROWTH)
    assert sizes == [8, 16]


class Unopened(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        raise OSError(5, "Input/output error", "/data/train.h5")


def test_data_that_cannot_be_read_is_named(staged: Staged) -> None:
    staged.run._loader.dataset.__class__ = Unopened  # type: ignore[union-attr]
    with pytest.raises(DryStepError, match=r"a pass of training data: OSError.*train"):
        staged.dry.run(staged.notes, GROWTH)


def test_a_call_with_an_object_is_not_tried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run = ct.init()
    try:
        net = nn.Linear(2, 1)
        model, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        loader = run.loader(TensorDataset(torch.randn(8, 2)), batch_size=8)
        model.module.forward = lambda graph: net.weight * graph.scale  # type: ignore[assignment]
        notes = CallNotes(run._session)
        notes.taken(2, run._rescaler.pairs)
        for _ in run.epochs(1):
            for _ in loader:
                model(Graph()).sum().backward()
        DryStep(run._session, run._rescaler.pairs, loader.try_first).run(
            notes.write(), GROWTH
        )
    finally:
        run.close()
    assert "not tried: the model is called with a Graph" in caplog.text


class Graph:
    scale = 2.0


def fails_where_it_joins(toy: Toy) -> None:
    """`run_toy`, where the data set cannot be read by replicas that join."""
    if ENV_JOINING in os.environ:

        def unreadable(_points: Points, _index: int) -> None:
            raise OSError(5, "Input/output error", "/data/train.h5")

        Points.__getitem__ = unreadable  # type: ignore[method-assign,assignment]
    run_toy(toy)


@pytest.mark.processes
@pytest.mark.parametrize("fetchers", [0, 1])
def test_those_who_train_do_not_notice_a_growth_that_would_have_failed(
    tmp_path: Path, fetchers: int
) -> None:
    toy = Toy(folder=str(tmp_path), num_epochs=40, pace_s=0.005, fetchers=fetchers)
    run = Elastic(fails_where_it_joins, toy, tmp_path)
    try:
        run.start(1)
        run.order(2)
        assert run.join(["2-1"]) == [1], run.outputs()
        assert run.take_back()
        assert not (run.control_dir / begun_file(2)).exists()
        (tmp_path / "fast").touch()
        assert run.join(["1-0"]) == [0], run.outputs()
    finally:
        run.kill()
    assert_same_run(toy)
    said = "DryStepError: before joining, a pass of training data: "
    assert said in run.outputs()
    assert "/data/train.h5" in run.outputs()
