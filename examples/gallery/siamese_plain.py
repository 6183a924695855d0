"""A siamese network: one body runs on both halves of a pair, contrastive loss,
processes that fetch.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self):
        self.x = torch.randn(200, 12, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return 240

    def __getitem__(self, index):
        other = (index * 7 + 3) % 200
        return self.x[index % 200], self.x[other], torch.tensor(float(index % 2))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, a, b):
        return nn.functional.pairwise_distance(self.body(a), self.body(b))


torch.manual_seed(4)
model = Siamese()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
loader = DataLoader(Pairs(), batch_size=12, num_workers=1)
for epoch in range(3):
    for a, b, same in loader:
        optimizer.zero_grad()
        distance = model(a, b)
        loss = (
            same * distance**2 + (1 - same) * torch.relu(2.0 - distance) ** 2
        ).mean()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
