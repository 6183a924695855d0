"""Room for the journal lies inside its files, where nobody else gets it, and is taken
while there is some.
"""

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.runtime import disk_reserve
from coadapt.runtime.disk_reserve import DiskReserve, is_disk_full, keep_blocks

MIB = 1 << 20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the disk is made to have left."""
    left = [100 * MIB]
    monkeypatch.setattr(disk_reserve, "free_bytes", lambda _: left[0])
    return left


def blocks(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def test_the_room_is_the_file_s_own_and_changes_nothing_in_it(
    tmp_path: Path, free: list[int]
) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"what is in it")
    reserve = DiskReserve({path: 2 * MIB, tmp_path / "gone": MIB}, low_bytes=MIB)
    free[0] = 3 * MIB - 4096  # less than the room and what is left to others
    reserve.look()
    assert blocks(path) < MIB
    free[0] = 3 * MIB
    reserve.look()
    assert blocks(path) >= 2 * MIB
    assert path.read_bytes() == b"what is in it"
    assert list(tmp_path.iterdir()) == [path]
    # As the file grows into it, it is asked for again, once half of it is used.
    with path.open("ab") as file:
        file.write(b"x" * (3 * MIB // 2))
    reserve.look()
    assert blocks(path) >= 3 * MIB
    reserve.release()


def test_a_database_keeps_its_locks_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE t (x)")
    writer.execute("BEGIN EXCLUSIVE")
    reserve = DiskReserve({path: 2 * MIB}, low_bytes=MIB)
    reserve.look()
    assert blocks(path) >= 2 * MIB
    # Of this process a lock keeps nobody out: another one has to try.
    code = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN "
        "IMMEDIATE')"
    )
    tried = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, check=False
    )
    assert b"database is locked" in tried.stderr
    writer.execute("COMMIT")
    writer.close()
    reserve.release()


def test_where_it_cannot_be_had_there_is_none(tmp_path: Path, free: list[int]) -> None:
    path = tmp_path / "journal.sqlite"
    path.touch()
    free[0] = 1 << 62
    DiskReserve({path: 1 << 60}).look()
    assert path.stat().st_size == 0
    with path.open("wb") as file, pytest.raises(OSError, match=r"."):
        keep_blocks(file.fileno(), 0, 1 << 60)


def test_a_full_disk_is_known_by_its_number_or_by_sqlite_s_words() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert is_disk_full(sqlite3.OperationalError("database or disk is full"))
    assert not is_disk_full(OSError(errno.EIO, "Input/output error"))
    assert not is_disk_full(sqlite3.OperationalError("no such table: events"))
