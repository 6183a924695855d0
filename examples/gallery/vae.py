"""A variational autoencoder whose loss is a sum over samples; its noise comes with the
data.
"""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(1)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 4)
        self.fc22 = nn.Linear(32, 4)
        self.fc3 = nn.Linear(4, 32)
        self.fc4 = nn.Linear(32, 64)

    def forward(self, x, eps):
        h = torch.relu(self.fc1(x))
        mu = self.fc21(h)
        logvar = self.fc22(h)
        z = mu + eps * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(torch.relu(self.fc3(z)))), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = nn.functional.binary_cross_entropy(recon_x, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


dataset = TensorDataset(torch.rand(320, 64), torch.randn(320, 4))
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer = run.prepare(model, optimizer, reduction="sum")
train_loader = run.loader(dataset, batch_size=16)
for epoch in run.epochs(3):
    for data, eps in train_loader:
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, eps)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
