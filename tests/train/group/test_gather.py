"""Losses over all samples of a step (CLIP, SimCLR): the same at any number of replicas,
with any shares.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.model import InputError
from tests.train.replicas import run_replicas

pytestmark = [pytest.mark.train, pytest.mark.processes]

BATCH = 10
NUM_SAMPLES = 31


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Linear(4, 3)
        self.text = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ends = self.image(images), self.text(texts)
        return normalize(ends[0], dim=1), normalize(ends[1], dim=1), self.scale.exp()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Towers().double()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(NUM_SAMPLES, 4, generator=draw, dtype=torch.float64)
    return x, torch.cat([x.sin(), x[:, :1] * x[:, 1:2]], 1)


def plain() -> list[Tensor]:
    model, optimizer = make()
    for _ in range(2):
        for x, y in zip(*(item.split(BATCH) for item in data()), strict=True):
            optimizer.zero_grad()
            images, texts, scale = model(x, y)
            labels = torch.arange(len(x))
            logits = scale * images @ texts.T
            (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)).backward()
            optimizer.step()
    return list(model.state_dict().values())


def elastic(how: tuple[str, str]) -> list[Tensor]:
    """The last step has one sample: two of three replicas run stand-ins."""
    way, folder = how
    torch.set_num_threads(1)
    run = ct.init()
    model, optimizer = run.prepare(*make())
    loader = run.loader(TensorDataset(*data()), batch_size=BATCH)
    for _ in run.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            images, texts, scale = model(x, y)
            all_images = run.gather(images)
            all_texts = run.gather(texts)
            if way == "whole":
                labels = torch.arange(len(all_images))
                logits = scale * all_images @ all_texts.T
                one = logits
                other = logits.T
            else:
                labels = torch.arange(len(x)) + run.gather_start
                one = scale * images @ all_texts.T
                other = scale * texts @ all_images.T
            (cross_entropy(one, labels) + cross_entropy(other, labels)).backward()
            optimizer.step()
    found = list(model.state_dict().values())
    if folder and run.is_first:
        torch.save(found, Path(folder) / "end.pt")
    run.close()
    return found


def test_alone_it_is_the_plain_loop() -> None:
    torch.testing.assert_close(elastic(("own", "")), plain())


@pytest.mark.parametrize("way", ["own", "whole"])
def test_unequal_shares_are_the_same_training(way: str, tmp_path: Path) -> None:
    how = (way, str(tmp_path))
    assert run_replicas(elastic, [how] * 3, tmp_path) == [0] * 3
    found = torch.load(tmp_path / "end.pt", weights_only=True)
    torch.testing.assert_close(found, plain(), rtol=1e-9, atol=1e-11)


def in_passes() -> None:
    run = ct.init()
    model, _ = run.prepare(*make())
    loader = run.loader(TensorDataset(*data()), batch_size=BATCH, max_atomic=4)
    for _ in run.epochs(1):
        for x, y in loader:
            run.gather(model(x, y)[0])


def test_a_step_of_several_passes_is_refused() -> None:
    with pytest.raises(InputError, match="leave max_atomic away"):
        in_passes()
