"""DCGAN on synthetic images: two networks, two optimisers, two backwards for the
discriminator.
"""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(999)
images = torch.rand(160, 1, 8, 8) * 2 - 1
noise = torch.randn(160, 10, 1, 1)
netG = nn.Sequential(
    nn.ConvTranspose2d(10, 16, 4, 1, 0, bias=False), nn.GroupNorm(4, 16), nn.ReLU(True),
    nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh(),
)  # fmt: skip
netD = nn.Sequential(
    nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
    nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten(),
)  # fmt: skip
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
netG, optimizerG = run.prepare(netG, optimizerG, name="G")
netD, optimizerD = run.prepare(netD, optimizerD, name="D")
dataloader = run.loader(TensorDataset(images, noise), batch_size=16)
for epoch in run.epochs(5):
    for real, z in dataloader:
        netD.zero_grad()
        output = netD(real)
        criterion(output, torch.ones_like(output)).backward()
        fake = netG(z)
        output = netD(fake.detach())
        criterion(output, torch.zeros_like(output)).backward()
        optimizerD.step()
        netG.zero_grad()
        output = netD(fake)
        criterion(output, torch.ones_like(output)).backward()
        optimizerG.step()
if run.is_first:
    torch.save(netG.state_dict(), sys.argv[1])
