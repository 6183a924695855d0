"""The directory that a live scheduler keeps: where it is, and the files in it that the
other verbs read.
"""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import typer

from coadapt.cli.local_socket import LocalConnection
from coadapt.core.config import SchedulerConfig
from coadapt.durable import write_whole
from coadapt.model import InputError

ENV_STATE = "COADAPT_STATE"
SETTINGS = "settings.json"
SOCKET_TIMEOUT_S = 1.0
PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help=f"State directory of the scheduler; else ${ENV_STATE}, else "
        f"~/.local/state/coadapt.",
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
    def old_reserve(self) -> Path:
        """Room that earlier versions kept for the journal in a file of its own."""
        return self.path / "journal.reserve"

    @property
    def studies(self) -> Path:
        """Optuna's storage of the studies; no file before the first search."""
        return self.path / "studies.sqlite"

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

    def prepare(self) -> None:
        """Make the directory if it is not there. Raises InputError unless it is fit to
        hold secrets.

        An empty directory becomes private whatever the umask made it: nothing of
        another user is in it. So does the address that a version before this one wrote
        under a umask of 002.
        """
        make_private(self.path)
        check_own(self.path, "--state")
        if os.path.lexists(self.connection):
            check_plain(self.connection)
            _close_to_others(self.connection)

    def replaced_journals(self) -> list[Path]:
        """Return the journals that `coadapt restore` has replaced, the oldest first."""
        found = self.path.glob(f"{self.journal.name}.replaced-*[0-9]")
        return sorted(found)

    def write_connection(self, url: str, policy: str) -> None:
        """Write where the scheduler of this process answers, for the verbs and for the
        next run.
        """
        address = {"url": url, "pid": os.getpid(), "policy": policy}
        write_whole(self.connection, json.dumps(address), mode=PRIVATE_FILE)

    def files_with_room(self) -> dict[Path, int]:
        """Return the files that get room on the disk before they need it, and how many
        bytes.
        """
        from coadapt.runtime.disk_reserve import INDEX_ROOM, JOURNAL_ROOM

        rooms = ((self.journal, JOURNAL_ROOM), (self.index, INDEX_ROOM))
        return {
            path.with_name(path.name + suffix): num_bytes
            for path, room in rooms
            for suffix, num_bytes in room.items()
        }

    def first_config(self) -> SchedulerConfig:
        """Return the settings that the journal here begins under; later ones are events
        in it.

        Earlier versions kept one setting for the directory's life, in a file of its
        own.
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
        """Return `url` and `policy` of the scheduler that runs, or ran, here; None if
        none ever did.

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
        """Be the only scheduler on this directory; the kernel frees the lock when this
        process dies.

        Raises InputError if there is another, or where something else stands in place
        of a file of ours:
        opening a pipe waits for a process at its other end.
        """
        plain = (
            self.token,
            self.job_key,
            self.journal,
            self.old_reserve,
            self.index,
            self.lock,
        )
        for file in (*plain, self.path / SETTINGS):
            check_plain(file)
        with _private_file(self.lock) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._taken("") from None
            if self.is_listened_on():
                raise self._taken(", although its lock file was removed")
            yield

    def _taken(self, but: str) -> InputError:
        url = (self.last_run() or {}).get("url", "an unknown address")
        allowed = f"a directory without a running scheduler; one answers at {url}{but}"
        return InputError("--state", str(self.path), allowed)

    def is_listened_on(self) -> bool:
        """Return whether a scheduler has the socket: removing the lock file does not
        end it.

        (To lock the journal itself would keep its readers out, or be at odds with the
        database's own locks where a network file system makes one kind of locks out of
        the other.)
        """
        try:
            LocalConnection(self.socket, SOCKET_TIMEOUT_S).connect()
        except TimeoutError:
            return True  # the queue of connections is full: it is busy or stopped
        except OSError:
            return False
        return True


def check_own(path: Path, field: str) -> None:
    """Raise InputError unless `path` belongs to this user, and no other user may write
    to it.

    A user who can write to the state directory decides where the verbs send the token,
    and what jobs run.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(
            field, str(path), f"a path that you can read ({error.strerror})"
        ) from None
    if status.st_uid != os.geteuid():
        raise InputError(
            field, f"{path} of user {status.st_uid}", "a path that you own"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & WRITABLE_BY_OTHERS:
        allowed = f"one that only you may write: chmod go-w {path}"
        raise InputError(field, f"{path} with mode {mode:04o}", allowed)


def make_private(path: Path) -> None:
    """Make the directory `path` and those above it, for this user only, whatever the
    umask.

    One that is there stays as it is, unless it is empty: then it becomes private.
    Raises OSError.
    """
    if path.is_dir():
        if not any(path.iterdir()):
            _close_to_others(path)
        return
    if path.exists():
        raise InputError("--state", str(path), "a directory, or a path that is free")
    if not path.parent.is_dir():
        make_private(path.parent)
    path.mkdir(mode=PRIVATE_DIR)
    path.chmod(PRIVATE_DIR)


def _close_to_others(path: Path) -> None:
    """Take from others the right to write `path`, if it is this user's own."""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid() and mode & WRITABLE_BY_OTHERS:
        path.chmod(mode & ~WRITABLE_BY_OTHERS)


@contextmanager
def _private_file(path: Path) -> Iterator[IO[str]]:
    """Open `path` for appending; it is this user's only, whatever the umask and an
    earlier version made.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE_FILE)
    with open(handle, "a") as file:
        if os.fstat(handle).st_uid == os.geteuid():
            os.fchmod(handle, PRIVATE_FILE)
        yield file


def check_plain(path: Path) -> None:
    """Raise InputError if something else than a plain file stands at `path`."""
    if path.exists() and not path.is_file():
        raise InputError(
            "--state", str(path), "a regular file, or nothing; remove what is there now"
        )


def find_state_dir(given: Path | None) -> StateDir:
    """Return the directory that was given, else the environment's, else the user's
    own.
    """
    chosen = given or os.environ.get(ENV_STATE)
    if chosen is None:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        chosen = Path(home) / "coadapt"
    return StateDir(Path(chosen).expanduser().absolute())
