"""A small residual network in bfloat16 autocast with a GradScaler; group instead of
batch normalisation.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)
        )
        self.one = nn.GroupNorm(2, width)
        self.two = nn.GroupNorm(2, width)

    def forward(self, x):
        return torch.relu(
            x + self.two(self.second(torch.relu(self.one(self.first(x)))))
        )


x = torch.randn(160, 3, 8, 8)
dataset = TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1),
    Residual(8),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 2),
)
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4
)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
loader = DataLoader(dataset, batch_size=16)
for epoch in range(4):
    for a, b in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(a), b)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
torch.save(model.state_dict(), sys.argv[1])
