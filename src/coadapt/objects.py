"""Objects below a URL of an object store, by fsspec: written whole, read with
checksums, listed, removed.

fsspec and the driver of a scheme (s3fs, gcsfs, …) are imported when a URL asks for
them.
"""

# What is taken for granted of a store, and what is not. Taken: an object that was
# written is there for a reader that asks for it by its name. Not: that it can be
# renamed, that a listing knows it at once, or that one whose writer died is absent. So
# nothing here renames, names are never used twice for different contents (but for one
# that is a hint only), and readers compare checksums.
#
# fsspec remembers listings, for speed. Here the newest is wanted each time, so it is
# asked to remove them.

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from coadapt.model.checkpoint_url import check_checkpoint_url, scheme_of
from coadapt.model.errors import InputError

PIECE_BYTES = 4 * 1024 * 1024
EXTRA = "pip install 'coadapt[objects]'"
# What users of these would look for; fsspec knows of more.
SCHEMES_SHOWN = "s3, gs, abfs, memory, file"


class HashingFile:
    """Counts and hashes what is written on its way into a file; torch asks for no more
    than this.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._length = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self._file.write(data)
        size = memoryview(data).nbytes
        self._length += size
        return size

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        """Nothing: a store has the object when it is closed."""

    def close(self) -> None:
        """Do nothing: the opener of the file closes it."""

    def digest(self) -> str:
        """Return the SHA-256 of all that was written, in hexadecimal."""
        return self._hash.hexdigest()


class ObjectFolder:
    """The objects whose names begin with a URL. Any store's error is an OSError or of
    its own making.
    """

    def __init__(self, url: str, field: str = "checkpoints") -> None:
        """Raises InputError, about `field`, for a bad URL or scheme, and where a driver
        is missing.
        """
        check_checkpoint_url(url, field)
        self.url = url.rstrip("/")
        self._fs, root = _file_system(self.url, field)
        self._root = str(root).rstrip("/")

    @contextmanager
    def create(self, name: str) -> Iterator[HashingFile]:
        """Write an object piece by piece; it is there once the block has ended, not if
        that raised.
        """
        file = self._fs.open(self._path(name), "wb")
        hashing = HashingFile(file)
        try:
            yield hashing
        except BaseException:
            # To close it would make an object of what there is of it.
            _discard(file)
            raise
        file.close()

    def put(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(name), data)

    def get(self, name: str) -> bytes | None:
        """Return a small object, None if there is none of that name."""
        try:
            return bytes(self._fs.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def fetch(self, name: str, to: Path) -> str | None:
        """Copy an object into a file; return the SHA-256 of what came, None if there is
        no such object.
        """
        try:
            with (
                self._fs.open(self._path(name), "rb") as source,
                open(to, "wb") as file,
            ):
                hashing = HashingFile(file)
                while piece := source.read(PIECE_BYTES):
                    hashing.write(piece)
        except FileNotFoundError:
            return None
        return hashing.digest()

    def names(self) -> list[str]:
        """Return what is directly below the URL, objects and folders of them alike, in
        order.
        """
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        return sorted({str(path).rstrip("/").rpartition("/")[2] for path in found})

    def remove(self, name: str) -> None:
        """Remove an object, or all objects of a folder; nothing where there is none."""
        try:
            self._fs.rm(self._path(name), recursive=True)
        except FileNotFoundError:
            return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def check_scheme(url: str, field: str) -> None:
    """Raise InputError, about `field`, for a scheme that fsspec does not know, where
    there is one.
    """
    try:
        from fsspec import available_protocols
    except ModuleNotFoundError:
        return
    if scheme_of(url) not in available_protocols():
        raise InputError(field, url, f"a scheme that fsspec knows: {SCHEMES_SHOWN}, …")


def _file_system(url: str, field: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise InputError(
            field, url, f"object stores once fsspec is installed: {EXTRA}"
        ) from None
    check_scheme(url, field)
    try:
        return url_to_fs(url)  # type: ignore[no-any-return]  # fsspec has no types
    except (ImportError, ValueError) as error:
        raise InputError(
            field, url, f"it once its driver is installed: {error!s:.200}"
        ) from None


def _discard(file: Any) -> None:
    """Discard what was written of an object so far, if its store can."""
    # Without a manifest the object is not read, and the next sweep deletes it.
    with suppress(Exception):
        file.discard()
    if hasattr(file, "buffer"):
        file.closed = (
            True  # else the end of the process would write what there is of it
        )
