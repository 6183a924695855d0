"""Gradients accumulated by hand over four small batches; converted, `max_atomic` does
it.
"""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(5)
x = torch.randn(384, 8)
dataset = TensorDataset(x, x.prod(1, keepdim=True))
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(dataset, batch_size=16, max_atomic=4)
for epoch in run.epochs(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
