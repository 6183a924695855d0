"""What an executor knows of the scheduler that it serves."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from coadapt.model import JobId
from coadapt.runtime.ports import LiveExecutor

MEBIBYTE = 1024 * 1024


def _no_token(_job: JobId) -> str:
    return ""


def _none() -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUse:
    """Slots of all jobs together. held: that they hold, or are to hold by the present
    plan. useful: of which each is worth much of a job's first one, so that it is worth
    borrowing. quota: see model.tenant.EVERYBODY.
    """

    held: int = 0
    useful: int = 0
    quota: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the scheduler gives to every executor.

    state_dir: the scheduler's state directory, absolute; an executor keeps its files
    below it. url: of the API, for the replicas' reports. job_token: returns the token
    with which a job authenticates there. stop_grace_s: seconds that replicas get to
    save their state before they are killed. now: the time of an event, in seconds since
    1970. wanted_slots: the number of slots that jobs wait for beyond the free ones;
    callable from any thread. slot_use: what jobs do with the slots; callable from any
    thread.
    """

    state_dir: Path
    url: str = ""
    job_token: Callable[[JobId], str] = _no_token
    stop_grace_s: float = 30.0
    now: Callable[[], float] = time.time
    wanted_slots: Callable[[], int] = _none
    slot_use: Callable[[], SlotUse] = SlotUse

    def reached_at(self, address: str) -> "Host":
        """Return the same with the URL that other machines use: `address`, where the
        API listens on all.
        """
        parts = urlsplit(self.url)
        everywhere = parts.hostname == "0.0.0.0"  # compared
        return (
            replace(self, url=f"{parts.scheme}://{address}:{parts.port}")
            if everywhere
            else self
        )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the API."""
        return (urlsplit(self.url).hostname or "").startswith(
            ("127.", "::1", "localhost")
        )

    def __post_init__(self) -> None:
        if not self.state_dir.is_absolute():
            raise ValueError(f"Host.state_dir must be absolute, got {self.state_dir}")
        if self.stop_grace_s < 0:
            raise ValueError(f"Host.stop_grace_s must be >= 0, got {self.stop_grace_s}")


Connect = Callable[[Host], LiveExecutor]


@runtime_checkable
class Examinable(Protocol):
    """A `Connect` that can find out before whether its engine would give what its
    options ask for.
    """

    def examine(self, stop_grace_s: float) -> None:
        """Raise InputError, in the engine's own words, where it would not. Nothing is
        asked for.
        """
        ...
