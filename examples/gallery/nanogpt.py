"""A small GPT in the style of nanoGPT: its own loop, learning rate and counter by hand,
clipping.
"""

import math
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct

run = ct.init()
torch.manual_seed(1337)
block_size = 16
vocabulary = 20
width = 32
max_iters = 72
warmup_iters = 10
learning_rate = 3e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(2, (4, 8)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, 2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.size(1)))
        logits = self.head(self.norm(self.blocks(x)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / warmup_iters
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * it / max_iters))


text = torch.randint(0, vocabulary, (288, block_size + 1)).cumsum(1) % vocabulary
dataset = TensorDataset(text[:, :-1], text[:, 1:])
model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
other = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay}, {"params": other, "weight_decay": 0.0}], lr=learning_rate
)
model, optimizer = run.prepare(model, optimizer)
loader = run.loader(dataset, batch_size=12)
state = run.state(iter_num=0)
for epoch in run.epochs(3):
    for x, y in loader:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(state.iter_num)
        loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        state.iter_num += 1
if run.is_first:
    torch.save(model.state_dict(), sys.argv[1])
