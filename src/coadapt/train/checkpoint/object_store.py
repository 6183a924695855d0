"""Checkpoints in an object store: data first, then a small manifest with its checksums,
which is the commit.

data-00000004-5f0c21aa/state.pt       and a file per replica, of a model that is cut
checkpoint-00000004-9a3b….json        the manifest: its name carries its own checksum
newest.json                           a hint: the name of the newest manifest
"""

# Why this layout. A store has no rename, and needs none: data without a manifest is not
# read. A process that is killed in the middle of an upload leaves data without a
# manifest, which is deleted after the next checkpoint. A manifest that is there in part
# does not have the checksum of its name. Altered or absent data is found while all
# replicas read it together; then the previous manifest counts (saver.py).
#
# A listing may be late. A manifest that it does not show yet would cost the work since
# the one before it, and its number would be given twice. So the newest one's name is
# written once more, into an object that is asked for by its name; and this process
# remembers what it has written.
#
# Objects are removed manifest first, so that no manifest is ever without its data; and
# only those whose number is below the newest one's. An object with a higher number
# belongs to another run.

import hashlib
import json
import logging
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from coadapt.objects import ObjectFolder
from coadapt.train.checkpoint.store import (
    DIGITS,
    FORMAT,
    KEEP,
    STATE_FILE,
    DamagedError,
    Reading,
    State,
    read_state,
)

logger = logging.getLogger(__name__)

MANIFEST = re.compile(r"checkpoint-(\d{8})-([0-9a-f]{16})\.json")
DATA = re.compile(r"data-(\d{8})-[0-9a-f]{8}")
NEWEST = "newest.json"

# A notebook may begin a run while the thread of the one before still writes.
_writing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint consists of.

    files: objects' names -> SHA-256, in the folder `data`. saved_at: s since 1970.
    """

    data: str
    saved_at: float
    files: Mapping[str, str]

    def to_json(self) -> bytes:
        content = {
            "format": FORMAT,
            "data": self.data,
            "saved_at": self.saved_at,
            "files": dict(self.files),
        }
        return json.dumps(content, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Manifest":
        """Raises ValueError for a newer format."""
        content = json.loads(text)
        if content["format"] > FORMAT:
            raise ValueError(
                f"a manifest has format {content['format']}; this coadapt reads up to "
                f"{FORMAT}"
            )
        return cls(content["data"], float(content["saved_at"]), content["files"])


class ObjectStore:
    """The checkpoints of one job below one URL. One process writes at a time."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder
        self._written: set[str] = set()
        self._damaged: set[str] = set()

    def save(self, state: State) -> str:
        """Write `state` and return its manifest's name; then drop all but the last
        `KEEP`.
        """
        with _writing:
            data = self._new_data()
            return self._commit(data, {STATE_FILE: self._write_state(data, state)})

    def begin_folder(self) -> str:
        """Return the name of a new folder, for the files of all replicas."""
        return self._new_data()

    def write_parts(
        self, folder: str, parts: Mapping[str, Tensor], group: dist.ProcessGroup
    ) -> dict[str, str]:
        """Write this replica's `parts`; return its objects' names -> SHA-256.
        Collective.

        Raises OSError on every replica if one cannot write.
        """
        from coadapt.train.checkpoint.sharded_objects import write_shards

        return write_shards(self._folder, folder, parts, group)

    def finish_folder(
        self, folder: str, state: State, digests: Mapping[str, str]
    ) -> str:
        """Make what `begin_folder` gave a checkpoint, `state` with it; then drop all
        but the last `KEEP`.
        """
        files = {**digests, STATE_FILE: self._write_state(folder, state)}
        with _writing:
            return self._commit(folder, files)

    def newest(self) -> str | None:
        """Return the newest manifest that is whole, None if there never was a
        checkpoint.

        Raises RuntimeError if all are damaged. Waits for a write of this process that
        is under way.
        """
        with _writing:
            for name in reversed(self._manifests(self._folder.names())):
                text = self._folder.get(name)
                if text is None:
                    continue  # removed: the listing is late
                if _is_whole(name, text):
                    return name
                self.set_aside(name, "its manifest's checksum differs")
            if self._damaged:
                raise RuntimeError(
                    f"all checkpoints in {self._folder.url} are damaged; remove them "
                    f"to start afresh"
                )
            return None

    def set_aside(self, name: str, why: str) -> None:
        """Let a damaged one not count any more; the next checkpoint sweeps it away."""
        logger.warning(
            "checkpoint %s is damaged (%s); the previous one is used", name, why
        )
        self._damaged.add(name)

    @contextmanager
    def reading(self, name: str) -> Iterator[Reading]:
        """Read the checkpoint of a manifest; what is fetched of it is on this machine's
        disk meanwhile.

        Raises DamagedError, also inside the block, where an object is not what the
        manifest says.
        """
        text = self._folder.get(name)
        if text is None or not _is_whole(name, text):
            raise DamagedError(f"{name} is gone or altered")
        with tempfile.TemporaryDirectory(prefix="coadapt-checkpoint-") as folder:
            yield _Fetched(self._folder, Manifest.from_json(text), Path(folder))

    def _write_state(self, data: str, state: State) -> str:
        with self._folder.create(f"{data}/{STATE_FILE}") as file:
            torch.save({"format": FORMAT, **state}, file)  # type: ignore[arg-type]  # it only writes
        return file.digest()

    def _commit(self, data: str, files: Mapping[str, str]) -> str:
        text = Manifest(data, time.time(), files).to_json()
        number = _number(DATA, data)
        name = (
            f"checkpoint-{number:08d}-{hashlib.sha256(text).hexdigest()[:DIGITS]}.json"
        )
        self._folder.put(name, text)
        self._written.add(name)
        self._folder.put(NEWEST, json.dumps({"manifest": name}).encode())
        try:
            self._prune(number)
        except Exception as error:  # noqa: BLE001  # stores raise errors of their own; the checkpoint is there
            logger.warning(
                "old checkpoints in %s were not removed: %s", self._folder.url, error
            )
        return name

    def _new_data(self) -> str:
        names = self._folder.names()
        numbers = [
            _number(MANIFEST, name)
            for name in (*self._manifests(names), *self._damaged)
        ]
        numbers += [_number(DATA, name) for name in names if DATA.fullmatch(name)]
        return f"data-{max(numbers, default=0) + 1:08d}-{secrets.token_hex(4)}"

    def _manifests(self, listed: list[str]) -> list[str]:
        """Return the manifests that are known of, by number, but for the damaged
        ones.
        """
        found = (
            {name for name in listed if MANIFEST.fullmatch(name)}
            | self._written
            | self._hinted()
        )
        return sorted(found - self._damaged)

    def _hinted(self) -> set[str]:
        try:
            name = json.loads(self._folder.get(NEWEST) or b"{}").get("manifest", "")
        except (ValueError, AttributeError):
            return set()  # it is a hint: what is there of it in part says nothing
        return {name} if isinstance(name, str) and MANIFEST.fullmatch(name) else set()

    def _prune(self, newest: int) -> None:
        """Remove what is older than the last `KEEP`, damaged, or was left
        unfinished.
        """
        listed = self._folder.names()
        known = self._manifests(listed)
        kept = set(known[-KEEP:])
        for name in sorted({*known, *self._damaged} - kept):
            self._folder.remove(name)
            self._written.discard(name)
            self._damaged.discard(name)
        numbers = {_number(MANIFEST, name) for name in kept}
        for name in listed:
            if (
                DATA.fullmatch(name)
                and _number(DATA, name) not in numbers
                and _number(DATA, name) < newest
            ):
                self._folder.remove(name)


class _Fetched:
    """A checkpoint of which objects are fetched as they are asked for, each one
    checked.
    """

    def __init__(self, objects: ObjectFolder, manifest: Manifest, folder: Path) -> None:
        self._objects = objects
        self._manifest = manifest
        self._folder = folder

    @property
    def saved_at(self) -> float:
        return self._manifest.saved_at

    @property
    def in_parts(self) -> bool:
        return len(self._manifest.files) > 1

    def state(self) -> dict[str, object]:
        return read_state(self._fetch(STATE_FILE), self._objects.url)

    def fill(self, targets: dict[str, Tensor]) -> dict[str, Tensor]:
        from coadapt.train.checkpoint.sharded_files import read_shards

        return read_shards(self._folder, targets, fetch=self._fetch)

    def _fetch(self, name: str) -> Path:
        path = self._folder / name
        if not path.exists():
            digest = self._objects.fetch(f"{self._manifest.data}/{name}", path)
            if digest is None or digest != self._manifest.files.get(name):
                path.unlink(missing_ok=True)
                why = "is not there" if digest is None else "is not what was written"
                raise DamagedError(f"{self._manifest.data}/{name} {why}")
        return path


def _number(pattern: re.Pattern[str], name: str) -> int:
    match = pattern.fullmatch(name)
    assert match is not None, f"{name} has no number"
    return int(match[1])


def _is_whole(name: str, text: bytes) -> bool:
    match = MANIFEST.fullmatch(name)
    return match is not None and hashlib.sha256(text).hexdigest()[:DIGITS] == match[2]
