"""One run of an experiment tracker for all of a training run, however often its
replicas change.
"""

import atexit
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

from torch import Tensor

from coadapt.durable import write_whole
from coadapt.train.run import Run

__all__ = ["Sink", "Tracker"]

logger = logging.getLogger(__name__)

# Suffix of the series whose x-axis is progress (scale-invariant samples), beside the
# one over steps.
BY_PROGRESS = "_by_progress"


class Sink(Protocol):
    """A service to which figures are written: TensorBoard, Weights & Biases, MLflow."""

    name: str

    def open(self, run_id: str) -> str:
        """Continue the tracker run `run_id`, or begin one if it is empty. Return its
        id.
        """
        ...

    def write(self, step: int, progress: float, figures: Mapping[str, float]) -> None:
        """Write figures durably: they must survive a kill of this process."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class SeriesLedger:
    """What must outlive a process: the tracker's run, and up to which step each figure
    was written.
    """

    run_id: str = ""
    written: dict[str, int] = field(default_factory=dict)


class Tracker:
    """Writes figures at the present step and progress. Only the first replica writes,
    and it writes each step once.
    """

    def __init__(self, run: Run, sink: Sink) -> None:
        self._run = run
        self._sink = sink
        folder = run.checkpoint_dir
        # Beside the checkpoints, not in them: one older than the last figures must not
        # bring them twice.
        self._file = None if folder is None else folder / f"{sink.name}.json"
        self._ledger: SeriesLedger | None = None
        self._before: dict[str, int] = {}
        self._warned = False
        # Before the run's own handler, which ends a stopped process at once.
        atexit.register(self.close)

    def log(self, **figures: float | Tensor) -> None:
        """Write figures. Steps that an earlier process has already written are left
        out.
        """
        if not self._run.is_first:
            # this replica may have been the first one before a change in place
            self.close()
            return
        ledger = self._ledger or self._open()
        step = self._run.progress.step
        progress = self._run.progress.progress
        new = {
            name: float(value.detach() if isinstance(value, Tensor) else value)
            for name, value in figures.items()
            if step > self._before.get(name, -1)
        }
        if not new:
            return
        ledger.written.update(dict.fromkeys(new, step))
        # First noted, then written: a process that is killed in between loses one
        # figure, and doubles none.
        self._keep(ledger)
        self._sink.write(step, progress, new)

    def close(self) -> None:
        """Close the tracker's run. A later `log` continues it."""
        if self._ledger is not None:
            self._sink.close()
            self._ledger = None

    def _open(self) -> SeriesLedger:
        ledger = SeriesLedger()
        if self._file is not None and self._file.exists():
            ledger = SeriesLedger(**json.loads(self._file.read_text()))
        self._before = dict(ledger.written)
        ledger.run_id = self._sink.open(ledger.run_id)
        self._ledger = ledger
        self._keep(ledger)
        return ledger

    def _keep(self, ledger: SeriesLedger) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, json.dumps(asdict(ledger)))
        except OSError as error:
            if not self._warned:
                logger.warning(
                    "%s was not written: %s; training goes on, and a restart may write "
                    "figures twice",
                    self._file.name,
                    error,
                )
            self._warned = True
