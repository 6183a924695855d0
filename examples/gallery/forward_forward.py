"""The forward-forward algorithm: each layer learns by itself to tell true labels from
false ones.
"""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(10)
x = torch.randn(320, 12)
labels = (x[:, :6].sum(1) > 0).long()


def marked(samples, with_labels):
    return torch.cat([samples, 3.0 * nn.functional.one_hot(with_labels, 2)], 1)


dataset = TensorDataset(marked(x, labels), marked(x, 1 - labels))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(14, 32), nn.Linear(32, 32)])

    def forward(self, true, false):
        losses = []
        for layer in self.layers:
            true, false = (
                torch.relu(layer(h / (h.norm(dim=1, keepdim=True) + 1e-4)))
                for h in (true.detach(), false.detach())
            )
            good, bad = (h.square().mean(1) for h in (true, false))
            losses.append(
                nn.functional.softplus(torch.cat([2.0 - good, bad - 2.0])).mean()
            )
        return torch.stack(losses).sum()


model = Layers()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(dataset, batch_size=16)
for epoch in run.epochs(3):
    for true, false in loader:
        optimizer.zero_grad()
        model(true, false).backward()
        optimizer.step()
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
