"""One process's interface to the notes by which replicas get the order for their next
generation and report their progress.
"""

from typing import Protocol

from coadapt.model.rescale import RescaleOrder
from coadapt.train.env import TrainConfig
from coadapt.train.rescale.control_client import ControlClient
from coadapt.train.rescale.control_dir import ControlDir


class ControlChannel(Protocol):
    """The notes of model/rescale.py, by which a launcher and the replicas of a job
    communicate.

    A read may return the state of a moment ago, because it happens after every step.
    now: read the state of this moment.
    """

    def order(self, *, now: bool = False) -> RescaleOrder | None:
        """Return the newest order, None if there never was one or it was taken back."""
        ...

    def announce(self) -> None:
        """Announce that these replicas can rescale in place."""
        ...

    def publish_store(self, generation: int, host: str, port: int) -> None: ...

    def store_address(
        self, generation: int, *, now: bool = False
    ) -> tuple[str, int] | None:
        """Return host and port of the store of `generation`, None while there is
        none.
        """
        ...

    def mark_ready(self, member: str) -> None: ...

    def ready(self, member: str) -> bool: ...

    def claim(self, generation: int) -> bool:
        """Return whether the order stands from now on; False if it was taken back
        before. Ask once.
        """
        ...

    def mark_begun(self, generation: int) -> None: ...

    def mark_done(self, generation: int) -> None: ...


def find_channel(config: TrainConfig) -> ControlChannel | None:
    """Return the channel named in the environment, None if there is none. Without a
    channel a replica can only be stopped.
    """
    if config.control is not None:
        return ControlClient(config.control.url, config.control.token)
    return None if config.rescale_dir is None else ControlDir(config.rescale_dir)
