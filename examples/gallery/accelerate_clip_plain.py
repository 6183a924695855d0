"""Accelerate in a loop of one's own: its autocast, backward and clipping, a rate that
warms up.
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(480, 12)
dataset = TensorDataset(x, (x[:, :4].square().sum(1) > 4).long())
accelerator = Accelerator()
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
loader = DataLoader(dataset, batch_size=24)
model, optimizer, loader, scheduler = accelerator.prepare(
    model, optimizer, loader, scheduler
)
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])
