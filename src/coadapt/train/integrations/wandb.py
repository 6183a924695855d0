"""Weights & Biases: one run, whose charts may stand over step or progress, whole across
rescales.
"""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coadapt.train.integrations.tracker import Sink, Tracker
from coadapt.train.run import Run

if TYPE_CHECKING:
    import wandb

__all__ = ["track"]

# What wandb has not written yet is lost with a process that is killed; its own default
# is 15 s.
FLUSH_EVERY = "x_transaction_log_flush_interval"
FLUSH_EVERY_S = 1.0


def track(run: Run, **options: object) -> Tracker:
    """Return a tracker that writes to one run of Weights & Biases; `options` go to
    `wandb.init`.
    """
    return Tracker(run, WandbSink(options))


class WandbSink(Sink):
    """A W&B run with an id that coadapt chose. The run is resumed by this id, even if
    runs are synced later.
    """

    name = "wandb"

    def __init__(self, options: dict[str, object]) -> None:
        self._options = options
        self._wandb: wandb.Run | None = None

    def open(self, run_id: str) -> str:
        """Resume the run. Charts have progress as their x-axis; `step` is there to
        choose.
        """
        import wandb

        run_id = run_id or secrets.token_hex(4)
        settings = wandb.Settings()
        if hasattr(settings, FLUSH_EVERY):
            setattr(settings, FLUSH_EVERY, FLUSH_EVERY_S)
        options = {
            "settings": settings,
            # A run that the script began itself goes on beside this one.
            **({} if wandb.run is None else {"reinit": "create_new"}),
            **self._options,
            "id": run_id,
            "resume": "allow",
        }
        self._wandb = wandb.init(**options)
        self._wandb.define_metric("*", step_metric="progress")
        return run_id

    def write(self, step: int, progress: float, figures: Mapping[str, float]) -> None:
        assert self._wandb is not None
        self._wandb.log({**figures, "progress": progress, "step": step})

    def close(self) -> None:
        if self._wandb is not None:
            self._wandb.finish()
