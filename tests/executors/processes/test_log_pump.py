"""What replicas print is kept within a limit, whole lines' order and bytes' numbers
included.
"""

import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.events import Outcome
from coadapt.executors.processes.executor import ProcessOptions
from coadapt.executors.processes.log_pump import LogPump
from coadapt.executors.processes.records.replica_log import read_log, segments, tail
from tests.contracts.executor_contract import Inbox, exited, started, until
from tests.executors.test_local import LocalSite, end_of, order, site

__all__ = ["site"]


def printed(log: Path, writes: list[bytes], limit: int) -> None:
    """Have `writes` printed to a log through a pump."""
    pump = LogPump(limit, lambda: True)
    writer = pump.open(log)
    for data in writes:
        os.write(writer, data)
        pump.drain()
    os.close(writer)
    pump.close()


def read_all(log: Path, offset: int = 0) -> tuple[bytes, int]:
    data = b""
    while (part := read_log([log], offset)).data:
        data += part.data
        offset = part.next_offset
    return data, offset


@given(
    writes=st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    limit=st.integers(2, 100),
    offset=st.integers(0, 500),
)
def test_the_end_of_a_log_is_kept_and_every_byte_keeps_its_number(
    writes: list[bytes], limit: int, offset: int
) -> None:
    whole = b"".join(writes)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "1-0.log"
        printed(log, writes, limit)
        sizes = [path.stat().st_size for _, path in segments(log)]
        assert sum(sizes) <= limit
        assert len(sizes) <= 2
        first = segments(log)[0][0]
        # What is gone is gone from the beginning, and only when the limit was reached.
        assert len(whole) - first > limit // 2 - 1 or first == 0
        assert read_all(log) == (whole[first:], len(whole))
        found = read_log([log], offset)
        at = max(offset, first)
        assert found.data == whole[at:][: len(found.data)]
        assert bool(found.data) == (at < len(whole))
        assert tail(log, 10) == whole[first:][-10:]


def test_logs_follow_each_other_though_the_first_has_lost_its_beginning(
    tmp_path: Path,
) -> None:
    one = tmp_path / "1-0.log"
    other = tmp_path / "2-0.log"
    printed(one, [b"a" * 30, b"b" * 30], 40)
    other.write_bytes(b"later\n")
    part = read_log([one, tmp_path / "gone.log", other], 0)
    assert (part.data[:1], part.next_offset) == (b"a", 40)
    assert read_log([one, tmp_path / "gone.log", other], 60).data == b"later\n"


def test_a_log_that_was_there_is_continued(tmp_path: Path) -> None:
    log = tmp_path / "setup.log"
    printed(log, [b"first\n"], 100)
    printed(log, [b"second\n"], 100)
    assert log.read_bytes() == b"first\nsecond\n"


def test_without_room_output_is_dropped_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "1-0.log"
    room = threading.Event()
    pump = LogPump(1000, room.is_set)
    writer = pump.open(log)
    os.write(writer, b"lost\n")
    pump.drain()
    room.set()
    os.write(writer, b"kept\n")
    os.close(writer)
    pump.close()
    assert (
        log.read_text()
        == "[coadapt: 5 bytes of output were dropped: the disk was nearly full]\nkept\n"
    )


def test_to_drain_one_that_prints_on_and_on_has_an_end(tmp_path: Path) -> None:
    pump = LogPump(1000, lambda: True)
    writer = pump.open(tmp_path / "1-0.log")
    over = threading.Event()

    def print_on() -> None:
        while not over.is_set():
            os.write(writer, b"y\n" * 1000)

    thread = threading.Thread(target=print_on)
    thread.start()
    for _ in range(3):
        # without an end of its own it would run into the suite's time limit
        pump.drain()
    over.set()
    thread.join()
    os.close(writer)
    pump.close()


LIMIT = 1 << 20


@pytest.mark.processes
def test_one_that_prints_without_end_cannot_fill_the_disk(site: LocalSite) -> None:
    inbox = Inbox()
    executor = site.executor(
        options=ProcessOptions(log_bytes=LIMIT, disk_reserve_bytes=0)
    )
    executor.execute(
        order(site, "yes | head -c 20000000; echo the end >&2; exit 3"), inbox.post
    )
    end = end_of(inbox)
    assert "the end" in end.detail
    kept = sum(path.stat().st_size for path in site.job().logs.iterdir())
    assert LIMIT // 2 < kept <= LIMIT
    data = b""
    offset = 0
    while (part := executor.log("a", 0, offset)).data:
        data = data + part.data
        offset = part.next_offset
    assert (offset, len(data)) == (20_000_008, kept)
    assert data.endswith(b"y\ny\nthe end\n")


@pytest.mark.processes
def test_a_log_is_followed_while_it_loses_its_beginning(site: LocalSite) -> None:
    inbox = Inbox()
    executor = site.executor(
        options=ProcessOptions(log_bytes=10_000, disk_reserve_bytes=0)
    )
    run = (
        "for i in $(seq 1 3000); do echo line $i; done; while ! [ -e go ]; do sleep "
        "0.05; done; echo over"
    )
    executor.execute(order(site, run), inbox.post)
    inbox.wait(started("a", 1))
    until(lambda: (site.job().logs / "1-0.log").exists() is False)
    data = b""
    offset = 0
    while b"line 3000\n" not in data:
        part = executor.log("a", 0, offset)
        data = data + part.data
        offset = part.next_offset
    (site.folder / "go").touch()
    inbox.wait(exited("a", 1, Outcome.SUCCEEDED))
    assert executor.log("a", 0, offset).data == b"over\n"


@pytest.mark.processes
def test_nothing_new_starts_while_the_disk_is_nearly_full(
    site: LocalSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = [0]
    monkeypatch.setattr(
        "coadapt.executors.processes.launching.free_bytes", lambda _: free[0]
    )
    inbox = Inbox()
    executor = site.executor(options=ProcessOptions(disk_reserve_bytes=1 << 20))
    executor.execute(order(site, "true"), inbox.post)
    inbox.stays_empty()
    free[0] = 1 << 40
    inbox.wait(started("a", 1), exited("a", 1, Outcome.SUCCEEDED))
    said = [
        record.getMessage()
        for record in caplog.records
        if "MiB free" in record.getMessage()
    ]
    assert said == [
        f"no job is started while {site.state_dir} has less than 1 MiB free"
    ]
