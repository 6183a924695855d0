"""Super-resolution with sub-pixel convolution: images of half the size become whole."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(8)
large = nn.functional.avg_pool2d(torch.randn(240, 1, 18, 18), 3, 1)
dataset = TensorDataset(nn.functional.avg_pool2d(large, 2), large)
model = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2),
    nn.Tanh(),
    nn.Conv2d(16, 8, 3, padding=1),
    nn.Tanh(),
    nn.Conv2d(8, 4, 3, padding=1),
    nn.PixelShuffle(2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(dataset, batch_size=8, drop_last=True)
for epoch in run.epochs(3):
    for iteration, (small, whole) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(small), whole)
        run.mean(loss=loss)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {run.totals()['loss']:.4f}")
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
