"""A denoising diffusion model of points in the plane; noise and times are drawn in the
data set.
"""

import math
import sys

import torch
from torch import nn
from torch.utils.data import Dataset

import coadapt.train as ct

TIMES = 50
kept = torch.cumprod(1.0 - torch.linspace(1e-3, 0.1, TIMES), 0)


class Noised(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        angle = 2 * math.pi * torch.rand(1, generator=draw)
        point = torch.cat([angle.cos(), angle.sin()])
        time = int(torch.randint(TIMES, (1,), generator=draw))
        noise = torch.randn(2, generator=draw)
        return (
            kept[time].sqrt() * point + (1 - kept[time]).sqrt() * noise,
            torch.tensor([time / TIMES]),
            noise,
        )


run = ct.init()
torch.manual_seed(14)
model = nn.Sequential(
    nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: min(1.0, (step + 1) / 20)
)
model, optimizer = run.prepare(model, optimizer)
scheduler = run.prepare_scheduler(scheduler)
loader = run.loader(Noised(), batch_size=16, num_workers=1)
for epoch in run.epochs(3):
    for noisy, time, noise in loader:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(torch.cat([noisy, time], 1)), noise).backward()
        optimizer.step()
        scheduler.step()
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
