"""Lightning: its own loop, an optimiser with a schedule per step, samples in the order
of the data.
"""

import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import TensorDataset

from coadapt.train.integrations.lightning import CoadaptCallback


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3)
        )

    def training_step(self, batch, _index):
        inputs, targets = batch
        return nn.functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


pl.seed_everything(5)
elastic = CoadaptCallback(batch_size=24)
torch.set_num_threads(1)
x = torch.randn(480, 10)
dataset = TensorDataset(x, x[:, :3].argmax(1))
model = Classifier()
loader = elastic.loader(dataset)
trainer = pl.Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    **elastic.arguments(),
)
trainer.fit(model, loader, ckpt_path=elastic.last_checkpoint())
if trainer.is_global_zero:
    torch.save(model.state_dict(), sys.argv[1])
