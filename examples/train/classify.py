"""An image classifier: which of four shapes is in the picture? Pictures are drawn on
the spot.

Alone: `python classify.py`. Lines marked (coadapt) are all that differs from a plain
PyTorch script.
Expected with the defaults: about 95 % of the validation pictures right.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct  # (coadapt)

SIZE = 20
NUM_VALIDATION = 1000
SHAPES = ("disc", "square", "ring", "cross")


def draw(num_pictures: int, seed: int) -> TensorDataset:
    """Return noisy pictures (num_pictures, 1, SIZE, SIZE) with one shape each, and
    which one it is.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(len(SHAPES), (num_pictures,), generator=generator)
    centre = 6 + (SIZE - 12) * torch.rand(num_pictures, 2, 1, 1, generator=generator)
    radius = 3 + 3 * torch.rand(num_pictures, 1, 1, generator=generator)
    grid = torch.arange(SIZE, dtype=torch.float32)
    dy = (grid[:, None] - centre[:, 0]).abs()
    dx = (grid[None, :] - centre[:, 1]).abs()
    far = (dx.square() + dy.square()).sqrt()
    inside = torch.maximum(dx, dy) <= radius
    shapes = torch.stack(
        [
            far <= radius,
            inside,
            (far <= radius) & (far >= radius - 2),
            inside & (torch.minimum(dx, dy) <= 1),
        ]
    )
    pictures = shapes[labels, torch.arange(num_pictures)].float()
    pictures += 0.4 * torch.randn(pictures.shape, generator=generator)
    return TensorDataset(pictures[:, None], labels)


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * (SIZE // 4) ** 2, 48),
        nn.ReLU(),
        nn.Linear(48, len(SHAPES)),
    )


@torch.no_grad()
def accuracy(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    model.eval()
    right = (model(pictures).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-batch-size", type=int)
    parser.add_argument(
        "--batch-rule", help="with contract self: accordion or noise-scale"
    )
    parser.add_argument("--contract", help="fixed, adaptive, self, frozen or schedule")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    run = ct.init(contract=args.contract, seed=args.seed)  # (coadapt)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model, optimizer = run.prepare(model, optimizer)  # (coadapt)
    training = draw(args.samples, args.seed)
    validation = draw(NUM_VALIDATION, args.seed + 1)
    loader = run.loader(  # (coadapt)
        training,
        batch_size=args.batch_size,
        max_batch_size=args.max_batch_size,
        batch_rule=args.batch_rule,
        shuffle=True,
    )
    pictures, labels = (tensor.to(run.device) for tensor in validation.tensors)

    for epoch in run.epochs(args.epochs):  # (coadapt)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                model(x.to(run.device)), y.to(run.device)
            )
            loss.backward()
            optimizer.step()
        run.log(loss=loss, accuracy=accuracy(model, pictures, labels))  # (coadapt)
        if run.is_first:
            print(
                f"epoch {epoch}: loss {loss.item():.4f}, batch {loader.batch_size}",
                flush=True,
            )

    final = accuracy(model, pictures, labels)
    run.log(accuracy=final)
    if run.is_first:
        print(f"final accuracy {final:.4f}")


if __name__ == "__main__":
    main()
