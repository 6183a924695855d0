"""The public surface in one process: what a script may do, in which order, and what it
is told otherwise.
"""

import gc
import logging
import random
import sys
import time
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import BatchLimits, InputError
from coadapt.train.checkpoint.writer import BackgroundWriter
from coadapt.train.run import Run

pytestmark = pytest.mark.train


@pytest.fixture
def written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests know after which step the last checkpoint was written."""
    monkeypatch.setattr(BackgroundWriter, "write", BackgroundWriter.write_now)


def points(num_samples: int = 20) -> TensorDataset:
    return TensorDataset(torch.arange(num_samples, dtype=torch.float32).reshape(-1, 1))


def prepared(run: Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    return run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))


def train(
    run: Run, loader: ct.ElasticLoader, num_epochs: int, stop_at: int | None = None
) -> list[list[int]]:
    """Train and return the samples of each step, up to step `stop_at`."""
    model, optimizer = prepared(run)
    seen = []
    for _ in run.epochs(num_epochs):
        for (x,) in loader:
            if run.progress.step == stop_at:
                return seen
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            seen.append([int(value) for value in x])
    return seen


def test_the_loop_sees_each_sample_once_per_epoch_in_the_loaders_order() -> None:
    run = ct.init()
    loader = run.loader(points(), batch_size=6)
    assert len(loader) == 4
    assert train(run, loader, 1) == [
        list(range(start, min(start + 6, 20))) for start in (0, 6, 12, 18)
    ]
    assert (run.progress.epoch, run.progress.step, run.progress.samples) == (1, 4, 20)
    assert (run.rank, run.num_replicas, run.is_first, run.device.type) == (
        0,
        1,
        True,
        "cpu",
    )


def test_drop_last() -> None:
    run = ct.init()
    loader = run.loader(points(), batch_size=6, drop_last=True)
    assert len(loader) == 3
    assert (
        train(run, loader, 2)
        == [list(range(start, start + 6)) for start in (0, 6, 12)] * 2
    )


def test_processes_that_fetch_data_keep_the_order() -> None:
    run = ct.init()
    loader = run.loader(points(), batch_size=6, max_atomic=3, num_workers=2)
    assert [x for step in train(run, loader, 1) for x in step] == list(range(20))


def test_epochs_may_be_asked_for_again() -> None:
    run = ct.init()
    loader = run.loader(points(), batch_size=20)
    assert len(train(run, loader, 2)) == 2
    assert list(run.epochs(2)) == []
    assert [epoch for epoch in run.epochs(4) for _ in loader] == [2, 3]


def test_breaking_out_of_an_epoch_begins_the_next_one_at_its_start() -> None:
    run = ct.init()
    loader = run.loader(points(), batch_size=6)
    prepared(run)
    firsts = []
    for _ in run.epochs(3):
        for (x,) in loader:
            firsts.append(int(x[0]))
            break
        assert run._session.broken_off is not None
    assert firsts == [0, 0, 0]
    assert run._session.broken_off is None


@pytest.mark.usefixtures("written_at_once")
def test_a_run_comes_back_from_its_checkpoint(tmp_path: Path) -> None:
    def begin(checkpoint_every_s: float) -> tuple[Run, ct.ElasticLoader]:
        run = ct.init(checkpoint_dir=tmp_path, checkpoint_every_s=checkpoint_every_s)
        return run, run.loader(points(), batch_size=6, shuffle=True)

    undisturbed = ct.init()
    wanted = train(
        undisturbed, undisturbed.loader(points(), batch_size=6, shuffle=True), 2
    )
    first = train(*begin(1e-9), num_epochs=2, stop_at=6)
    again, loader = begin(1000.0)
    rest = train(again, loader, 2)
    assert first == wanted[:6]
    assert rest == wanted[6:]
    done, loader = begin(1000.0)
    assert train(done, loader, 2) == []
    assert done.progress == again.progress


@pytest.mark.usefixtures("written_at_once")
def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def draws(folder: str, stop_at: int | None) -> list[float]:
        run = ct.init(checkpoint_dir=tmp_path / folder, checkpoint_every_s=1e-9)
        loader = run.loader(points(), batch_size=2)
        model, optimizer = prepared(run)
        drawn: list[float] = []
        for _ in run.epochs(1):
            for (x,) in loader:
                if run.progress.step == stop_at:
                    return drawn
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
                numpy_draws = np.random.random() + np.random.normal()  # noqa: NPY002  # what users call
                drawn.append(
                    float(torch.rand(())) + random.random() + float(numpy_draws)
                )
        return drawn

    def seeded(folder: str, stop_at: int | None) -> list[float]:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002  # what users call
        return draws(folder, stop_at)

    assert seeded("whole", None) == seeded("parts", 5) + seeded("parts", None)


def test_another_seed_is_not_the_same_run(tmp_path: Path) -> None:
    """Another data set is another run within an epoch only:
    tests/train/loading/test_changing_length.py.
    """

    def once(seed: int) -> None:
        run = ct.init(checkpoint_dir=tmp_path, seed=seed)
        train(run, run.loader(points(), batch_size=5), 1)

    once(1)
    with pytest.raises(InputError, match="what the checkpoint was made with"):
        once(2)


@pytest.mark.usefixtures("written_at_once")
def test_registered_objects_come_back(tmp_path: Path) -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, object]:
            return {"count": self.count}

        def load_state_dict(self, state_dict: dict[str, object]) -> None:
            self.count = int(str(state_dict["count"]))

    def once(num_epochs: int, names: tuple[str, ...]) -> Counter:
        run = ct.init(checkpoint_dir=tmp_path)
        counter = Counter()
        for name in names:
            run.register(name, counter)
        loader = run.loader(points(), batch_size=20)
        prepared(run)
        for _ in run.epochs(num_epochs):
            for _ in loader:
                counter.count += 1
        return counter

    assert once(2, ("steps",)).count == 2
    assert once(5, ("steps",)).count == 5
    with pytest.raises(InputError, match="registered objects"):
        once(6, ())


def test_what_cannot_be_loaded_safely_is_refused_at_once(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> dict[str, object]:
            return {"path": tmp_path}

        def load_state_dict(self, state_dict: dict[str, object]) -> None:
            raise AssertionError

    run = ct.init(checkpoint_dir=tmp_path)
    with pytest.raises(InputError, match=r"register\('odd'\)"):
        run.register("odd", Odd())
    run.register("fine", nn.Linear(1, 1))
    with pytest.raises(InputError, match="a name that is not taken"):
        run.register("fine", nn.Linear(1, 1))


def test_the_values_of_tensors_are_not_written_to_see_whether_they_load(
    tmp_path: Path,
) -> None:
    """They may fill the memory of the machine; what is no plain tensor is tried."""
    run = ct.init(checkpoint_dir=tmp_path)
    tracemalloc.start()
    run.register("large", nn.Linear(1000, 1000))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1_000_000


def test_a_self_job_changes_its_batch_between_steps() -> None:
    run = ct.init(contract="self")
    loader = run.loader(points(), batch_size=4)
    model, optimizer = prepared(run)
    sizes = []
    for _ in run.epochs(1):
        for (x,) in loader:
            sizes.append(len(x))
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            loader.set_batch_size(7)
    assert sizes == [4, 7, 7, 2]
    assert run.batch == ct.BatchConfig(total=7, atomic=7)
    with pytest.raises(InputError, match=r"set_batch_size: got 21; allowed: 1..20"):
        loader.set_batch_size(21)


@pytest.mark.parametrize("persistent", [False, True])
def test_processes_that_fetched_ahead_are_told_of_another_batch(
    persistent: bool,
) -> None:
    run = ct.init(contract="self")
    loader = run.loader(
        points(40), batch_size=4, num_workers=2, persistent_workers=persistent
    )
    model, optimizer = prepared(run)
    seen: list[list[int]] = []
    for _ in run.epochs(2):
        for (x,) in loader:
            model(x).mean().backward()
            optimizer.step()
            assert loader.sample_ids == [int(value) for value in x]
            seen.append(loader.sample_ids)
            loader.set_batch_size(4 + len(seen) % 3)
    assert [sample for step in seen for sample in step] == [*range(40)] * 2
    run.close()


def test_other_jobs_may_not() -> None:
    loader = ct.init(contract="adaptive").loader(points(), batch_size=4)
    with pytest.raises(
        InputError, match="only under contract self; this job's is adaptive"
    ):
        loader.set_batch_size(8)


def test_an_adaptive_job_grows_its_batch_says_why_and_keeps_its_cap(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = ct.init(contract="adaptive", report_every_s=0.05)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(512, 16, generator=generator))
    loader = run.loader(data, batch_size=8, max_batch_size=64)
    pure_noise = nn.Linear(16, 1, bias=False)
    model, optimizer = run.prepare(
        pure_noise, torch.optim.SGD(pure_noise.parameters(), lr=1e-4)
    )
    sizes: set[int] = set()
    with caplog.at_level(logging.INFO, "coadapt.train"):
        ends_at = (
            time.monotonic() + 60.0
        )  # how soon it grows depends on how busy the machine is
        for epoch in run.epochs(1_000_000):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
            sizes.add(run.batch.total)
            if (max(sizes) > 8 and epoch > 2) or time.monotonic() > ends_at:
                break
    assert 8 < max(sizes) <= 64
    assert "total batch 8 -> " in caplog.text
    assert run.progress.progress <= run.progress.samples
    run.close()


def test_no_batch_is_larger_than_the_data_set() -> None:
    run = ct.init(contract="adaptive")
    run.loader(points(20), batch_size=4, max_batch_size=1000, drop_last=True)
    assert run._session.data.limits == BatchLimits(initial=4, max_total=20)


class Lengthless:
    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(1)


def test_what_is_wrong_is_said_in_one_line() -> None:
    with pytest.raises(
        InputError,
        match=r"^loader\(dataset\): got '0 samples'; allowed: at least one batch",
    ):
        ct.init().loader(points(0), batch_size=4)
    with pytest.raises(
        InputError,
        match=r"^loader\(dataset\): got '3 samples'; allowed: at least one batch",
    ):
        ct.init().loader(points(3), batch_size=4)
    with pytest.raises(
        InputError,
        match=r"^loader\(dataset\): got 'Lengthless'; allowed: a dataset with",
    ):
        ct.init().loader(Lengthless(), batch_size=4)
    with pytest.raises(InputError, match=r"^prepare\(reduction\): got 'max'"):
        ct.init().prepare(
            nn.Linear(1, 1), torch.optim.SGD([torch.zeros(1)]), reduction="max"
        )


def test_the_order_of_calls_is_explained() -> None:
    run = ct.init()
    with pytest.raises(RuntimeError, match=r"there is no batch before run.loader"):
        run.batch  # noqa: B018  # the property raises
    with pytest.raises(
        RuntimeError, match=r"call run\.prepare\(\.\.\.\) before run\.epochs"
    ):
        next(iter(run.epochs(1)))
    prepared(run)
    with pytest.raises(
        RuntimeError, match=r"call run\.loader\(\.\.\.\) before run\.epochs"
    ):
        next(iter(run.epochs(1)))
    loader = run.loader(points(), batch_size=4)
    with pytest.raises(InputError, match=r"one that leads: run.further_loader"):
        run.loader(points(), batch_size=4)
    with pytest.raises(InputError, match="another name for each further pair"):
        prepared(run)
    for _ in run.epochs(1):
        list(loader)
        with pytest.raises(RuntimeError, match="iterated twice in epoch 0"):
            list(loader)


def test_a_bug_in_the_loop_stays_the_users_own() -> None:
    run = ct.init()
    loader = run.loader(points(), batch_size=4)
    prepared(run)

    def loop() -> None:
        for _ in run.epochs(1):
            for _ in loader:
                raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's") as raised:
        loop()
    assert raised.value.__cause__ is None
    assert raised.traceback[-1].name == "loop"


def test_the_model_looks_like_the_users() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

        def describe(self) -> str:
            return "a net"

    run = ct.init()
    net = Net()
    model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    assert model.describe() == "a net"
    assert model.layer is net.layer
    model.load_state_dict(
        {"layer.weight": torch.ones(1, 1), "layer.bias": torch.ones(1)}
    )
    assert net.layer.bias.item() == 1.0
    model.eval()
    assert not net.training
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_metrics_may_be_numbers_or_tensors() -> None:
    run = ct.init()
    run.log(loss=torch.tensor(0.5, requires_grad=True), accuracy=0.75)
    assert run._session.figures.metrics == {"loss": 0.5, "accuracy": 0.75}


def test_what_was_refused_may_be_said_again_rightly() -> None:
    """In a notebook, a call with a mistake in it is made anew."""
    run = ct.init()
    model = nn.Linear(1, 1)
    data = points()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="shard"):
        run.prepare(model, sgd, shard="all")  # type: ignore[arg-type]  # a mistake
    run.prepare(model, sgd)
    with pytest.raises(InputError, match="resume"):
        run.loader(data, batch_size=4, resume="somehow")
    with pytest.raises(InputError, match="in_order"):
        run.loader(data, batch_size=4, num_workers=2, in_order=False)
    with pytest.raises(TypeError, match="num_wokers"):
        run.loader(data, batch_size=4, num_wokers=1)
    assert (run.grad_stats, run.noise_scale_interval) == (None, None)
    run.loader(data, batch_size=4)


def test_a_run_that_is_closed_is_forgotten() -> None:
    """A notebook makes one after the other: their models must not stay in a GPU's
    memory.
    """
    hook = sys.excepthook
    run = ct.init()
    loader = run.loader(points(), batch_size=4)
    model, _ = prepared(run)
    for _ in run.epochs(1):
        for (x,) in loader:
            model(x).mean().backward()
    run.close()
    forgotten = weakref.ref(model)
    del run, loader, model
    gc.collect()
    assert forgotten() is None
    assert sys.excepthook == hook
