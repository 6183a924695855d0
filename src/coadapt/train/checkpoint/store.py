"""Checkpoints on disk: written beside, flushed, renamed; the name carries the checksum; the last two stay.

A file each; or a folder, where each replica writes a part, with a manifest of its files' checksums.
"""

import hashlib
import json
import logging
import re
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import torch

from coadapt.durable import put_in_place, sync, write_whole

logger = logging.getLogger(__name__)

FORMAT = 1
KEEP = 2  # the newest, and the one to fall back to
# checkpoint-<number>-<first digits of the SHA-256>: of the file, whose name ends in .pt, or of the manifest
NAME = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{16})(\.pt)?")
DIGITS = 16
MANIFEST = "manifest.json"
# The state in a folder, without the tensors that are in parts.
STATE_FILE = "state.pt"
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
        beside = self._beside()
        digest = _write_state(state, beside)
        return self._put_in_place(beside, f"{digest[:DIGITS]}.pt")

    def begin_folder(self) -> Path:
        """Return a new folder beside, for the files of all replicas."""
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = self._beside()
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        return beside

    def finish_folder(self, beside: Path, state: State, digests: Mapping[str, str]) -> Path:
        """Make what `begin_folder` gave a checkpoint and return its path; then drop all but the last `KEEP`.

        digests: file name -> SHA-256 of what the replicas have written, durably; `state` joins it.
        """
        files = {**digests, STATE_FILE: _write_state(state, beside / STATE_FILE)}
        manifest = json.dumps({"format": FORMAT, "files": files}, indent=1, sort_keys=True).encode()
        write_whole(beside / MANIFEST, manifest)
        with _writing:
            return self._put_in_place(beside, hashlib.sha256(manifest).hexdigest()[:DIGITS])

    def _beside(self) -> Path:
        files = self._files()
        number = files[-1][0] + 1 if files else 1
        return self._folder / f"{number:08d}{UNFINISHED}"

    def _put_in_place(self, beside: Path, ending: str) -> Path:
        path = self._folder / f"checkpoint-{beside.stem}-{ending}"
        put_in_place(beside, path)
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
            _remove([path.with_suffix(DAMAGED)])
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
        _remove([*old, *self._folder.glob(f"*{DAMAGED}"), *self._folder.glob(f"*{UNFINISHED}")])


def read_checkpoint(path: Path) -> dict[str, object]:
    """Return the state in `path`, tensors on the CPU. Raises ValueError for a newer format.

    Of a folder, it has marks in place of the tensors in parts.
    """
    file = path / STATE_FILE if path.is_dir() else path
    state: dict[str, object] = torch.load(file, map_location="cpu", weights_only=True)
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
        return self._hash.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sound(path: Path) -> bool:
    match = NAME.fullmatch(path.name)
    assert match is not None, f"{path.name} is no checkpoint's name"
    if not path.is_dir():
        return file_digest(path)[:DIGITS] == match[2]
    manifest = path / MANIFEST
    if not manifest.is_file() or file_digest(manifest)[:DIGITS] != match[2]:
        return False
    files = json.loads(manifest.read_bytes())["files"]
    return all((path / name).is_file() and file_digest(path / name) == sha for name, sha in files.items())


def _write_state(state: State, path: Path) -> str:
    """Write `state` durably, and return the SHA-256 of the file."""
    with open(path, "wb") as file:
        hashing = _HashingFile(file)
        torch.save({"format": FORMAT, **state}, hashing)  # type: ignore[arg-type]  # write and flush suffice
    sync(path)
    return hashing.digest()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
