"""Matrix factorisation: predict the ratings that users did not give from those that
they gave.

The ratings are made on the spot, from hidden tastes of rank 4 and noise of 0.25. Alone:
`python factorise.py`. Lines marked (coadapt) are all that differs from a plain PyTorch
script. Expected with the defaults: a root mean square error of about 0.28 on ratings
not trained on (guessing their mean: 2.1).
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct  # (coadapt)

NUM_USERS = 600
NUM_ITEMS = 400
RANK = 4
NOISE = 0.25
NUM_VALIDATION = 5000


def rate(num_ratings: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, items and ratings, each (num_ratings,), no pair twice."""
    generator = torch.Generator().manual_seed(1000 + seed)
    users = torch.randn(NUM_USERS, RANK, generator=generator)
    items = torch.randn(NUM_ITEMS, RANK, generator=generator)
    pairs = torch.randperm(NUM_USERS * NUM_ITEMS, generator=generator)[:num_ratings]
    user = pairs // NUM_ITEMS
    item = pairs % NUM_ITEMS
    ratings = (users[user] * items[item]).sum(1)
    return user, item, ratings + NOISE * torch.randn(num_ratings, generator=generator)


class Factorisation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_USERS, RANK)
        self.items = nn.Embedding(NUM_ITEMS, RANK)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(1)


@torch.no_grad()
def error(model: nn.Module, user: Tensor, item: Tensor, rating: Tensor) -> float:
    model.eval()
    value = (model(user, item) - rating).square().mean().sqrt().item()
    model.train()
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--samples", type=int, default=30000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--max-batch-size", type=int)
    parser.add_argument("--contract", help="fixed, adaptive, self, frozen or schedule")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    run = ct.init(contract=args.contract, seed=args.seed)  # (coadapt)
    model = Factorisation()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    model, optimizer = run.prepare(model, optimizer)  # (coadapt)
    ratings = rate(args.samples + NUM_VALIDATION, args.seed)
    training = TensorDataset(*(column[NUM_VALIDATION:] for column in ratings))
    validation = [column[:NUM_VALIDATION].to(run.device) for column in ratings]
    loader = run.loader(  # (coadapt)
        training,
        batch_size=args.batch_size,
        max_batch_size=args.max_batch_size,
        shuffle=True,
    )

    for epoch in run.epochs(args.epochs):  # (coadapt)
        for batch in loader:
            user, item, rating = (column.to(run.device) for column in batch)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(user, item), rating)
            loss.backward()
            optimizer.step()
        run.log(loss=loss, error=error(model, *validation))  # (coadapt)
        if run.is_first:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    final = error(model, *validation)
    run.log(error=final)
    if run.is_first:
        print(f"final error {final:.4f}")


if __name__ == "__main__":
    main()
