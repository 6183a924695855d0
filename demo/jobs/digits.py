"""Read digits: a small convolutional network on images that are drawn on the spot. Contract `adaptive`."""

import json

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coadapt.train as coadapt
from batches import Batches

NUM_EPOCHS = 60
SIDE = 14  # pixels
NOISE = 0.4  # standard deviation of the noise on a black-and-white image
GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""


def draw(num_images: int, seed: int) -> Batches:
    """Return images (num_images, 1, SIDE, SIDE) of digits at random places in noise, and their labels."""
    random = torch.Generator().manual_seed(seed)
    rows = [[[float(dot) for dot in glyph] for glyph in line.split()] for line in GLYPHS.split("\n") if line]
    glyphs = torch.tensor(rows).permute(1, 0, 2)
    labels = torch.randint(10, (num_images,), generator=random)
    images = NOISE * torch.randn(num_images, 1, SIDE, SIDE, generator=random)
    height, width = glyphs.shape[1:]
    tops = torch.randint(SIDE - height + 1, (num_images,), generator=random)
    lefts = torch.randint(SIDE - width + 1, (num_images,), generator=random)
    for image, label, top, left in zip(images, labels, tops, lefts, strict=True):
        image[0, top : top + height, left : left + width] += glyphs[label]
    return Batches(images, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 32, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 9, 10),
    )  # fmt: skip


@torch.no_grad()
def evaluate(model: nn.Module, data: Batches) -> dict[str, float]:
    model.eval()
    images, labels = data.tensors
    scores: Tensor = model(images)
    accuracy = (scores.argmax(1) == labels).double().mean()
    return {"loss": F.cross_entropy(scores, labels).item(), "accuracy": accuracy.item()}


def main() -> None:
    torch.manual_seed(1)
    run = coadapt.init(seed=1)
    model = network()
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    loader = run.loader(
        draw(20_000, seed=1), batch_size=96, max_batch_size=768, shuffle=True, collate_fn=Batches.collate
    )
    for _ in run.epochs(NUM_EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
    if run.is_first:
        print("result", json.dumps(evaluate(model, draw(2_000, seed=2))))


if __name__ == "__main__":
    main()
