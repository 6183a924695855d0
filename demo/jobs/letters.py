"""Predict the next letter: a small recurrent network on the text of Python's own library. `fixed`, rigid."""

import argparse
import inspect
import json
import math
import typing

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import coadapt.train as coadapt

NUM_EPOCHS = 5
WINDOW = 48  # letters that are read before one is predicted, at each place of the window


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Windows of a text as (letters, the letters one further on)."""

    def __init__(self, text: str) -> None:
        self.codes = torch.tensor([min(ord(letter), 127) for letter in text])

    def __len__(self) -> int:
        return (len(self.codes) - 1) // WINDOW

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * WINDOW
        return self.codes[start : start + WINDOW], self.codes[start + 1 : start + 1 + WINDOW]


class Letters(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, 32)
        self.read = nn.GRU(32, width, batch_first=True)
        self.guess = nn.Linear(width, 128)

    def forward(self, letters: Tensor) -> Tensor:
        return self.guess(self.read(self.embed(letters))[0]).transpose(1, 2)


@torch.no_grad()
def evaluate(model: nn.Module, data: Text) -> dict[str, float]:
    model.eval()
    windows = [data[index] for index in range(len(data))]
    letters, following = (torch.stack(column) for column in zip(*windows, strict=True))
    return {"bits_per_letter": F.cross_entropy(model(letters), following).item() / math.log(2)}


def main() -> None:
    torch.manual_seed(1)
    run = coadapt.init(seed=1)
    model = Letters()
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    loader = run.loader(
        Text(inspect.getsource(typing) + inspect.getsource(inspect)), batch_size=32, shuffle=True
    )
    for _ in run.epochs(NUM_EPOCHS):
        for letters, following in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(letters), following)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    if run.is_first:
        print("result", json.dumps(evaluate(model, Text(inspect.getsource(argparse)))))


if __name__ == "__main__":
    main()
