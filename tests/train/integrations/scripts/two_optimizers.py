"""Lightning with two optimisers, each of which leaves the other's parameters without a
gradient.
"""

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from coadapt.train.integrations.lightning import CoadaptCallback


class Two(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first = nn.Linear(8, 4)
        self.second = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], _index: int) -> None:
        x, y = batch
        for optimizer, detached in zip(self.optimizers(), (False, True), strict=True):
            self.toggle_optimizer(optimizer)
            features = self.first(x).detach() if detached else self.first(x)
            loss = nn.functional.mse_loss(self.second(features), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.SGD(self.first.parameters(), lr=0.05, momentum=0.9),
            torch.optim.Adam(self.second.parameters(), lr=0.01),
        ]


torch.set_num_threads(1)
pl.seed_everything(0)
elastic = CoadaptCallback(batch_size=24)
draw = torch.Generator().manual_seed(1)
inputs = torch.randn(240, 8, generator=draw)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
trainer = pl.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    **elastic.arguments(),
)
trainer.fit(
    Two(), elastic.loader(data, shuffle=True), ckpt_path=elastic.last_checkpoint()
)
