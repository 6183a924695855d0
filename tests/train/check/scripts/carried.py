"""Truncated backpropagation through time: a hidden state for each row of the batch goes
from step to step.
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import coadapt.train as ct

ROWS = 6
CHUNK = 4
NUM_CHUNKS = 20
HIDDEN = 8


class Chunks(Dataset[tuple[Tensor, Tensor]]):
    """One row of one chunk, so that a step is one chunk of all rows."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (ROWS, NUM_CHUNKS * CHUNK + 1, 1)
        self.text = torch.randn(shape, generator=generator).cumsum(1).sin()

    def __len__(self) -> int:
        return ROWS * NUM_CHUNKS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chunk, row = divmod(index, ROWS)
        start = chunk * CHUNK
        text = self.text[row]
        return text[start : start + CHUNK], text[start + 1 : start + CHUNK + 1]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        output, new = self.rnn(x, hidden)
        return self.head(output), new


def begin_with(count: int) -> Tensor:
    return torch.zeros(1, count, HIDDEN)


run = ct.init()
torch.manual_seed(1)
net = Net()
model, optimizer = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
loader = run.loader(Chunks(), batch_size=ROWS)
kept = run.per_sample("hidden", begin_with, dim=1)
hidden = begin_with(ROWS)
for _ in run.epochs(2):
    kept.reset()
    for x, y in loader:  # type: ignore[misc]  # a pair
        hidden = hidden.detach() if sys.argv[1] == "plain" else kept.get()  # type: ignore[assignment]  # a tensor
        optimizer.zero_grad()
        output, hidden = model(x, hidden)
        nn.functional.mse_loss(output, y).backward()
        optimizer.step()
        kept.set(hidden)
