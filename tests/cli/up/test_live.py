"""A part of the scheduler that breaks takes it down whole; a signal ends it in
order.
"""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.cli.up.live import (
    call_all,
    close_files,
    listening,
    ports_to_try,
    run_parts,
)
from coadapt.model import InputError


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Give the signals back to pytest afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Part:
    """Runs until it is closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def run(self) -> None:
        assert self.closed.wait(60.0)


def test_a_part_that_breaks_ends_all() -> None:
    part = Part()

    def broken() -> None:
        raise OSError("no space left")

    assert run_parts({"part": part.run, "broken": broken}, part.closed.set) is True
    assert part.closed.is_set()


def test_a_full_disk_is_one_line_and_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = Part()

    def starved() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run_parts({"part": part.run, "loop": starved}, part.closed.set) is True
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "the disk is full" in record.getMessage()
    assert record.exc_info is None


def test_what_has_no_room_at_the_end_is_one_line_and_all_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = Part()

    def starved() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert close_files([starved, part.closed.set]) is True
    assert part.closed.is_set()
    (record,) = caplog.records
    assert record.getMessage().startswith("the disk is full")
    assert close_files([part.closed.clear]) is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_in_order(number: signal.Signals) -> None:
    part = Part()

    def signalled() -> (
        None
    ):  # by a part: handlers are set before any runs, however slow the machine is
        os.kill(os.getpid(), number)
        part.run()

    assert run_parts({"part": signalled}, part.closed.set) is False


def test_a_port_that_is_taken_is_named_with_the_way_out() -> None:
    with listening("127.0.0.1", [0]) as taken:
        port = taken.getsockname()[1]
        way_out = rf"127\.0\.0\.1:{port}'.*in use.*--port 0 takes a free one"
        with pytest.raises(InputError, match=way_out), listening("127.0.0.1", [port]):
            pass


LAST_URL = "http://127.0.0.1:23456"


@pytest.mark.parametrize(
    ("port", "last_url", "first"),
    [
        (None, None, 8471),
        (None, LAST_URL, 23456),
        (0, LAST_URL, 23456),
        (9000, LAST_URL, 9000),
    ],
)
def test_the_port_of_the_last_run_comes_first(
    port: int | None, last_url: str | None, first: int
) -> None:
    assert ports_to_try(port, last_url)[0] == first


def test_a_free_port_is_none_of_those_that_outgoing_connections_get() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given.exists():
        pytest.skip("the kernel does not tell its range")
    lowest = int(given.read_text().split()[0])
    with listening("127.0.0.1", ports_to_try(0, None)) as free:
        assert 1024 < free.getsockname()[1] < min(lowest, 32_768)


def test_parts_are_told_to_end_in_order_whatever_one_raises() -> None:
    called: list[str] = []

    def broken() -> None:
        called.append("broken")
        raise RuntimeError("cannot end")

    with pytest.raises(RuntimeError, match="cannot end"):
        call_all(
            [
                lambda: called.append("loop"),
                broken,
                lambda: called.append("housekeeping"),
            ]
        )
    assert called == ["loop", "broken", "housekeeping"]
