"""What `coadapt check` sees of a run whose loop is another library's: its steps, and
its model in the end.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from coadapt.durable import write_whole
from coadapt.train.checkpoint.store import FORMAT
from coadapt.train.session import Session
from coadapt.train.wrappers.drift import Optimized, Watched
from coadapt.train.wrappers.recorder import SHARES_FILE, StepRecorder
from coadapt.train.wrappers.script_check import Use


class HostedRecord:
    """Rows of one replica. ids: of its samples in the step that begins, empty where
    they are not known.
    """

    def __init__(self, session: Session, folder: Path, num_shares: int) -> None:
        """num_shares: into how many equal parts a pass can be cut, one for each
        replica.
        """
        self.ids: Sequence[int] = ()
        self._session = session
        self._recorder = StepRecorder(session, folder)
        self._recorder.sample_ids = lambda: self.ids
        self._use = Use()
        self._pairs: list[Watched] = []
        self._model: nn.Module | None = None
        write_whole(folder / SHARES_FILE, json.dumps(num_shares), durable=False)

    def begin(self, model: nn.Module, optimizers: Sequence[Optimized]) -> None:
        """Training begins with that."""
        self._model = model
        optimizer = _Together(optimizers)
        self._pairs = [
            Watched(
                name="",
                parameters=lambda: list(model.parameters()),
                optimizer=optimizer,
                use=self._use,
            )
        ]
        register_optimizer_step_post_hook(self._count)
        self._recorder.begin([model], hosted=True)

    def begin_step(self) -> None:
        self._recorder.begin_pass()
        self._recorder.evidence.body_begins()

    def end_step(self) -> bool:
        """Write the step's row, wait as long as the gate says; return whether training
        is to stop.
        """
        return self._recorder.end_step(self._pairs)

    def end(self) -> None:
        """Keep the model as it is now."""
        if self._model is None:
            return
        record = {"contract": str(self._session.config.contract)}
        objects = {"model": self._model.state_dict()}
        self._recorder.end({"format": FORMAT, "run": record, "objects": objects})

    def _count(self, *_: object) -> None:
        self._use.steps += 1


class _Together:
    """The groups of several optimisers."""

    def __init__(self, optimizers: Sequence[Optimized]) -> None:
        self._optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, object]]:
        return [
            group for optimizer in self._optimizers for group in optimizer.param_groups
        ]
