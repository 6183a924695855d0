"""Files that are there whole or not at all, whatever ends the process or the machine.
Below all floors.
"""

# A reader must never see half a file. After a power cut the old file or the new one may
# be there, but not an empty one. So: write to another file in the same folder (a rename
# across file systems copies); flush this file to the disk; rename it over the old one,
# which is atomic; flush the folder, which has the new name. Without the first flush
# some file systems make the rename durable before the content (a file of length 0 after
# a crash). Without the second one the old file may be back, which matters if the write
# was confirmed to a user. A flush takes 5 to 50 ms on a disk. It is left out for a file
# that means nothing after the process that wrote it.

import os
import threading
from pathlib import Path

# As `open` creates files; the umask takes away from it.
DEFAULT_MODE = 0o666


def write_whole(
    path: Path, data: str | bytes, *, mode: int | None = None, durable: bool = True
) -> None:
    """Make `data` (text as UTF-8) the content of `path`, in one instant for all
    readers.

    mode: of the file, whatever the umask; None: as `open` would make it. durable: it is
    on the disk when this returns. Raises OSError; then the file is as it was, and
    nothing is left beside it.
    """
    beside = beside_of(path)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        handle = os.open(beside, flags, DEFAULT_MODE if mode is None else mode)
        with open(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(data.encode() if isinstance(data, str) else data)
        put_in_place(beside, path, durable=durable)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def put_in_place(beside: Path, path: Path, *, durable: bool = True) -> None:
    """Rename the file or folder `beside`, whose content is complete, to `path`; a file
    there is replaced.

    durable: it is on the disk when this returns; of a folder, what is in it must be
    already. Raises OSError.
    """
    if durable:
        sync(beside)
    os.replace(beside, path)
    if durable:
        sync(path.parent)


def beside_of(path: Path) -> Path:
    """Return a name for writing what is to become `path`: hidden, in its folder, this
    thread's own.
    """
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.new")


def sync(path: Path) -> None:
    """Flush what `path` has, of a folder the names in it, to the disk. Raises
    OSError.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
