"""Semi-supervised learning: labelled data, and three times as much without labels, from
a second loader.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(11)
x = torch.randn(160, 8)
labelled = TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())
unlabelled = TensorDataset(torch.randn(360, 8))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(labelled, batch_size=8)
others = run.further_loader(unlabelled, batch_size=24, repeat=True)
for epoch in run.epochs(3):
    for (a, b), (u,) in zip(loader, others):
        with torch.no_grad():
            sure, guess = functional.softmax(model(u), dim=1).max(1)
        strong = u.roll(1, dims=1) * 0.1 + u * 0.9
        second = functional.cross_entropy(model(strong), guess, reduction="none")
        loss = functional.cross_entropy(model(a), b) + (second * (sure > 0.8)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
