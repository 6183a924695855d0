"""Accelerate with coadapt.train. Alone: `python accelerate_loop.py`. Lines marked
(coadapt) differ.

Accelerate keeps device placement, autocast, backward and clipping; model, optimiser and
data go through the run instead of `accelerator.prepare`. Expected: a loss of about 0.01
(noise of 0.1).
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct  # (coadapt)
from coadapt.train.integrations.accelerate import CoadaptAccelerator  # (coadapt)

NUM_SAMPLES = 1200
NUM_FEATURES = 8
NOISE = 0.1


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator)
    y = x @ torch.randn(NUM_FEATURES, 1, generator=generator)
    return TensorDataset(
        x, y + NOISE * torch.randn(NUM_SAMPLES, 1, generator=generator)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--save", help="where the parameters go in the end")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = ct.init()  # (coadapt)
    accelerator = CoadaptAccelerator(run)  # (coadapt) was Accelerator()
    model = nn.Linear(NUM_FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = run.prepare(
        model, optimizer
    )  # (coadapt) was accelerator.prepare
    loader = run.loader(
        make_data(), batch_size=args.batch_size, shuffle=True
    )  # (coadapt)
    for _ in run.epochs(args.epochs):  # (coadapt)
        for x, y in loader:
            optimizer.zero_grad()
            with accelerator.autocast():
                loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
    if accelerator.is_main_process:
        x, y = make_data().tensors
        with torch.no_grad():
            print(f"final loss {nn.functional.mse_loss(model(x), y):.4f}")
        if args.save:
            torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
