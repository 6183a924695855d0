"""A convolutional classifier with Adadelta, a step rate, and a test after each
epoch.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(1)
x = torch.randn(256, 1, 12, 12)
dataset = TensorDataset(x, (x[:, 0, :6].mean((1, 2)) > 0).long())
test_dataset = TensorDataset(x[:64] + 0.1, dataset.tensors[1][:64])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(8 * 4 * 4, 2)

    def forward(self, images):
        h = functional.relu(self.conv1(images))
        h = functional.max_pool2d(functional.relu(self.conv2(h)), 2)
        return functional.log_softmax(self.fc(h.flatten(1)), dim=1)


model = Net()
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
model, optimizer = run.prepare(model, optimizer)
scheduler = run.prepare_scheduler(StepLR(optimizer, step_size=8, gamma=0.7))
loader = run.loader(dataset, batch_size=16)
test_loader = run.validation_loader(test_dataset, batch_size=32)
for epoch in run.epochs(3):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        functional.nll_loss(model(images), labels).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        for images, labels in test_loader:
            run.sum(correct=(model(images).argmax(1) == labels).sum())
    print(
        f"epoch {epoch}: {test_loader.totals()['correct']:.0f} of {len(test_dataset)}"
    )
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
