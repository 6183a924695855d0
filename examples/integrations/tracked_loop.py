"""TensorBoard, MLflow or Weights & Biases with coadapt.train: one run, however often
replicas change.

`python tracked_loop.py --tracker tensorboard`, then `tensorboard --logdir runs`. W&B
runs offline here. Expected: a loss that falls to about 0.01.
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import coadapt.train as ct
from coadapt.train.integrations import mlflow, tensorboard, wandb
from coadapt.train.integrations.tracker import Tracker

NUM_SAMPLES = 1200
NUM_FEATURES = 8
NOISE = 0.1


def make_tracker(kind: str, run: ct.Run, folder: Path) -> Tracker:
    if kind == "tensorboard":
        tracker = tensorboard.track(run, folder)
    elif kind == "mlflow":
        # MLflow wants to hear that files are meant; a server or a database needs
        # nothing.
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        tracker = mlflow.track(
            run, "regression", tracking_uri=f"file://{folder.absolute()}"
        )
    else:
        tracker = wandb.track(
            run, project="regression", mode="offline", dir=str(folder)
        )
    return tracker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument(
        "--tracker", choices=("tensorboard", "mlflow", "wandb"), default="tensorboard"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    args.folder.mkdir(parents=True, exist_ok=True)
    x = torch.randn(NUM_SAMPLES, NUM_FEATURES)
    y = x @ torch.randn(NUM_FEATURES, 1) + NOISE * torch.randn(NUM_SAMPLES, 1)
    run = ct.init()
    tracker = make_tracker(
        args.tracker, run, args.folder
    )  # (tracker) was SummaryWriter(args.folder)
    net = nn.Linear(NUM_FEATURES, 1)
    model, optimizer = run.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    )
    loader = run.loader(TensorDataset(x, y), batch_size=24, shuffle=True)
    for epoch in run.epochs(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            tracker.log(
                loss=loss
            )  # (tracker) was writer.add_scalar("loss", loss, step)
        if run.is_first:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
