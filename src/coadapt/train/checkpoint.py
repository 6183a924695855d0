"""Checkpoints on disk: written beside, flushed, renamed; the name carries the checksum; the last two stay."""

import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch

logger = logging.getLogger(__name__)

FORMAT = 1
KEEP = 2  # the newest, and the one to fall back to
# checkpoint-<number>-<first digits of the SHA-256 of the file>.pt
NAME = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{16})\.pt")
UNFINISHED = ".writing"
DAMAGED = ".damaged"

State = Mapping[str, object]

# A notebook may begin a run while the thread of the one before still writes.
_writing = threading.Lock()


class CheckpointStore:
    """The checkpoints of one job in one folder. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, state: State) -> Path:
        """Write `state` durably and return its file; then drop all but the last `KEEP`.

        `state` must consist of tensors, numbers, text, and lists, tuples and dicts of these: all that torch
        loads without running code.
        """
        with _writing:
            return self._save(state)

    def _save(self, state: State) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = self._files()
        number = files[-1][0] + 1 if files else 1
        beside = self._folder / f"{number:08d}{UNFINISHED}"
        with open(beside, "wb") as file:
            hashing = _HashingFile(file)
            torch.save({"format": FORMAT, **state}, hashing)  # type: ignore[arg-type]  # write and flush suffice
            file.flush()
            os.fsync(file.fileno())
        path = self._folder / f"checkpoint-{number:08d}-{hashing.digest()}.pt"
        beside.rename(path)
        _sync_folder(self._folder)
        self._prune()
        return path

    def newest(self) -> Path | None:
        """Return the newest sound checkpoint, None if there never was one.

        A damaged file is set aside with a warning, so that it does not count among those that are kept.
        Raises RuntimeError if all are damaged. Waits for a write of this process that is under way.
        """
        with _writing:
            return self._newest()

    def _newest(self) -> Path | None:
        for _, path in reversed(self._files()):
            if _sound(path):
                return path
            logger.warning("checkpoint %s is damaged (checksum differs): falling back", path.name)
            path.rename(path.with_suffix(DAMAGED))
        if any(self._folder.glob(f"*{DAMAGED}")):
            raise RuntimeError(f"all checkpoints in {self._folder} are damaged; remove them to start afresh")
        return None

    def _files(self) -> list[tuple[int, Path]]:
        if not self._folder.is_dir():
            return []
        found = [(NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        return sorted((int(match[1]), path) for match, path in found if match)

    def _prune(self) -> None:
        """Drop old checkpoints, damaged ones, and what a killed process left unfinished."""
        old = [path for _, path in self._files()[:-KEEP]]
        for path in (*old, *self._folder.glob(f"*{DAMAGED}"), *self._folder.glob(f"*{UNFINISHED}")):
            path.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, object]:
    """Return the state in `path`, tensors on the CPU. Raises ValueError for a newer format."""
    state: dict[str, object] = torch.load(path, map_location="cpu", weights_only=True)
    version = state.pop("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(f"{path.name} has format {version}; this coadapt reads up to {FORMAT}")
    return state


class _HashingFile:
    """Hashes what torch writes on its way into the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


def _sound(path: Path) -> bool:
    match = NAME.fullmatch(path.name)
    assert match is not None, f"{path.name} is no checkpoint's name"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16] == match[2]


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
