"""Accelerate in a loop of one's own: its autocast, backward and clipping, a rate that
warms up.
"""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.integrations.accelerate import CoadaptAccelerator

run = ct.init()
torch.manual_seed(3)
x = torch.randn(480, 12)
dataset = TensorDataset(x, (x[:, :4].square().sum(1) > 4).long())
accelerator = CoadaptAccelerator(run)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
model, optimizer = run.prepare(model, optimizer)
scheduler = run.prepare_scheduler(scheduler)
loader = run.loader(dataset, batch_size=24)
for epoch in run.epochs(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
if accelerator.is_main_process:
    torch.save(model.state_dict(), sys.argv[1])
