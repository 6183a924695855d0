"""A transformer that forecasts a series, compiled, with a one-cycle rate and clipped
gradients.
"""

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
PAST = 16
series = torch.sin(torch.arange(400) * 0.3) + 0.1 * torch.randn(400)
windows = series.unfold(0, PAST + 1, 1)[:384]
dataset = TensorDataset(windows[:, :PAST, None], windows[:, PAST, None])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(1, 16)
        self.position = nn.Parameter(0.1 * torch.randn(PAST, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(16, 1)

    def forward(self, past):
        return self.head(self.encoder(self.embed(past) + self.position)[:, -1])


model = torch.compile(Forecaster(), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = OneCycleLR(optimizer, max_lr=0.05, total_steps=72)
loader = DataLoader(dataset, batch_size=16)
for epoch in range(3):
    for past, future in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(past), future).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
torch.save(model.state_dict(), sys.argv[1])
