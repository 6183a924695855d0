"""Hugging Face Trainer: a callback that stops, saves, resumes and reports as the scheduler needs it.

The Trainer owns the loop, the data and the checkpoints. See docs/integrations.md for what is promised.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from coadapt.train.integrations.hosted_run import HostedRun

__all__ = ["CoadaptCallback"]

# A file in a checkpoint that is whole: the Trainer writes into its folder, and may be killed meanwhile.
WHOLE = "coadapt-whole"


class CoadaptCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types where it is missing
    """Makes a Trainer stoppable: it ends with exit code 75 once its state is saved, and is started again."""

    def __init__(self, batch_size: int | None = None, *, accumulation: int = 1) -> None:
        """`batch_size`: of an optimiser step over all replicas. accumulation: passes that it takes on each.

        Where the replicas cannot share it equally, as many as can train, the others end. Raises InputError
        where the passes cannot.
        """
        self._hosted = HostedRun(batch_size, accumulation)
        self._accumulation = accumulation
        self._num_steps = 1
        self._dealt: _NotedBatches | None = None
        self._stopping = False

    def arguments(self) -> dict[str, object]:
        """Return arguments of TrainingArguments: batch, data order and checkpoints as the run needs them."""
        folder = self._hosted.config.checkpoint_dir
        return {
            **({} if folder is None else {"output_dir": str(folder)}),
            "per_device_train_batch_size": self._hosted.share // self._accumulation,
            "gradient_accumulation_steps": self._accumulation,
            "dataloader_drop_last": True,
            "data_seed": self._hosted.config.seed,
            "save_strategy": "no",
            "save_total_limit": 2,
        }

    def last_checkpoint(self) -> str | None:
        """Return the newest whole checkpoint, for `Trainer.train(resume_from_checkpoint=...)`."""
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
        if agreed.stop:
            self._stopping = control.should_training_stop = True
        if agreed.stop or agreed.save:
            control.should_save = True
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
    """A batch sampler that notes what it gave since an epoch began; all else is that of `inner`."""

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
        """Return the samples of `count` batches from `start` on, of those of the epoch."""
        return [
            index for batch in self._given[start : start + count] for index in batch
        ]


def note_batches(loader: object) -> _NotedBatches | None:
    """Note what samples a Trainer's loader deals to this replica; None where they have no indices."""
    # Accelerate's loader passes all on to one of torch's, which refuses another sampler by assignment. It is
    # not the dataset that is watched: fetch processes have copies of it, and run ahead of the loop.
    plain: Any = getattr(loader, "base_dataloader", loader)
    if plain.batch_sampler is None or isinstance(plain.dataset, IterableDataset):
        return None
    noted = vars(plain)["batch_sampler"] = _NotedBatches(plain.batch_sampler)
    return noted
