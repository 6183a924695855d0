"""A student that learns from a trained teacher's soft labels and from the true ones."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
x = torch.randn(384, 10)
dataset = TensorDataset(x, (x[:, :4].sum(1) > x[:, 4:].sum(1)).long())
teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
student = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(
    student.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4
)
loader = DataLoader(dataset, batch_size=16)
temperature = 2.0
for epoch in range(3):
    for a, b in loader:
        with torch.no_grad():
            soft = functional.softmax(teacher(a) / temperature, dim=1)
        scores = student(a)
        distance = functional.kl_div(
            functional.log_softmax(scores / temperature, dim=1),
            soft,
            reduction="batchmean",
        )
        loss = 0.5 * temperature**2 * distance + 0.5 * functional.cross_entropy(
            scores, b
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(student.state_dict(), sys.argv[1])
