"""REINFORCE without a data set: eight episodes of a small control problem per step."""

import sys

import torch
from torch import nn

import coadapt.train as ct

run = ct.init()
torch.manual_seed(6)
policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
policy, optimizer = run.prepare(policy, optimizer)


def episode(seed):
    draw = torch.Generator().manual_seed(seed)
    state = torch.randn(2, generator=draw)
    log_probs = []
    rewards = []
    for _ in range(8):
        chances = torch.softmax(policy(state), 0)
        action = int(torch.multinomial(chances.detach(), 1, generator=draw))
        log_probs.append(torch.log(chances[action]))
        state = state + 0.3 * torch.tensor([state[1], 2.0 * action - 1.0])
        rewards.append(-float(state.abs().sum()))
    returns = [sum(rewards[t:]) for t in range(8)]
    return -torch.stack(
        [p * (r + 20.0) for p, r in zip(log_probs, returns, strict=True)]
    ).mean()


for seeds in run.steps(60, batch_size=8):
    optimizer.zero_grad()
    torch.stack([episode(seed) for seed in seeds]).mean().backward()
    optimizer.step()
if run.is_first:
    torch.save(policy.state_dict(), sys.argv[1])
