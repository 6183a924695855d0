"""Checkpoints on disk: written beside, flushed, renamed; the name carries the checksum;
the last two stay.

A file each; or a folder, where each replica writes a part, with a manifest of its
files' checksums.
"""

import hashlib
import json
import logging
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.durable import put_in_place, sync, write_whole
from coadapt.objects import HashingFile

logger = logging.getLogger(__name__)

FORMAT = 1
KEEP = 2  # the newest, and the one to fall back to
# checkpoint-<number>-<first digits of the SHA-256>: of the file, whose name ends in
# .pt, or of the manifest
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


class DamagedError(Exception):
    """A checkpoint has not the content that was written."""


class Reading(Protocol):
    """One checkpoint, being read. saved_at: when it was written, s since 1970.
    in_parts: its tensors are in a file per replica.
    """

    @property
    def saved_at(self) -> float: ...

    @property
    def in_parts(self) -> bool: ...

    def state(self) -> dict[str, object]:
        """Return the state, tensors on the CPU; in parts: marks in place of them."""
        ...

    def fill(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fill `targets` with the tensors of these names, however they were cut; return
        them.
        """
        ...


class CheckpointStore:
    """The checkpoints of one job in one folder. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, state: State) -> Path:
        """Write `state` durably and return its file; then drop all but the last `KEEP`.

        `state` must consist of tensors, numbers, text, and lists, tuples and dicts of
        these: all that torch loads without running code.
        """
        with _writing:
            return self._save(state)

    def _save(self, state: State) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = self._beside()
        try:
            digest = _write_state(state, beside)
        except BaseException:
            # Where there is no room, a part of a checkpoint must not take what is left.
            beside.unlink(missing_ok=True)
            raise
        return self._put_in_place(beside, f"{digest[:DIGITS]}.pt")

    def begin_folder(self) -> str:
        """Return a new folder beside, for the files of all replicas."""
        self._folder.mkdir(parents=True, exist_ok=True)
        beside = self._beside()
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        return str(beside)

    def write_parts(
        self, folder: str, parts: Mapping[str, Tensor], group: dist.ProcessGroup
    ) -> dict[str, str]:
        """Write this replica's `parts`, durably; return its files' names -> SHA-256.
        Collective.

        Raises OSError on every replica if one cannot write.
        """
        from coadapt.train.checkpoint.sharded_files import write_shards

        return {
            file.name: file_digest(file)
            for file in write_shards(Path(folder), parts, group)
        }

    def finish_folder(
        self, folder: str, state: State, digests: Mapping[str, str]
    ) -> Path:
        """Make what `begin_folder` gave a checkpoint and return its path; then drop all
        but the last `KEEP`.

        digests: file name -> SHA-256 of what the replicas have written, durably;
        `state` joins it.
        """
        beside = Path(folder)
        files = {**digests, STATE_FILE: _write_state(state, beside / STATE_FILE)}
        manifest = json.dumps(
            {"format": FORMAT, "files": files}, indent=1, sort_keys=True
        ).encode()
        write_whole(beside / MANIFEST, manifest)
        with _writing:
            return self._put_in_place(
                beside, hashlib.sha256(manifest).hexdigest()[:DIGITS]
            )

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

        A damaged file is set aside with a warning, so that it does not count among
        those that are kept.
        Raises RuntimeError if all are damaged. Waits for a write of this process that
        is under way.
        """
        with _writing:
            return self._newest()

    def _newest(self) -> Path | None:
        for _, path in reversed(self._files()):
            if _sound(path):
                return path
            self.set_aside(str(path), "checksum differs")
        if any(self._folder.glob(f"*{DAMAGED}")):
            raise RuntimeError(
                f"all checkpoints in {self._folder} are damaged; remove them to "
                f"start afresh"
            )
        return None

    def set_aside(self, name: str, why: str) -> None:
        """Let a damaged one not count any more; the next checkpoint sweeps it away."""
        path = Path(name)
        logger.warning(
            "checkpoint %s is damaged (%s); the previous one is used", path.name, why
        )
        _remove([path.with_suffix(DAMAGED)])
        path.rename(path.with_suffix(DAMAGED))

    @contextmanager
    def reading(self, name: str) -> Iterator[Reading]:
        """Read what `newest` has returned, on this replica or another."""
        yield _Files(Path(name))

    def _files(self) -> list[tuple[int, Path]]:
        if not self._folder.is_dir():
            return []
        found = [(NAME.fullmatch(path.name), path) for path in self._folder.iterdir()]
        return sorted((int(match[1]), path) for match, path in found if match)

    def _prune(self) -> None:
        """Drop old checkpoints, damaged ones, and what a killed process left
        unfinished.
        """
        old = [path for _, path in self._files()[:-KEEP]]
        _remove(
            [
                *old,
                *self._folder.glob(f"*{DAMAGED}"),
                *self._folder.glob(f"*{UNFINISHED}"),
            ]
        )


class _Files:
    """A checkpoint on a disk that was found sound."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def saved_at(self) -> float:
        return self._path.stat().st_mtime

    @property
    def in_parts(self) -> bool:
        return self._path.is_dir()

    def state(self) -> dict[str, object]:
        return read_checkpoint(self._path)

    def fill(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        from coadapt.train.checkpoint.sharded_files import read_shards

        return read_shards(self._path, targets)


def read_checkpoint(path: Path) -> dict[str, object]:
    """Return the state in `path`, tensors on the CPU. Raises ValueError for a newer
    format.

    Of a folder, it has marks in place of the tensors in parts.
    """
    return read_state(path / STATE_FILE if path.is_dir() else path, path.name)


def read_state(file: Path, called: str) -> dict[str, object]:
    """Return the state in `file`, `called` so in errors. Raises ValueError for a newer
    format.
    """
    state: dict[str, object] = torch.load(file, map_location="cpu", weights_only=True)
    version = state.pop("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(
            f"{called} has format {version}; this coadapt reads up to {FORMAT}"
        )
    return state


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
    return all(
        (path / name).is_file() and file_digest(path / name) == sha
        for name, sha in files.items()
    )


def _write_state(state: State, path: Path) -> str:
    """Write `state` durably, and return the SHA-256 of the file."""
    with open(path, "wb") as file:
        hashing = HashingFile(file)
        torch.save({"format": FORMAT, **state}, hashing)  # type: ignore[arg-type]  # it only writes
    sync(path)
    return hashing.digest()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
