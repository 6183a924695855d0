"""Lightning with coadapt.train. Alone: `python lightning_regression.py`. Lines marked
(coadapt) differ.

Expected: a loss of about 0.01 (noise of 0.1), whatever the number of replicas and
however often they changed.
"""

import argparse

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from coadapt.train.integrations.lightning import CoadaptCallback  # (coadapt)

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


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(NUM_FEATURES, 1)

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--save", help="where the parameters go in the end")
    args = parser.parse_args()

    torch.set_num_threads(1)
    pl.seed_everything(0)
    elastic = CoadaptCallback(batch_size=args.batch_size)  # (coadapt)
    loader = elastic.loader(
        make_data(), shuffle=True
    )  # (coadapt) was DataLoader(make_data(), ...)
    model = Regression()
    trainer = pl.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **elastic.arguments(),  # (coadapt)
    )
    trainer.fit(
        model, loader, ckpt_path=elastic.last_checkpoint()
    )  # (coadapt) ckpt_path
    if trainer.is_global_zero:
        x, y = make_data().tensors
        with torch.no_grad():
            print(f"final loss {nn.functional.mse_loss(model.net(x), y):.4f}")
        if args.save:
            torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
