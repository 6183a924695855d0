"""A sequence-to-sequence network with GRUs and attention that learns to turn sequences
round.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
WORDS = 12
LENGTH = 6
source = torch.randint(1, WORDS, (256, LENGTH))
dataset = TensorDataset(source, source.flip(1))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.encoder = nn.GRU(16, 24, batch_first=True)
        self.decoder = nn.GRU(16, 24, batch_first=True)
        self.out = nn.Linear(48, WORDS)

    def forward(self, words, target):
        memory, last = self.encoder(self.embed(words))
        begun = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
        states, _ = self.decoder(self.embed(begun), last)
        weights = torch.softmax(states @ memory.transpose(1, 2), -1)
        return self.out(torch.cat([states, weights @ memory], -1))


model = Translator()
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.002)
loader = DataLoader(dataset, batch_size=16)
for epoch in range(4):
    for words, target in loader:
        optimizer.zero_grad()
        scores = model(words, target)
        nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten()).backward()
        optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
