"""What a beginner's script does: it works, or says in one line what is wrong."""

import logging
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from coadapt.model.contract_env import ENV_RESCALE_DIR
from coadapt.model.rescale import CAPABLE_FILE
from coadapt.train.exits.failures import tell_input_errors
from coadapt.train.group.totals import Totals, whole_values
from coadapt.train.run import Run
from tests.train.replicas import run_replicas

pytestmark = pytest.mark.train

DATA = TensorDataset(torch.arange(20, dtype=torch.float32).reshape(-1, 1))


def prepared(run: Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
    return run.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))


def test_the_loader_belongs_into_the_epochs() -> None:
    run = ct.init()
    prepared(run)
    loader = run.loader(DATA, batch_size=5)
    with pytest.raises(RuntimeError, match=r"inside of `for epoch in run.epochs"):
        next(iter(loader))


def test_training_on_a_loader_of_ones_own_is_noticed_after_an_epoch() -> None:
    run = ct.init()
    prepared(run)
    run.loader(DATA, batch_size=5)
    epochs = run.epochs(2)
    assert next(epochs) == 0
    with pytest.raises(
        RuntimeError,
        match=r"epoch 0 ended without training: iterate over what run.loader",
    ):
        next(epochs)


def test_a_data_loader_is_no_dataset_and_the_order_is_the_runs() -> None:
    run = ct.init()
    batches = DataLoader(DATA, batch_size=5)
    with pytest.raises(InputError, match=r"its dataset: run\.loader\(loader\.dataset"):
        run.loader(batches, batch_size=5)
    with pytest.raises(
        InputError, match=r"loader\(generator\): .* the run orders the samples"
    ):
        run.loader(DATA, batch_size=5, generator=torch.Generator())
    run.loader(DATA, batch_size=5)
    with pytest.raises(InputError, match=r"its dataset: loader\.dataset"):
        run.validation_loader(batches, batch_size=5)
    with pytest.raises(InputError, match=r"validation_loader\(generator\)"):
        run.validation_loader(DATA, batch_size=5, generator=torch.Generator())


def test_model_and_optimizer_in_the_wrong_order() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(
        InputError, match=r"prepare\(model\): .*SGD.*run\.prepare\(model, optimizer\)"
    ):
        ct.init().prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", ["", "prepared", "registered"])
def test_a_scheduler_that_nothing_keeps_is_told(
    kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = ct.init()
    _, optimizer = prepared(run)
    run.state(best=0.0)
    run.loader(DATA, batch_size=5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    if kept == "prepared":
        run.prepare_scheduler(scheduler)
    elif kept == "registered":
        run.register("schedule", scheduler)
    next(run.epochs(1))
    assert ["prepare_scheduler" in text for text in caplog.messages] == [True] * (
        not kept
    )


def test_an_optimizer_of_another_model() -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(
        InputError, match=r"prepare\(optimizer\): got 'parameters of another model'"
    ):
        ct.init().prepare(nn.Linear(1, 1), other)


def test_a_model_that_is_changed_after_it_was_prepared() -> None:
    run = ct.init()
    model, _ = prepared(run)
    run.loader(DATA, batch_size=5)
    model.module[1] = nn.Linear(2, 1)  # type: ignore[union-attr, operator]  # the elastic model's own
    with pytest.raises(InputError, match="parameters that came or went"):
        next(run.epochs(1))


def test_in_a_notebook_an_interrupted_loop_goes_on_where_it_was() -> None:
    run = ct.init()
    model, optimizer = prepared(run)
    loader = run.loader(DATA, batch_size=5, max_atomic=3)
    seen: list[float] = []

    def cell(interrupt_at: int) -> None:
        for _ in run.epochs(2):
            for (x,) in loader:
                if len(seen) == interrupt_at:
                    raise KeyboardInterrupt
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                seen.extend(x[:, 0].tolist())

    with pytest.raises(KeyboardInterrupt):
        cell(interrupt_at=10 + 20)
    cell(interrupt_at=-1)
    assert seen == [*range(20), *range(20)]
    assert (run.progress.epoch, run.progress.step) == (2, 8)


def test_a_setting_that_cannot_be_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    tell_input_errors()
    for error in (
        InputError("init(contract)", "adaptative", "fixed"),
        KeyError("mine"),
    ):
        try:
            raise error
        except (InputError, KeyError):
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is one
    one, *more = capsys.readouterr().err.splitlines()
    assert one.startswith(
        "error: init(contract): got 'adaptative'; allowed: fixed (test_misuse.py, line "
    )
    assert more[0] == "Traceback (most recent call last):"


def train_beside_a_group_of_ones_own(folder: str) -> None:
    logging.basicConfig(format="%(message)s")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1
    )
    run = ct.init()
    prepared(run)
    run.loader(DATA, batch_size=5)
    next(run.epochs(1))


@pytest.mark.processes
def test_beside_a_process_group_of_ones_own_replicas_do_not_change_in_place(
    tmp_path: Path,
) -> None:
    control_dir = tmp_path / "control_dir"
    target = train_beside_a_group_of_ones_own
    assert run_replicas(
        target, [str(tmp_path)], tmp_path, {ENV_RESCALE_DIR: str(control_dir)}
    ) == [0]
    assert (
        "no change in place: this process has a process group"
        in (tmp_path / "output-0.txt").read_text()
    )
    assert not (control_dir / CAPABLE_FILE).exists()


def wait_for_the_other(late_s: float) -> None:
    logging.basicConfig(format="%(message)s")
    run = ct.init()
    time.sleep(late_s)
    assert whole_values(Totals(), run._session.group, patience_s=0.2) == {}


@pytest.mark.processes
def test_a_replica_that_waits_long_for_totals_says_so(tmp_path: Path) -> None:
    assert run_replicas(wait_for_the_other, [0.0, 1.0], tmp_path) == [0, 0]
    first, last = (tmp_path / f"output-{rank}.txt" for rank in (0, 1))
    assert (
        "replica 0 has waited 0.2 s in totals() for the others: all replicas"
        in first.read_text()
    )
    assert last.read_text() == ""
