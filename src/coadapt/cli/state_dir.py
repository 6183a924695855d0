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

from coadapt.cli.local_socket import LocalConnection
from coadapt.core.config import SchedulerConfig
from coadapt.model import InputError

ENV_STATE = "COADAPT_STATE"
SETTINGS = "settings.json"
SOCKET_TIMEOUT_S = 1.0

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help=f"State directory of the scheduler; else ${ENV_STATE}, else ~/.local/state/coadapt.",
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

        file = self.path / SETTINGS
        try:
            settings = json.loads(file.read_text())
        except FileNotFoundError:
            return SchedulerConfig()
        except (OSError, ValueError):
            raise InputError(
                "--state", str(file), "the settings that Coadapt wrote there"
            ) from None
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
        check_plain(self.connection)
        try:
            connection = json.loads(self.connection.read_text())
            return {key: str(connection[key]) for key in ("url", "policy")}
        except (OSError, ValueError, KeyError, TypeError):
            allowed = (
                "a file that `coadapt up` wrote; remove it and start the scheduler"
            )
            raise InputError("--state", str(self.connection), allowed) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only scheduler on this directory; the kernel frees the lock when this process dies.

        Raises InputError if there is another, or where something else stands in place of a file of ours:
        whoever opens a pipe waits for somebody at its other end.
        """
        plain = (
            self.token,
            self.job_key,
            self.journal,
            self.reserve,
            self.index,
            self.lock,
        )
        for file in (*plain, self.path / SETTINGS):
            check_plain(file)
        with self.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken("") from None
            if self.is_listened_on():
                raise self._taken(", although somebody removed its lock file")
            yield

    def _taken(self, but: str) -> InputError:
        url = (self.last_run() or {}).get("url", "an unknown address")
        allowed = f"a directory without a running scheduler; one answers at {url}{but}"
        return InputError("--state", str(self.path), allowed)

    def is_listened_on(self) -> bool:
        """Return whether a scheduler has the socket: who removes the lock file does not end it.

        (To lock the journal itself would keep its readers out, or be at odds with the database's own locks
        where a network file system makes one kind of locks out of the other.)
        """
        try:
            LocalConnection(self.socket, SOCKET_TIMEOUT_S).connect()
        except TimeoutError:
            return True  # so many wait that it takes nobody in: it is busy or stopped
        except OSError:
            return False
        return True


def check_own(path: Path, field: str) -> None:
    """Raise InputError unless `path` is this user's own, and nobody else may write to it.

    Whoever writes to the state directory says where the verbs send the token, and what jobs run.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(
            field, str(path), f"a path that you can read ({error.strerror})"
        ) from None
    if status.st_uid != os.geteuid():
        raise InputError(field, f"{path} of user {status.st_uid}", "a path of your own")
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        allowed = f"one that only you may write: chmod go-w {path}"
        raise InputError(field, f"{path} with mode {mode:04o}", allowed)


def check_plain(path: Path) -> None:
    """Raise InputError if something else than a plain file stands at `path`."""
    if path.exists() and not path.is_file():
        raise InputError(
            "--state", str(path), "a plain file there, or none: remove what is no file"
        )


def find_state_dir(given: Path | None) -> StateDir:
    """Return the directory that was given, else the environment's, else the user's own."""
    chosen = given or os.environ.get(ENV_STATE)
    if chosen is None:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        chosen = Path(home) / "coadapt"
    return StateDir(Path(chosen).expanduser().absolute())
