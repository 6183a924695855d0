"""The directory through which replicas get the order for their next generation and
report their progress with it.
"""

import json
import logging
from pathlib import Path

from coadapt.durable import write_whole
from coadapt.model.rescale import (
    CAPABLE_FILE,
    ORDER_FILE,
    RescaleOrder,
    begun_file,
    decided_file,
    done_file,
    ready_file,
    store_file,
)
from coadapt.model.wire import from_json

logger = logging.getLogger(__name__)


class ControlDir:
    """One replica's view of the directory. Every file in it is complete or empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = (0, 0)
        self._order: RescaleOrder | None = None

    def order(self, *, now: bool = False) -> RescaleOrder | None:  # noqa: ARG002  # it always is
        """Return the newest order, None if there never was one. If nothing is new, this
        costs one `stat`.
        """
        path = self._folder / ORDER_FILE
        try:
            found = path.stat()
            # Two orders may fall into one tick of the file system's clock, but are
            # never one file.
            changed = (found.st_mtime_ns, found.st_ino)
            if changed != self._seen:
                self._order = from_json(
                    RescaleOrder, json.loads(path.read_text()), str(path)
                )
                self._seen = changed
        except FileNotFoundError:
            return None
        return self._order

    def announce(self) -> None:
        """Announce that these replicas can change in place."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / CAPABLE_FILE).touch()

    def publish_store(self, generation: int, host: str, port: int) -> None:
        # The note is useless after a crash of the machine, so it is not flushed to the
        # disk.
        write_whole(
            self._folder / store_file(generation), f"{host}:{port}", durable=False
        )

    def store_address(
        self,
        generation: int,
        *,
        now: bool = False,  # noqa: ARG002  # it always is
    ) -> tuple[str, int] | None:
        """Return host and port of the store of `generation`, None while there is
        none.
        """
        try:
            host, _, port = (
                (self._folder / store_file(generation)).read_text().rpartition(":")
            )
        except FileNotFoundError:
            return None
        return host, int(port)

    def mark_ready(self, member: str) -> None:
        (self._folder / ready_file(member)).touch()

    def ready(self, member: str) -> bool:
        return (self._folder / ready_file(member)).exists()

    def claim(self, generation: int) -> bool:
        """Return whether the order stands from now on; False if it was taken back
        before. Ask once.
        """
        try:
            (self._folder / decided_file(generation)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def mark_begun(self, generation: int) -> None:
        (self._folder / begun_file(generation)).touch()

    def mark_done(self, generation: int) -> None:
        (self._folder / done_file(generation)).touch()
