"""How a run follows the scheduler to another set of replicas. Today: save, end, and be started again."""

import logging
from typing import Protocol

from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.train.saver import Saver
from coadapt.train.session import Session
from coadapt.train.stop import StopSignal, exit_after

logger = logging.getLogger(__name__)

# Interpreter and process group have been seen to hang at the end of a replica; its state is safe by then.
EXIT_GRACE_S = 5.0


class Rescaler(Protocol):
    """Carries out a change that all replicas have agreed on, between two steps."""

    def requested(self) -> bool:
        """Return whether this replica was asked to change or to stop."""
        ...

    def rescale(self) -> None:
        """Return when training may go on in a new group, or never, by SystemExit.

        In place, the session then has its new `group` and `batch`, and the model was rewrapped; the loader
        goes on from the next step by itself.
        """
        ...


class CheckpointRescaler:
    """Saves, and ends the process with EXIT_STOPPED; the executor starts the next generation from there."""

    def __init__(self, session: Session, saver: Saver, stop: StopSignal) -> None:
        self._session = session
        self._saver = saver
        self._stop = stop

    def requested(self) -> bool:
        return self._stop.requested

    def rescale(self) -> None:
        self._saver.save(stopped=True)
        self._stop.exit_code = EXIT_STOPPED
        logger.info("stopped at step %d, state saved", self._session.progress.step)
        exit_after(EXIT_GRACE_S, EXIT_STOPPED)
        raise SystemExit(EXIT_STOPPED)
