"""A small training script with the mistake that its first argument names, or none; for
`coadapt check`.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

mistake = sys.argv[1]
torch.manual_seed(0)
if mistake == "elsewhere":
    sys.exit(0)
run = ct.init(contract="adaptive" if mistake == "adaptive" else None)
if mistake == "plain accelerator":
    from accelerate import Accelerator

    Accelerator()
x = torch.randn(320, 8)
y = x.sum(1, keepdim=True).sin()
layers = [nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)]
model: nn.Module = nn.Sequential(
    *(layers[:2] + [nn.Dropout(0.2)] * (mistake == "dropout") + layers[2:])
)
optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer = run.prepare(model, optimizer, shard=mistake == "none, sharded")
scheduler = run.prepare_scheduler(torch.optim.lr_scheduler.StepLR(optimizer, 10))
state = run.state(iter_num=0, seen=0.0)
loader = run.loader(
    TensorDataset(x, y),
    batch_size=16,
    max_batch_size=64 if mistake == "adaptive" else None,
)
if mistake == "fails when it joins" and os.environ.get("COADAPT_JOINING"):
    raise ValueError("only where it joins")
iter_num = 0
for _epoch in run.epochs(10 if mistake == "none, longer" else 2):
    for a, b in loader:
        if mistake == "rate":
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (1 + iter_num)
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        iter_num += 1
        state.iter_num += 1
        if mistake == "state":
            state.seen += len(a)
        if mistake != "accumulation" or iter_num % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if mistake != "rate":
            scheduler.step()
