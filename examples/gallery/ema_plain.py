"""A classifier with an exponential moving average of its weights and a cosine rate."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
x = torch.randn(320, 10)
dataset = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
loader = DataLoader(dataset, batch_size=16)
for epoch in range(4):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
        scheduler.step()
        ema.update_parameters(model)
torch.save(ema.module.state_dict(), sys.argv[1])
