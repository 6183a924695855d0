"""A small GPT that learns to write, letter by letter, a made-up language. The text is
made on the spot.

Alone: `python tiny_gpt.py`. Lines marked (coadapt) are all that differs from a plain
PyTorch script. Expected with the defaults: about 0.36 bits per letter on new text
(knowing only how frequent letters are: 4.0).
"""

import argparse
import math
import random

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coadapt.train as ct  # (coadapt)

CONTEXT = 32
WIDTH = 48
HEADS = 4
LAYERS = 2
LETTERS = " .abcdefghijklmnopqrstuvwxyz"
NUM_VALIDATION = 256
SUBJECTS = (
    "the old cat",
    "a green bird",
    "my small robot",
    "the quiet king",
    "our friend",
)
VERBS = ("sees", "follows", "paints", "forgets", "sings for")
OBJECTS = ("the moon", "a river", "some bread", "the tall tower", "nobody")
ENDS = ("", " at night", " in the rain", " once more")


def write(num_windows: int, seed: int) -> Tensor:
    """Return windows of letters (num_windows, CONTEXT + 1) from random sentences."""
    draw = random.Random(seed)
    text = ""
    while len(text) <= num_windows * CONTEXT:
        text += " ".join(
            (draw.choice(SUBJECTS), draw.choice(VERBS), draw.choice(OBJECTS))
        )
        text += draw.choice(ENDS) + ". "
    letters = torch.tensor(
        [LETTERS.index(letter) for letter in text[: num_windows * CONTEXT + 1]]
    )
    return letters.unfold(0, CONTEXT + 1, CONTEXT)


class TinyGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS))
        self.register_buffer(
            "mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        )

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.layers(
            self.letters(letters) + self.places, mask=self.mask, is_causal=True
        )
        return self.head(self.norm(hidden))


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    scores = model(windows[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def bits_per_letter(model: nn.Module, windows: Tensor) -> float:
    model.eval()
    bits = loss_of(model, windows).item() / math.log(2)
    model.train()
    return bits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-batch-size", type=int)
    parser.add_argument("--contract", help="fixed, adaptive, self, frozen or schedule")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    run = ct.init(contract=args.contract, seed=args.seed)  # (coadapt)
    model = TinyGpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = run.prepare(model, optimizer)  # (coadapt)
    loader = run.loader(  # (coadapt)
        TensorDataset(write(args.samples, args.seed)),
        batch_size=args.batch_size,
        max_batch_size=args.max_batch_size,
        shuffle=True,
    )
    validation = write(NUM_VALIDATION, args.seed + 1).to(run.device)

    for epoch in run.epochs(args.epochs):  # (coadapt)
        for (windows,) in loader:
            optimizer.zero_grad()
            loss = loss_of(model, windows.to(run.device))
            loss.backward()
            optimizer.step()
        run.log(
            loss=loss, bits_per_letter=bits_per_letter(model, validation)
        )  # (coadapt)
        if run.is_first:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)

    final = bits_per_letter(model, validation)
    run.log(bits_per_letter=final)
    if run.is_first:
        print(f"final bits per letter {final:.4f}")


if __name__ == "__main__":
    main()
