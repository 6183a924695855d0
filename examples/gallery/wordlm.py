"""A word-level language model with an LSTM and tied embeddings, clipped, with a rate
that halves.
"""

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(7)
WORDS = 40
LENGTH = 12
text = (torch.arange(4000) * 7 + torch.randint(3, (4000,))) % WORDS
rows = text.unfold(0, LENGTH + 1, LENGTH)[:320]
dataset = TensorDataset(rows[:, :-1], rows[:, 1:])


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24)
        self.rnn = nn.LSTM(24, 24, batch_first=True)
        self.out = nn.Linear(24, WORDS)
        self.out.weight = self.embed.weight

    def forward(self, words):
        return self.out(self.rnn(self.embed(words))[0])


model = WordModel()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
model, optimizer = run.prepare(model, optimizer)
scheduler = run.prepare_scheduler(StepLR(optimizer, step_size=30, gamma=0.5))
loader = run.loader(dataset, batch_size=16)
for epoch in run.epochs(4):
    for words, following in loader:
        optimizer.zero_grad()
        scores = model(words)
        nn.functional.cross_entropy(
            scores.flatten(0, 1), following.flatten()
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        scheduler.step()
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
