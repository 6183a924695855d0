"""A loop as another library has it, with a batch that no two replicas share equally;
for `coadapt check`.
"""

import torch
from torch import nn

from coadapt.train.integrations.hosted_run import HostedRun

NUM_STEPS = 20
BATCH = 25

hosted = HostedRun(BATCH)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
hosted.begin(NUM_STEPS, 1)
hosted.watch(model, [optimizer])
for step in range(NUM_STEPS):
    hosted.begin_step()
    optimizer.zero_grad()
    model(torch.ones(hosted.share, 4)).square().mean().backward()
    optimizer.step()
    hosted.end_step(step + 1, NUM_STEPS)
hosted.end()
