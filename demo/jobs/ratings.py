"""Predict ratings: factorise a matrix of noisy ratings that has a hidden low rank. Contract `adaptive`."""

import json

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coadapt.train as coadapt
from batches import Batches

NUM_EPOCHS = 8
NUM_USERS, NUM_ITEMS, RANK = 1_000, 500, 4
NOISE = 0.5  # standard deviation of a rating around its truth: the error that no model can beat


def rate(num_ratings: int, seed: int) -> Batches:
    """Return ratings: who rates (num_ratings,), what, and how. The truth behind them is always the same."""
    truth = torch.Generator().manual_seed(0)
    tastes = torch.randn(NUM_USERS, RANK, generator=truth)
    traits = torch.randn(NUM_ITEMS, RANK, generator=truth)
    random = torch.Generator().manual_seed(seed)
    users = torch.randint(NUM_USERS, (num_ratings,), generator=random)
    items = torch.randint(NUM_ITEMS, (num_ratings,), generator=random)
    ratings = (tastes[users] * traits[items]).sum(1) + NOISE * torch.randn(num_ratings, generator=random)
    return Batches(users, items, ratings)


class Factors(nn.Module):
    """A rating is the inner product of a user's and an item's learned vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, RANK)
        self.items = nn.Embedding(NUM_ITEMS, RANK)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1)


@torch.no_grad()
def evaluate(model: nn.Module, data: Batches) -> dict[str, float]:
    model.eval()
    users, items, ratings = data.tensors
    return {"rmse": F.mse_loss(model(users, items), ratings).item() ** 0.5}


def main() -> None:
    torch.manual_seed(1)
    run = coadapt.init(seed=1)
    model = Factors()
    model, optimizer = run.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    loader = run.loader(
        rate(400_000, seed=1), batch_size=256, max_batch_size=2048, shuffle=True, collate_fn=Batches.collate
    )
    for _ in run.epochs(NUM_EPOCHS):
        for users, items, ratings in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(users, items), ratings)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    if run.is_first:
        print("result", json.dumps(evaluate(model, rate(20_000, seed=2))))


if __name__ == "__main__":
    main()
