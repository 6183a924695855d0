"""Hugging Face Trainer: a callback that stops, saves, resumes and reports as the
scheduler needs it.

The Trainer owns the loop, the data and the checkpoints. See docs/integrations.md for
what is promised.
"""

import functools
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from coadapt.train.integrations.hosted_run import HostedRun
from coadapt.train.rng import restore_rng, rng_state

__all__ = ["CoadaptCallback"]

# A file in a checkpoint that is whole: the Trainer writes into its folder, and may be
# killed meanwhile.
WHOLE = "coadapt-whole"
# A loss that is divided by a number of items is halved where that number is doubled.
HALVED = 0.5
HALVED_TOLERANCE = 0.05

logger = logging.getLogger(__name__)


class CoadaptCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types where it is missing
    """Lets a Trainer be stopped and continued: on SIGTERM it saves its state and exits
    with code 75.
    """

    def __init__(self, batch_size: int | None = None, *, accumulation: int = 1) -> None:
        """Take the batch of one optimiser step.

        batch_size: samples of one optimiser step, over all replicas. accumulation:
        passes of one step on each replica. If the replicas cannot share the batch
        equally, the largest number of replicas that can share it trains, and the others
        end. Raises InputError if the passes do not divide the batch.
        """
        self._hosted = HostedRun(batch_size, accumulation)
        self._accumulation = accumulation
        self._num_steps = 1
        self._dealt: _NotedBatches | None = None
        self._stopping = False
        self._put_off = False

    def arguments(self) -> dict[str, object]:
        """Return arguments of TrainingArguments: batch, data order and checkpoints.

        `save_strategy` and `load_best_model_at_end` remain the script's choice.
        """
        folder = self._hosted.config.checkpoint_dir
        return {
            **({} if folder is None else {"output_dir": str(folder)}),
            "per_device_train_batch_size": self._hosted.share // self._accumulation,
            "gradient_accumulation_steps": self._accumulation,
            "dataloader_drop_last": True,
            "data_seed": self._hosted.config.seed,
            "save_total_limit": 2,
            # Else early stopping begins to count again after each change of replicas.
            "restore_callback_states_from_checkpoint": True,
        }

    def last_checkpoint(self) -> str | None:
        """Return the newest complete checkpoint, for
        `Trainer.train(resume_from_checkpoint=...)`.
        """
        folder = self._hosted.config.checkpoint_dir
        if folder is None:
            return None
        whole = [path.parent for path in folder.glob(f"checkpoint-*/{WHOLE}")]
        newest = max(
            whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None
        )
        return None if newest is None else str(newest)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        _watch_loss_scale(args)
        loader = kwargs["train_dataloader"]
        self._num_steps = -(-len(loader) // self._accumulation)
        if self._hosted.checked:
            self._dealt = note_batches(loader)
        self._hosted.begin(self._num_steps, int(args.num_train_epochs))
        self._hosted.watch(kwargs["model"], [kwargs["optimizer"]])

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if self._dealt is not None:
            at = state.global_step % self._num_steps * self._accumulation
            self._hosted.note_samples(self._dealt.samples(at, self._accumulation))
        self._hosted.begin_step()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        agreed = self._hosted.end_step(state.global_step, self._num_steps)
        # An evaluation belongs to the checkpoint that follows it: early stopping counts
        # them, and with save_strategy="best" they decide what is saved. So a stop waits
        # for the step after one.
        evaluates = control.should_evaluate or not state.global_step % self._num_steps
        self._put_off = agreed.stop and evaluates and not self._put_off
        if agreed.stop and not self._put_off:
            self._stopping = control.should_training_stop = True
            control.should_evaluate = False
        if agreed.save or self._stopping:
            control.should_save = True
        return control

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> TrainerControl:
        # The Trainer takes a stop in the middle of an epoch for its end.
        if self._stopping and state.global_step % self._num_steps:
            control.should_evaluate = control.should_save = False
        return control

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        for name, value in (kwargs.get("logs") or {}).items():
            if isinstance(value, int | float):
                self._hosted.log(name, float(value))

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._hosted.once_saved((folder / WHOLE).touch)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if self._stopping:
            self._hosted.leave()
        self._hosted.end()


class _NotedBatches:
    """A batch sampler that notes what it gave since an epoch began; all else is that of
    `inner`.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._given: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        self._given = []
        for batch in self._inner:
            self._given.append(list(batch))
            yield batch

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def samples(self, start: int, count: int) -> list[int]:
        """Return the samples of `count` batches from `start` on, of those of the
        epoch.
        """
        return [
            index for batch in self._given[start : start + count] for index in batch
        ]


def note_batches(loader: object) -> _NotedBatches | None:
    """Note what samples a Trainer's loader deals to this replica; None where they have
    no indices.
    """
    # Accelerate's loader passes all on to one of torch's, which refuses another sampler
    # by assignment. It is not the dataset that is watched: fetch processes have copies
    # of it, and run ahead of the loop.
    plain: Any = getattr(loader, "base_dataloader", loader)
    if plain.batch_sampler is None or isinstance(plain.dataset, IterableDataset):
        return None
    noted = vars(plain)["batch_sampler"] = _NotedBatches(plain.batch_sampler)
    return noted


def _watch_loss_scale(args: TrainingArguments) -> None:
    """Let the Trainer not multiply a loss by the number of replicas that is a mean by
    itself.

    With `average_tokens_across_devices` the Trainer takes a loss for a sum over this
    replica's items, divided by those of all replicas (`num_items_in_batch`), wherever a
    model's `forward` takes `**kwargs`. Many models take them and never look at that
    number. So the first loss is computed with that number, and with twice that number:
    where both are equal, the switch is set to False.
    """
    trainer = _calling_trainer()
    if trainer is None or args.world_size < 2 or not args.average_tokens_across_devices:
        return
    compute = trainer.compute_loss

    @functools.wraps(compute)
    def _first(model: Any, inputs: Any, *positional: Any, **given: Any) -> Any:
        count = given.get("num_items_in_batch")
        if count is not None:
            trainer.compute_loss = compute
            if not _divides_by(trainer, compute, dict(inputs), count):
                args.average_tokens_across_devices = False
                logger.info(
                    "the loss does not depend on num_items_in_batch: "
                    "average_tokens_across_devices is set to "
                    "False, else the Trainer would multiply loss and gradient by the "
                    "number of replicas"
                )
        return compute(model, inputs, *positional, **given)

    trainer.compute_loss = _first


def _calling_trainer() -> Any:
    """Return the Trainer that calls this callback: callbacks are given all but that.
    None if there is none.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    return None


@torch.no_grad()
def _divides_by(trainer: Any, compute: Any, inputs: dict[str, Any], count: Any) -> bool:
    """Return whether the loss is divided by the number of items that it is given.
    Changes no state.
    """
    model = trainer.model
    losses = []
    modes = {module: module.training for module in model.modules()}
    state = rng_state(trainer.args.device)
    model.eval()  # running statistics stay as they are
    try:
        for factor in (1, 2):
            restore_rng(state, trainer.args.device)
            loss = compute(model, dict(inputs), num_items_in_batch=count * factor)
            losses.append(float(loss) if isinstance(loss, Tensor) else math.nan)
    finally:
        restore_rng(state, trainer.args.device)
        for module, training in modes.items():
            module.training = training
    whole, halved = losses
    return not math.isfinite(whole) or math.isclose(
        halved, HALVED * whole, rel_tol=HALVED_TOLERANCE
    )
