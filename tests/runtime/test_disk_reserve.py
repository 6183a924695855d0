"""Room for the journal is set aside while there is some, and given up when there is hardly any."""

import errno
import logging
import os
import sqlite3
from pathlib import Path

import pytest

from coadapt.runtime import disk_reserve
from coadapt.runtime.disk_reserve import DiskReserve, is_disk_full

MIB = 1 << 20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the disk is made to have left."""
    left = [100 * MIB]
    monkeypatch.setattr(disk_reserve, "free_bytes", lambda _: left[0])
    return left


def test_the_reserve_is_real_and_is_given_up_in_need(
    tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal.reserve"
    reserve = DiskReserve(path, reserve_bytes=2 * MIB, low_bytes=MIB)
    reserve.look()
    assert os.stat(path).st_blocks * 512 >= 2 * MIB
    free[0] = MIB - 1
    with caplog.at_level(logging.ERROR):
        reserve.look()
        reserve.look()
    assert not path.exists()
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"the disk of {tmp_path} is nearly full"
    ]
    free[0] = (
        4 * MIB
    )  # its own size and no more: taken now, it would have to be given up at once
    reserve.look()
    assert not path.exists()
    free[0] = 5 * MIB
    reserve.look()
    assert path.exists()


def test_where_the_room_goes_away_meanwhile_there_is_no_reserve(
    tmp_path: Path, free: list[int]
) -> None:
    free[0] = 1 << 62
    DiskReserve(tmp_path / "journal.reserve", reserve_bytes=1 << 60).look()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_known_by_its_number_or_by_sqlite_s_words() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert is_disk_full(sqlite3.OperationalError("database or disk is full"))
    assert not is_disk_full(OSError(errno.EIO, "Input/output error"))
    assert not is_disk_full(sqlite3.OperationalError("no such table: events"))


def test_it_is_given_up_at_once_when_asked_and_told_once(
    tmp_path: Path, free: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal.reserve"
    reserve = DiskReserve(path, reserve_bytes=2 * MIB, low_bytes=MIB)
    reserve.give_up()
    reserve.look()
    assert (path.exists(), free) == (True, [100 * MIB])
    reserve.give_up()
    reserve.give_up()
    assert not path.exists()
    assert len(caplog.records) == 1
