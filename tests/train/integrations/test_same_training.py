"""Loops of other libraries train the same on any number of replicas, also where they
would scale by it.
"""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coadapt.train.check.__main__ import Settings, check

pytestmark = [pytest.mark.train]

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.usefixtures("forked_replicas")
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "library", "num_steps"),
    [("classifier", "transformers", 20), ("two_optimizers", "lightning", 20)],
)
def test_it_is_the_same_training_under_changes(
    script: str, library: str, num_steps: int
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    settings = Settings(
        command=(str(SCRIPTS / f"{script}.py"),), changes=2, steps=40, timeout_s=400
    )
    outcome = check(settings)
    assert outcome.code == 0, outcome
    # The first one stops early, at the same step; the second counts batches, not its
    # optimisers' steps.
    assert outcome.num_steps == num_steps
    assert len(outcome.changes) == 2


def trainer_of(loss: Any) -> Any:
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5), nn.BatchNorm1d(1))
    model.train()
    model[0].eval()
    args = SimpleNamespace(device=torch.device("cpu"))
    return SimpleNamespace(model=model, args=args, compute_loss=loss)


def own_mean(model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
    return model(inputs["x"]).square().mean() + 1.0


def by_items(model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
    return (model(inputs["x"]).square() + 1.0).sum() / num_items_in_batch


@pytest.mark.parametrize(("loss", "divides"), [(own_mean, False), (by_items, True)])
def test_a_loss_is_asked_whether_it_goes_by_the_number_of_items(
    loss: Any, divides: bool
) -> None:
    pytest.importorskip("transformers")
    from coadapt.train.integrations.transformers import _divides_by

    trainer = trainer_of(loss)
    before = torch.get_rng_state()
    inputs = {"x": torch.ones(4, 2)}
    assert _divides_by(trainer, loss, inputs, torch.tensor(4)) is divides
    assert torch.equal(torch.get_rng_state(), before)
    assert [item.training for item in trainer.model] == [False, True, True]
    assert trainer.model[2].num_batches_tracked == 0
