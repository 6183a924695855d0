"""The directory that a live scheduler keeps: where it is, and the files in it that the other verbs read."""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coadapt.core.config import SchedulerConfig
from coadapt.model import InputError

ENV_STATE = "COADAPT_STATE"

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help=f"State directory of the scheduler; else ${ENV_STATE}, else ~/.local/state/coadapt."
    ),
]


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths in the state directory, which is absolute."""

    path: Path

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def job_key(self) -> Path:
        """What the jobs' tokens are made with."""
        return self.path / "job-key"

    @property
    def socket(self) -> Path:
        """Where the verbs of this user find the scheduler."""
        return self.path / "socket"

    @property
    def journal(self) -> Path:
        return self.path / "journal.sqlite"

    @property
    def reserve(self) -> Path:
        """Room that is kept for the journal."""
        return self.path / "journal.reserve"

    @property
    def index(self) -> Path:
        """The history of jobs, made from the journal."""
        return self.path / "jobs.sqlite"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def connection(self) -> Path:
        return self.path / "connection.json"

    def first_config(self) -> SchedulerConfig:
        """Return the settings that the journal here begins under; later ones are events in it.

        Earlier versions kept one setting for the directory's life, in a file of its own.
        """
        from coadapt.model.wire import from_json

        file = self.path / "settings.json"
        try:
            settings = json.loads(file.read_text())
        except FileNotFoundError:
            return SchedulerConfig()
        except (OSError, ValueError):
            raise InputError("--state", str(file), "the settings that Coadapt wrote there") from None
        return from_json(SchedulerConfig, settings, "settings.json")

    def last_run(self) -> dict[str, str] | None:
        """Return `url` and `policy` of the scheduler that runs, or ran, here; None if none ever did.

        Raises InputError where others could have written what stands here.
        """
        if not os.path.lexists(self.path):
            return None
        check_own(self.path, "--state")
        if not os.path.lexists(self.connection):
            return None
        check_own(self.connection, "--state")
        try:
            connection = json.loads(self.connection.read_text())
            return {key: str(connection[key]) for key in ("url", "policy")}
        except (OSError, ValueError, KeyError, TypeError):
            allowed = "a file that `coadapt up` wrote; remove it and start the scheduler"
            raise InputError("--state", str(self.connection), allowed) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only scheduler on this directory; the kernel frees the lock when this process dies.

        Raises InputError if there is another.
        """
        with self.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                url = (self.last_run() or {}).get("url", "an unknown address")
                allowed = f"a directory without a running scheduler; one answers at {url}"
                raise InputError("--state", str(self.path), allowed) from None
            yield


def check_own(path: Path, field: str) -> None:
    """Raise InputError unless `path` is this user's own, and nobody else may write to it.

    Whoever writes to the state directory says where the verbs send the token, and what jobs run.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(field, str(path), f"a path that you can read ({error.strerror})") from None
    if status.st_uid != os.geteuid():
        raise InputError(field, f"{path} of user {status.st_uid}", "a path of your own")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        allowed = f"one that only you may write: chmod go-w {path}"
        raise InputError(field, f"{path} with mode {mode:04o}", allowed)


def find_state_dir(given: Path | None) -> StateDir:
    """Return the directory that was given, else the environment's, else the user's own."""
    chosen = given or os.environ.get(ENV_STATE)
    if chosen is None:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        chosen = Path(home) / "coadapt"
    return StateDir(Path(chosen).expanduser().absolute())
