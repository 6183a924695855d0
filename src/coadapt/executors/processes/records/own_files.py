"""The files below `<state>/jobs/JOB`, where the job may write, remove and replace
anything at any moment.

The scheduler and launchers use only this class for them. A read never raises and never
waits: an unreadable file counts as missing. A write raises OSError that names the path,
which ends that job.
"""

# The records that the scheduler and a launcher depend on are elsewhere
# (`generation_dir.py`, below `<state>/runs/JOB`). Here are a job's checkpoints, its
# logs, and the notes by which its replicas and its launcher communicate. Without these
# notes a job cannot change in place, and its launcher does not know which processes
# listen for SIGTERM. The job's start, stop and end do not depend on them.
#
# A path may be missing, or be a file, a folder, a pipe without a writer, or a link to a
# device. So files are opened without waiting, and only plain files are read.

import errno
import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from coadapt.durable import write_whole
from coadapt.model.wire import to_json

# Job directories contain logs, checkpoints and the user's environment, so only their
# owner can read them.
PRIVATE_DIR = 0o700
PRIVATE_FILE = 0o600
# An order of 100,000 replicas is some 50 MB.
FILE_BYTES_MAX = 256 * 1024 * 1024
# A note of a listener is a word or two.
NOTE_BYTES_MAX = 256

KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a link to nothing"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """A job's own files. job: `<state>/jobs/JOB`. number: the generation whose launcher
    leads, and whose replicas' notes are used.
    """

    job: Path
    number: int

    @property
    def folder(self) -> Path:
        return self.job / "generations" / str(self.number)

    @property
    def control(self) -> Path:
        """The directory of model/rescale.py."""
        return self.folder / "rescale"

    @property
    def listeners(self) -> Path:
        """The directory of listeners.py."""
        return self.folder / "listeners"

    def make(self) -> None:
        """Make the folders that are missing. Raises OSError if a path is something
        else.
        """
        above = (self.job.parent, self.job, *_parts(self.job))
        for folder in (*above, self.folder.parent, self.folder, self.listeners):
            make_folder(folder)

    def damage(self) -> str:
        """Return in words the damage to the job's directory, "" if it is as it was
        made.
        """
        parts = (self.folder.parent, self.folder, self.listeners)
        return damage_of(self.job) or _first_damaged(self.job, parts)

    def has(self, note: str) -> bool:
        """Return whether a note of a change in place exists."""
        return is_there(self.control / note)

    def write(self, note: str, value: object) -> None:
        """Write a note of a change in place. Raises OSError."""
        text = json.dumps(to_json(value))
        write_whole(self.control / note, text, mode=PRIVATE_FILE)

    def create(self, note: str) -> bool:
        """Create a note. Return whether this call created it, because it was not there
        before.
        """
        try:
            (self.control / note).touch(PRIVATE_FILE, exist_ok=False)
        except OSError:
            return False
        return True

    def remove(self, note: str) -> None:
        """Remove a note of a change in place, if possible."""
        try:
            (self.control / note).unlink()
        except OSError:
            return

    def said(self) -> dict[str, tuple[int, str]]:
        """Return the last note of each listener and its time (ns since 1970), by the
        name of its file.
        """
        found = {}
        for name in names_in(self.listeners):
            path = self.listeners / name
            text = read_plain(path, NOTE_BYTES_MAX)
            if text is not None:
                found[name] = (_changed_at(path), text.decode(errors="replace"))
        return found


def damage_of(job: Path) -> str:
    """Return in words the damage to a job's directory, "" if its parts are directories.

    A missing state directory is not damage by the job: it was moved away, or its disk
    does not respond.
    """
    return _first_damaged(job, (job, *_parts(job)))


def _first_damaged(job: Path, folders: Iterable[Path]) -> str:
    for path in folders:
        found = kind_of(path)
        if found == "":
            state_dir = job.parent.parent
            return f"{path} was removed" if path_is_dir(state_dir) else ""
        if not path_is_dir(path):
            return f"{path} was replaced by {found}"
    return ""


def make_folder(folder: Path) -> None:
    """Make a directory unless it is there. Raises OSError if its path is something
    else.
    """
    try:
        folder.mkdir(mode=PRIVATE_DIR)
    except FileExistsError:
        if path_is_dir(folder):
            return
        what = f"{kind_of(folder)} where a directory of the job belongs"
        raise NotADirectoryError(errno.ENOTDIR, what, str(folder)) from None


def kind_of(path: Path) -> str:
    """Return in words the kind of file at `path`, without following a link; "" if there
    is none.
    """
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"something that cannot be looked at ({error.strerror})"
    return next((words for is_kind, words in KINDS if is_kind(mode)), "something else")


def path_is_dir(path: Path) -> bool:
    """Return whether `path` is a directory or a link to one."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError:
        return False


def is_there(path: Path) -> bool:
    """Return whether there is anything at `path`."""
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder in order, none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Return a descriptor of a plain file, None if the path is missing or something
    else. It never waits.
    """
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def read_plain(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes | None:
    """Return the content of a plain file, None if the path is missing, something else
    or too large.
    """
    handle = open_plain(path)
    if handle is None:
        return None
    with open(handle, "rb") as file:
        if os.fstat(handle).st_size > bytes_max:
            return None
        try:
            return file.read(bytes_max)
        except OSError:
            return None


def _parts(job: Path) -> tuple[Path, ...]:
    """Return the directories that a job always has."""
    return (job / "checkpoints", job / "logs")


def _changed_at(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0
