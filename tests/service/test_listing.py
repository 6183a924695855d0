"""Lists of jobs: every filter, pages that lose and repeat nothing, live and ended jobs
in one order, and ids found by their beginnings.
"""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import CancelRequested, Event, JobSubmitted, TimerFired
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import BatchLimits, InputError, JobSpec
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_index import JobIndex
from coadapt.service.listing import (
    JobQuery,
    UnknownJobError,
    ended_jobs,
    find_job,
    find_live,
    job_page,
    live_jobs,
    parse_states,
)

Books = tuple[SchedulerState, JobIndex]


def books(*ids: str, cancelled: Collection[str] = ()) -> Books:
    """Return the state and the index after jobs came in, two a second, and those of
    `cancelled` ended.
    """
    events: list[Event] = []
    for at, job in enumerate(ids):
        spec = JobSpec(name=f"name of {job}", batch=BatchLimits(initial=8))
        events.append(JobSubmitted(at=float(at // 2), job=job, spec=spec))
    events += [CancelRequested(at=99.0, job=job) for job in ids if job in cancelled]
    scheduler = Scheduler()
    index = JobIndex(":memory:")
    writer = IndexWriter(index, lambda: enumerate(events, start=1), SchedulerConfig())
    for number, event in enumerate([*events, TimerFired(at=99.5)], start=1):
        writer.observe(number, event, scheduler.handle(event), scheduler.state)
    return scheduler.state, index


def all_pages(known: Books, limit: int, **query: object) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        asked = JobQuery(limit=limit, cursor=cursor, **query)  # type: ignore[arg-type]
        page = job_page(
            live_jobs(known[0], asked), ended_jobs(known[1], asked), asked, 99.0
        )
        jobs = page["jobs"]
        cursor = str(page["next"])
        assert isinstance(jobs, list)
        assert len(jobs) <= limit
        found += [str(job["id"]) for job in jobs]  # type: ignore[index,call-overload]
        if not cursor:
            return found


def resolve(known: Books, text: str) -> str:
    return find_job(find_live(known[0], text), known[1], text).id


@given(
    st.lists(st.text("abc", min_size=1, max_size=3), unique=True),
    st.integers(1, 5),
    st.booleans(),
    st.data(),
)
def test_pages_put_together_are_all_jobs_in_order(
    ids: list[str], limit: int, newest: bool, data: st.DataObject
) -> None:
    ended = [job for job in ids if data.draw(st.booleans())]
    known = books(*ids, cancelled=ended)
    ordered = [
        job for _, job in sorted((float(at // 2), job) for at, job in enumerate(ids))
    ]
    assert all_pages(known, limit, newest=newest) == (
        ordered[::-1] if newest else ordered
    )


def test_filters_hold_for_live_and_ended_jobs() -> None:
    known = books("ab", "b", "c", cancelled="b")
    assert all_pages(known, 9, state=frozenset({JobState.PENDING})) == ["ab", "c"]
    assert all_pages(known, 9, state=parse_states("cancelled")) == ["b"]
    assert all_pages(known, 1, state=parse_states("cancelled, pending")) == [
        "ab",
        "b",
        "c",
    ]
    assert all_pages(known, 9, name="b") == ["ab", "b"]
    assert all_pages(known, 1, name="*of ?") == ["b", "c"]
    assert all_pages(known, 9, tenant=known[0].jobs["c"].spec.tenant) == [
        "ab",
        "b",
        "c",
    ]
    assert all_pages(known, 9, tenant="nobody") == []


@pytest.mark.parametrize("cursor", ["x", "1.0", "one:b"])
def test_a_cursor_of_nobody_is_refused(cursor: str) -> None:
    with pytest.raises(InputError, match="cursor"):
        live_jobs(books("a")[0], JobQuery(cursor=cursor))
    with pytest.raises(
        InputError, match="state: got 'gone'; allowed: states with commas"
    ):
        parse_states("running,gone")


def test_a_job_is_found_by_its_only_beginning_ended_or_not() -> None:
    known = books("abc", "abd", "x", "yes", cancelled="x")
    assert resolve(known, "x") == "x"
    assert resolve(known, "y") == "yes"
    assert resolve(known, "abc") == "abc"
    with pytest.raises(UnknownJobError, match=r"beginning: abc, abd$"):
        resolve(known, "ab")
    known = books("abc", "x", "y", cancelled="xy")
    assert resolve(known, "a") == "abc"
    for nobody in ("z", ""):
        with pytest.raises(UnknownJobError, match=r"beginning: x, y$"):
            resolve(known, nobody)
    assert resolve(books("a", "ab"), "a") == "a"  # whole ids come first
    # The same beginning among the living and the ended.
    with pytest.raises(UnknownJobError, match=r"beginning: ab, ac$"):
        resolve(books("ab", "ac", cancelled=["ac"]), "a")
