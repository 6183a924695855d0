"""An actor and a critic with an optimiser each, on short games that start from their
own seeds.
"""

import sys

import torch
from torch import nn

import coadapt.train as ct

run = ct.init()
torch.manual_seed(12)
actor = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=0.01)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.02)
actor, actor_optimizer = run.prepare(actor, actor_optimizer)
critic, critic_optimizer = run.prepare(critic, critic_optimizer, name="critic")
for seeds in run.steps(60, batch_size=8):
    games = [torch.Generator().manual_seed(seed) for seed in seeds]
    states = torch.stack([torch.randn(3, generator=game) for game in games])
    chances = torch.softmax(actor(states), 1)
    moves = torch.stack(
        [
            torch.multinomial(row, 1, generator=game)
            for row, game in zip(chances.detach(), games)
        ]
    )
    rewards = states.gather(1, moves)
    advantage = rewards - critic(states)
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    (-torch.log(chances.gather(1, moves)) * advantage.detach()).mean().backward()
    advantage.square().mean().backward()
    actor_optimizer.step()
    critic_optimizer.step()
if run.is_first:
    torch.save(
        {
            **actor.state_dict(),
            **{f"critic.{key}": value for key, value in critic.state_dict().items()},
        },
        sys.argv[1],
    )
