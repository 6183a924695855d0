"""Lightning: a cluster environment, a callback that stops and saves, and a loader that
resumes in mid-epoch.

Lightning owns the loop and what is in a checkpoint. See docs/integrations.md for what
is promised.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset

from coadapt.durable import put_in_place
from coadapt.train.env import TrainConfig, read_config, rendezvous_address
from coadapt.train.integrations.hosted_run import Agreed, HostedRun
from coadapt.train.samples.order import SampleOrder

__all__ = ["CoadaptCallback", "CoadaptEnvironment", "ResumableLoader"]

KEEP = 2


class CoadaptEnvironment(ClusterEnvironment):  # type: ignore[misc]  # no types where Lightning is missing
    """A ClusterEnvironment for replicas that torchrun or an executor starts. Their
    number may differ per node.
    """

    def __init__(self, config: TrainConfig | None = None) -> None:
        self._config = read_config() if config is None else config

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return rendezvous_address()[0]

    @property
    def main_port(self) -> int:
        return rendezvous_address()[1]

    @staticmethod
    def detect() -> bool:
        """Return whether this process was started as a replica."""
        return read_config().place.world_size > 1

    def world_size(self) -> int:
        return self._config.place.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has set it."""

    def global_rank(self) -> int:
        return self._config.place.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has set it."""

    def local_rank(self) -> int:
        return self._config.place.local_rank

    def node_rank(self) -> int:
        first = self._config.place.rank - self._config.place.local_rank
        ends = itertools.accumulate(self._config.place.placement.replicas_per_node)
        return sum(end <= first for end in ends)


class _Strategy(DDPStrategy):  # type: ignore[misc]  # no types where Lightning is missing
    """Lightning's `ddp`; where the module steps its optimisers itself, parameters may
    be without a gradient.

    Two optimisers need that: a backward of one leaves out the parameters of the other.
    """

    def configure_ddp(self) -> None:
        module = self.lightning_module
        if module is not None and not module.automatic_optimization:
            self._ddp_kwargs.setdefault("find_unused_parameters", True)
        super().configure_ddp()


class ResumableLoader:
    """Yields this replica's share of each step's samples. Lightning saves its position
    in checkpoints.

    Samples that do not fill a step are left out at the end of each epoch.
    """

    def __init__(
        self,
        hosted: HostedRun,
        dataset: "Dataset[object]",
        order: SampleOrder,
        options: dict[str, object],
    ) -> None:
        self._hosted = hosted
        self._dataset = dataset
        self._order = order
        self._options = options
        self._epoch = 0
        self._step = 0

    def __len__(self) -> int:
        """Return the steps of a whole epoch."""
        assert self._order.num_samples is not None
        return self._order.num_samples // self._hosted.batch_size

    def __iter__(self) -> Iterator[object]:
        """Yield the rest of the epoch, or where that is over, the next one."""
        if self._step >= len(self):
            self._epoch = self._epoch + 1
            self._step = 0
        total = self._hosted.batch_size
        share = self._hosted.share
        rank = self._hosted.config.place.rank
        ids = self._order.epoch(self._epoch).tolist()
        starts = [step * total + rank * share for step in range(self._step, len(self))]
        batches = [ids[start : start + share] for start in starts]
        fetcher: DataLoader[object] = DataLoader(
            self._dataset,
            batch_sampler=batches,
            generator=torch.Generator(),
            **self._options,  # type: ignore[arg-type]  # the user's
        )
        for batch, item in zip(batches, fetcher, strict=True):
            self._step += 1
            self._hosted.note_samples(batch)
            yield item

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch = state["epoch"]
        self._step = state["step"]


class CoadaptCallback(Callback):  # type: ignore[misc]  # no types where Lightning is missing
    """Lets a Trainer be stopped and continued: on SIGTERM it saves its state and exits
    with code 75.
    """

    def __init__(self, batch_size: int | None = None) -> None:
        """Take the batch of one optimiser step.

        batch_size: samples of one optimiser step, over all replicas. If the replicas
        cannot share it equally, the largest number of replicas that can share it
        trains, and the others end.
        """
        self._hosted = HostedRun(batch_size)
        self._pending = Agreed(stop=False, save=False)

    def arguments(self) -> dict[str, object]:
        """Return arguments of Trainer."""
        config = self._hosted.config
        nodes = config.place.placement.replicas_per_node
        environment = CoadaptEnvironment(config)
        return {
            "num_nodes": len(nodes),
            "devices": nodes[environment.node_rank()],
            "strategy": _Strategy() if config.place.world_size > 1 else "auto",
            "plugins": [environment],
            "callbacks": [self],
            "use_distributed_sampler": False,
        }

    def loader(
        self, dataset: "Dataset[object]", *, shuffle: bool = False, **options: object
    ) -> ResumableLoader:
        """Return the loader of the training data; `options` go to torch's
        DataLoader.
        """
        assert hasattr(dataset, "__len__")
        order = SampleOrder(
            num_samples=len(dataset),
            shuffle=shuffle,
            drop_last=True,
            seed=self._hosted.config.seed,
        )
        return ResumableLoader(self._hosted, dataset, order, options)

    def last_checkpoint(self) -> str | None:
        """Return the newest checkpoint, for `Trainer.fit(ckpt_path=...)`."""
        files = self._files()
        return str(files[-1]) if files else None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._hosted.begin(int(trainer.num_training_batches), trainer.max_epochs or 1)
        self._hosted.watch(module, trainer.optimizers)

    def on_train_end(self, _trainer: Trainer, _module: LightningModule) -> None:
        self._hosted.end()

    def on_train_batch_start(
        self, _trainer: Trainer, _module: LightningModule, _batch: object, _index: int
    ) -> None:
        self._hosted.begin_step()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        _module: LightningModule,
        _outputs: object,
        _batch: object,
        batch_idx: int,
    ) -> None:
        num_steps = int(trainer.num_training_batches)
        # Not trainer.global_step: that counts the steps of each optimiser.
        step = trainer.current_epoch * num_steps + batch_idx + 1
        agreed = self._hosted.end_step(step, num_steps)
        self._pending = Agreed(
            agreed.stop or self._pending.stop, agreed.save or self._pending.save
        )
        if batch_idx + 1 >= num_steps:
            return  # what follows an epoch (validation, its hooks) belongs to it
        if self._pending.stop or self._pending.save:
            self._save(trainer)
        if self._pending.stop:
            self._hosted.leave()
        self._pending = Agreed(stop=False, save=False)

    def _save(self, trainer: Trainer) -> None:
        folder = self._hosted.config.checkpoint_dir
        if folder is None:
            return
        beside = folder / "lightning.writing"
        trainer.save_checkpoint(beside)

        def keep() -> None:
            put_in_place(beside, folder / f"lightning-{trainer.global_step:08d}.ckpt")
            for old in self._files()[:-KEEP]:
                old.unlink()

        self._hosted.once_saved(keep)

    def _files(self) -> list[Path]:
        folder = self._hosted.config.checkpoint_dir
        return [] if folder is None else sorted(folder.glob("lightning-*.ckpt"))
