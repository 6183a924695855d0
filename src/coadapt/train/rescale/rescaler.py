"""How a run changes to another set of replicas. By default it saves, ends and is
started again.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from coadapt.model.contract_env import EXIT_STOPPED
from coadapt.train.checkpoint.saver import Saver
from coadapt.train.exits.stop import EXIT_GRACE_S, EXIT_UNSAVED, StopSignal, exit_after
from coadapt.train.rescale.pause import Pause
from coadapt.train.session import Session
from coadapt.train.wrappers.model import ElasticModel
from coadapt.train.wrappers.trained import TrainedPair

logger = logging.getLogger(__name__)


class Rescaler(Protocol):
    """Carries out, between two steps, the stops and rescales that all replicas have
    agreed on.
    """

    pairs: list[TrainedPair]
    pause: Pause | None
    # Fetches a pass of training data and drops it.
    fetch: Callable[[], None]

    @property
    def models(self) -> list[ElasticModel]:
        """Return the models of all pairs."""
        ...

    def requested(self) -> bool:
        """Return whether this replica was asked to stop."""
        ...

    def stop(self) -> None:
        """Save the state and end the process by SystemExit. Never returns."""
        ...

    def wanted(self) -> int:
        """Return the generation to which all replicas could rescale now, else 0. Every
        replica calls this before each consensus, but only rank 0's answer counts.
        """
        ...

    def rescale(self, generation: int) -> None:
        """Change to the group of `generation`. Raises SystemExit if this replica is not
        a member of it.
        """
        ...

    def begin(self) -> bool:
        """Prepare for the beginning of training. Return whether the state came from
        replicas that already train.
        """
        ...

    def stepped(self) -> None:
        """Note that a step has ended."""
        ...

    @property
    def in_first_step(self) -> bool:
        """Return whether no step has ended since replicas last changed in place."""
        ...


class CheckpointRescaler:
    """Saves, and ends the process with EXIT_STOPPED. The executor starts the next
    generation from the saved state.
    """

    def __init__(self, session: Session, saver: Saver, stop: StopSignal) -> None:
        self.pairs: list[TrainedPair] = []
        self.fetch: Callable[[], None] = lambda: None
        self.pause: Pause | None = None
        self._session = session
        self._saver = saver
        self._stop = stop

    @property
    def models(self) -> list[ElasticModel]:
        return [pair.model for pair in self.pairs]

    def requested(self) -> bool:
        return self._stop.requested

    def stop(self) -> None:
        step = self._session.progress.step
        try:
            self._saver.save(stopped=True)
        except OSError as error:
            if self._session.group.rank == 0:
                logger.error(  # the cause is in the text
                    "stopped at step %d, and its state could not be saved: %s; the "
                    "next start continues from the last checkpoint",
                    step,
                    error,
                )
            leave(EXIT_UNSAVED)
        self._stop.saved()
        logger.info("stopped at step %d, state saved", step)
        leave(EXIT_STOPPED)

    def wanted(self) -> int:
        return 0

    def rescale(self, generation: int) -> None:
        raise RuntimeError(
            f"generation {generation} was agreed on, but was not offered"
        )

    def begin(self) -> bool:
        return False

    def stepped(self) -> None:
        return

    @property
    def in_first_step(self) -> bool:
        return False


def leave(code: int) -> None:
    """End this process with `code`, by SystemExit, or by force if that takes too
    long.
    """
    exit_after(EXIT_GRACE_S, code)
    raise SystemExit(code)
