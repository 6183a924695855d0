"""A process that the kernel's memory killer ended is told as that."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coadapt.core.events import Outcome
from coadapt.executors.processes import oom_kills
from coadapt.executors.processes.oom_kills import OomKills, OomWatch, read_kills
from coadapt.executors.processes.replica import UNKNOWN_KILLER
from tests.contracts.executor_contract import Inbox
from tests.executors.test_local import LocalSite, end_of, order, site
from tests.memory_group import memory_group

__all__ = ["site"]

LIMIT_BYTES = 48 * 1024 * 1024
EATS_MEMORY = "python -c 'held = bytearray(10**9)'"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """The file through which to join a control group with a memory limit."""
    with memory_group(LIMIT_BYTES) as group:
        yield group.join


@pytest.mark.processes
def test_a_job_that_the_kernel_killed_for_memory_is_told_as_that(
    site: LocalSite, small_group: Path
) -> None:
    inbox = Inbox()
    run = f"echo $$ > {small_group}; {EATS_MEMORY}; exit $?"
    before = read_kills()
    site.executor().execute(order(site, run), inbox.post)
    end = end_of(inbox)
    assert end.outcome is Outcome.LOST
    if read_kills() == before:
        pytest.skip("the kernel here does not count what its memory killer ends")
    assert "memory ran out" in end.detail
    assert "by a person" not in end.detail


@pytest.mark.processes
def test_a_kill_by_somebody_is_not_told_as_want_of_memory(site: LocalSite) -> None:
    inbox = Inbox()
    site.executor().execute(order(site, "kill -9 $$"), inbox.post)
    assert UNKNOWN_KILLER in end_of(inbox).detail


@pytest.mark.parametrize(
    ("later", "cause"),
    [
        (OomKills(group=3, machine=9), ""),
        (OomKills(group=4, machine=10), "by the kernel because memory ran out"),
        (OomKills(group=3, machine=10), "from outside (most likely by the kernel"),
        (OomKills(group=None, machine=10), "from outside (most likely by the kernel"),
        (OomKills(group=None, machine=None), ""),
    ],
)
def test_the_cause_follows_from_the_counters(
    monkeypatch: pytest.MonkeyPatch, later: OomKills, cause: str
) -> None:
    monkeypatch.setattr(oom_kills, "read_kills", lambda: later)
    first = OomKills(group=3, machine=9)
    watch = OomWatch(first, first)
    assert watch.cause().startswith(cause)
    assert bool(watch.cause()) is bool(cause)


def test_kills_of_long_ago_are_not_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = OomKills(group=4, machine=10)
    monkeypatch.setattr(oom_kills, "read_kills", lambda: now)
    monkeypatch.setattr(oom_kills, "WINDOW_S", 0.0)
    watch = OomWatch(OomKills(group=3, machine=9), OomKills(group=3, machine=9))
    watch.note()
    watch.note()
    assert watch.cause() == ""


@pytest.mark.parametrize(
    ("later", "cause"),
    [
        (OomKills(group=3, machine=10), ""),
        (OomKills(group=4, machine=10), "killed a process of its control group"),
        (OomKills(group=None, machine=11), "killed 2 processes on this machine"),
        (OomKills(group=None, machine=9), ""),
        (OomKills(group=None, machine=None), ""),
    ],
)
def test_a_job_that_succeeded_beside_killed_processes_says_so(
    monkeypatch: pytest.MonkeyPatch, later: OomKills, cause: str
) -> None:
    watch = OomWatch(_first=OomKills(group=3, machine=9))
    monkeypatch.setattr(oom_kills, "read_kills", lambda: later)
    said = watch.meanwhile()
    assert cause in said
    assert bool(said) == bool(cause)
