"""Tell two spirals apart: a perceptron on points of which some carry the wrong label. Contract `fixed`."""

import json
import math

import torch
from torch import nn
from torch.nn import functional as F

import coadapt.train as coadapt
from batches import Batches

NUM_EPOCHS = 20
WRONG = 0.1  # share of training points with the wrong label


def scatter(num_points: int, seed: int, wrong: float = 0.0) -> Batches:
    """Return points (num_points, 2) along two spirals that wind around each other, and which spiral it is."""
    random = torch.Generator().manual_seed(seed)
    spirals = torch.randint(2, (num_points,), generator=random)
    radii = torch.rand(num_points, generator=random).sqrt()
    angles = 2.5 * math.pi * radii + math.pi * spirals
    points = radii[:, None] * torch.stack((angles.cos(), angles.sin()), 1)
    points += 0.02 * torch.randn(num_points, 2, generator=random)
    flipped = torch.rand(num_points, generator=random) < wrong
    return Batches(points, torch.where(flipped, 1 - spirals, spirals))


@torch.no_grad()
def evaluate(model: nn.Module, data: Batches) -> dict[str, float]:
    model.eval()
    points, spirals = data.tensors
    return {"accuracy": (model(points).argmax(1) == spirals).double().mean().item()}


def main() -> None:
    torch.manual_seed(1)
    run = coadapt.init(seed=1)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = run.loader(
        scatter(60_000, seed=1, wrong=WRONG), batch_size=64, shuffle=True, collate_fn=Batches.collate
    )
    for _ in run.epochs(NUM_EPOCHS):
        for points, spirals in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points), spirals)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    if run.is_first:
        print("result", json.dumps(evaluate(model, scatter(5_000, seed=2))))


if __name__ == "__main__":
    main()
