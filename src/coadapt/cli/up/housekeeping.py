"""Forgetting what is too old, now and then, while the scheduler runs."""

import logging
import threading
from collections.abc import Callable, Iterator

from coadapt.model.errors import StoreError
from coadapt.runtime.retention import JOB, LOGS, MEBIBYTE, Step

FIRST_AFTER_S = 300.0  # a start has better things to do
EVERY_S = 3_600.0

logger = logging.getLogger(__name__)


class Housekeeping:
    """Takes the steps of a prune each hour, in a thread of its own; `steps` is given
    the instant (s).
    """

    def __init__(
        self, steps: Callable[[float], Iterator[Step]], now: Callable[[], float]
    ) -> None:
        self._steps = steps
        self._now = now
        self._closed = threading.Event()

    def run(self) -> None:
        """Prune now and then, until `close`."""
        wait_s = FIRST_AFTER_S
        while not self._closed.wait(wait_s):
            self.prune()
            wait_s = EVERY_S

    def prune(self) -> None:
        """Prune once; what cannot be deleted now is left for the next time."""
        taken: list[Step] = []
        try:
            for step in self._steps(self._now()):
                taken.append(step)
                if self._closed.is_set():
                    break
        except (OSError, StoreError) as error:
            logger.warning("old jobs and logs could not be deleted: %s", error)
        if taken:
            logger.info(
                "deleted old data: %d ended jobs, logs of %d more, %.1f MiB "
                "of files, %d events",
                sum(step.what == JOB for step in taken),
                sum(step.what == LOGS for step in taken),
                sum(step.num_bytes for step in taken) / MEBIBYTE,
                sum(step.num_events for step in taken),
            )

    def close(self) -> None:
        self._closed.set()
