"""TensorBoard: one series per figure over steps, and one over progress, whole across
rescales.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coadapt.train.integrations.tracker import BY_PROGRESS, Sink, Tracker
from coadapt.train.run import Run

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

__all__ = ["track"]


def track(run: Run, folder: str | Path) -> Tracker:
    """Return a tracker that writes event files to `folder`."""
    return Tracker(run, TensorBoardSink(Path(folder)))


class TensorBoardSink(Sink):
    """Each process writes a file of its own; TensorBoard reads a folder as one run."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None

    def open(self, run_id: str) -> str:
        """Begin a new event file in the folder, which is the run."""
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(self._folder))
        return run_id or str(self._folder)

    def write(self, step: int, progress: float, figures: Mapping[str, float]) -> None:
        assert self._writer is not None
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
            self._writer.add_scalar(f"{name}{BY_PROGRESS}", value, round(progress))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
