"""Accelerate in a loop of one's own: autocast, backward and clipping are its, the
replicas are the run's.
"""

import functools
from collections.abc import Callable
from typing import NoReturn, TypeVar

from accelerate import Accelerator
from accelerate.utils import DistributedType

from coadapt.model import InputError
from coadapt.train.env import as_if_alone
from coadapt.train.run import Run

__all__ = ["CoadaptAccelerator"]

R = TypeVar("R")

DEVICE = "ACCELERATE_TORCH_DEVICE"


class CoadaptAccelerator(Accelerator):  # type: ignore[misc]  # no types where Accelerate is missing
    """An Accelerator that leaves replicas, batches and checkpoints to the run. Calls of
    Accelerator that would do the run's work raise an error that names the run's own
    call.
    """

    def __init__(self, run: Run, **options: object) -> None:
        """`options` are those of Accelerator. Raises InputError for options that would
        do the run's work.
        """
        _check(
            options.get("mixed_precision"), options.get("gradient_accumulation_steps")
        )
        self._run = run
        # If Accelerate knew of the replicas, it would form its own group, and a joining
        # replica would wait for it forever.
        with as_if_alone({DEVICE: str(run.device)}):
            super().__init__(**options)
        if self.distributed_type is not DistributedType.NO:
            allowed = "the first thing of Accelerate in a process"
            raise InputError("CoadaptAccelerator", "made after an Accelerator", allowed)
        # Once more: environment variables of `accelerate launch`, and plugins, set them
        # as well.
        _check(self.mixed_precision, self.gradient_accumulation_steps)

    @property
    def num_processes(self) -> int:
        return self._run.num_replicas

    @property
    def process_index(self) -> int:
        return self._run.rank

    @property
    def is_main_process(self) -> bool:
        return self._run.is_first

    @property
    def is_local_main_process(self) -> bool:
        return self._run.is_first

    @property
    def is_last_process(self) -> bool:
        return self._run.rank == self._run.num_replicas - 1

    def print(self, *args: object, **kwargs: object) -> None:
        if self._run.is_first:
            super().print(*args, **kwargs)

    def on_main_process(self, function: Callable[..., R]) -> Callable[..., R | None]:
        """Return `function` so that only the first replica runs it, whichever replica
        that is at the call.
        """

        @functools.wraps(function)
        def on_first(*args: object, **kwargs: object) -> R | None:
            return function(*args, **kwargs) if self._run.is_first else None

        return on_first


def _check(precision: object, accumulation: object) -> None:
    """Raise InputError for what would do the run's work a second time.

    By more than one accumulation step `backward` divides the loss, though the run
    weighs each pass already.
    """
    if precision == "fp16":
        allowed = "no or bf16; or torch.autocast with run.prepare_scaler"
        raise InputError("mixed_precision", "fp16", allowed)
    if accumulation not in (None, 1):
        allowed = "1; the run accumulates: run.loader(max_atomic=...)"
        raise InputError("gradient_accumulation_steps", accumulation, allowed)


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise InputError(f"accelerator.{name}", "a call", instead)

    return refuse


for _names, _instead in (
    (
        ("prepare", "prepare_model", "prepare_optimizer"),
        "run.prepare(model, optimizer)",
    ),
    (("prepare_data_loader",), "run.loader(dataset, batch_size=...)"),
    (("prepare_scheduler",), "run.prepare_scheduler(scheduler)"),
    (("accumulate", "no_sync"), "run.loader(..., max_atomic=...)"),
    (("gather", "gather_for_metrics", "reduce"), "run.sum or run.mean, and totals()"),
    (("wait_for_everyone",), "nothing: run.epochs keeps the replicas together"),
    (
        ("save_state", "load_state", "register_for_checkpointing"),
        "run.register(name, item)",
    ),
    (("init_trackers", "log"), "a tracker of coadapt.train.integrations"),
):
    for _name in _names:
        setattr(CoadaptAccelerator, _name, _refused(_name, _instead))
