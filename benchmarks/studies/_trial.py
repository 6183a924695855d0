"""One trial of the study: the shapes classifier of examples/train, under Coadapt or Ray
Tune.

Each value is also noted in a file, with the time at which it was there.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "train"))

from classify import (  # type: ignore[import-not-found]  # an example, no package
    accuracy,
    draw,
    make_model,
)

EPOCHS = 9
SAMPLES = 2_000
VALIDATION_SAMPLES = 1_000
BATCH = 32
BATCH_MAX = 256
SEED = 0
ENV_NOTES = "STUDY_NOTES"


def data() -> tuple[TensorDataset, tuple[Tensor, ...]]:
    """Return the training set, and pictures and labels of the validation set."""
    training = draw(SAMPLES, SEED)
    return training, draw(VALIDATION_SAMPLES, SEED + 1).tensors


def optimizer_of(
    model: nn.Module, params: Mapping[str, float]
) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(),
        lr=params["lr"],
        momentum=params["momentum"],
        weight_decay=params["weight_decay"],
    )


def train_on(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def note(path: str, **values: object) -> None:
    """Add a line to the notes of the study; one write, so lines do not mix."""
    line = json.dumps({"at": time.time(), **values}) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, line.encode())
    os.close(file)


def with_coadapt() -> None:
    """Train as a job of Coadapt, whose parameters are those of its trial."""
    import coadapt.train as ct

    params = ct.params()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    run = ct.init(seed=SEED)
    training, validation = data()
    model = make_model()
    model, optimizer = run.prepare(
        model, optimizer_of(model, {name: float(params[name]) for name in params})
    )
    loader = run.loader(
        training, batch_size=BATCH, max_batch_size=BATCH_MAX, shuffle=True
    )
    for epoch in run.epochs(EPOCHS):
        for x, y in loader:
            train_on(model, optimizer, x, y)
        value = accuracy(model, *validation)
        run.log(accuracy=value, epoch=epoch + 1)
        if run.is_first:
            note(
                os.environ[ENV_NOTES],
                trial=os.environ["COADAPT_JOB"],
                epoch=epoch + 1,
                value=value,
                width=run.num_replicas,
                batch=loader.batch_size,
            )


def with_tune(config: dict[str, Any]) -> None:
    """Train as a trial of Ray Tune, with as many threads as it has CPUs."""
    from ray import tune

    resources = tune.get_context().get_trial_resources().required_resources
    width = int(resources["CPU"])
    torch.set_num_threads(width)
    torch.manual_seed(SEED)
    training, validation = data()
    model = make_model()
    optimizer = optimizer_of(model, config["params"])
    first = 0
    if kept := tune.get_checkpoint():
        with kept.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["epoch"]
    generator = torch.Generator()
    loader = DataLoader(training, batch_size=BATCH, shuffle=True, generator=generator)
    for epoch in range(first, EPOCHS):
        generator.manual_seed(SEED + epoch)
        for x, y in loader:
            train_on(model, optimizer, x, y)
        value = accuracy(model, *validation)
        note(
            config["notes"],
            trial=tune.get_context().get_trial_id(),
            epoch=epoch + 1,
            value=value,
            width=width,
            batch=BATCH,
        )
        metrics = {"accuracy": value, "epoch": epoch + 1}
        with tempfile.TemporaryDirectory() as folder:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch + 1,
            }
            torch.save(state, Path(folder) / "state.pt")
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


if __name__ == "__main__":
    with_coadapt()
