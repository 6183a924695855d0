"""Threads post, one thread handles: durable first, in groups, and never after the disk
has failed.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from coadapt.core.commands import Command
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, JobSubmitted, SchedulerConfigured
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.model import BatchLimits, JobSpec, Launch, Node
from coadapt.runtime.memory_store import MemoryStore
from coadapt.service.live_loop import QUEUE_MAX, EventRefusedError, OverloadedError
from tests.service.in_process import CONFIG, NODE, InProcess

PATIENCE_S = 60.0
SPEC = JobSpec(name="job", batch=BatchLimits(initial=8), launch=Launch(run="true"))


class RecordingStore(MemoryStore):
    """Keeps the groups apart, waits for its gate, and can break."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def append(self, events: Sequence[Event]) -> None:
        assert self.gate.wait(PATIENCE_S)
        if self.broken:
            raise OSError(28, "No space left on device")
        super().append(events)
        if events:
            self.groups.append(len(events))


def submission(number: int) -> JobSubmitted:
    return JobSubmitted(at=0.0, job=f"job-{number}", spec=SPEC)


def test_a_commit_is_done_only_when_the_event_is_durable_and_handled(
    tmp_path: Path,
) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    with service.turning():
        store.gate.clear()
        future = service.loop.commit(submission(1))
        assert not future.done()
        store.gate.set()
        future.result(PATIENCE_S)
        assert service.loop.read(lambda state: list(state.jobs)) == ["job-1"]


def test_what_waits_is_written_as_one_group(tmp_path: Path) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    futures = [service.loop.commit(submission(number)) for number in range(100)]
    with service.turning():
        for future in futures:
            future.result(PATIENCE_S)
    assert store.groups[:2] == [
        2,
        100,
    ]  # the settings and the node, then all submissions


def test_events_of_many_threads_all_arrive(tmp_path: Path) -> None:
    service = InProcess(tmp_path, RecordingStore())

    def submit(first: int) -> None:
        for number in range(first, first + 50):
            service.loop.commit(submission(number)).result(PATIENCE_S)

    with service.turning():
        threads = [
            threading.Thread(target=submit, args=(50 * index,)) for index in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names = service.loop.read(lambda state: set(state.jobs))
    assert names == {f"job-{number}" for number in range(400)}


def test_what_other_threads_answer_is_handled_on_the_loops_own(tmp_path: Path) -> None:
    service = InProcess(tmp_path, RecordingStore())
    service.handled_on.clear()
    with service.turning():
        service.loop.commit(submission(1)).result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while (
            service.loop.read(lambda state: state.jobs["job-1"].state)
            is not JobState.RUNNING
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert len(set(service.handled_on)) == 1


def test_callers_are_turned_away_when_too_much_waits(tmp_path: Path) -> None:
    service = InProcess(tmp_path, RecordingStore())
    for _ in range(QUEUE_MAX):
        service.loop.commit(submission(1))
    with pytest.raises(OverloadedError):
        service.loop.commit(submission(1))


def test_a_full_disk_breaks_the_loop_and_is_told_to_whoever_waits(
    tmp_path: Path,
) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    store.broken = True
    future = service.loop.commit(submission(1))
    with pytest.raises(OSError, match="No space left"):
        service.loop.run()
    with pytest.raises(OSError, match="No space left"):
        future.result(PATIENCE_S)
    assert service.loop.read(lambda state: dict(state.jobs)) == {}


def test_the_nodes_of_now_replace_those_of_the_journal(tmp_path: Path) -> None:
    store = RecordingStore()
    other = Node(id="elsewhere", num_gpus=1)
    larger = Node(id="elsewhere", num_gpus=2)
    for node in (NODE, NODE, other, larger):
        service = InProcess(tmp_path, store, node)
        assert service.loop.read(lambda state: dict(state.nodes)) == {node.id: node}


def test_settings_are_journaled_when_they_change_and_a_replay_follows_them(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    service = InProcess(tmp_path, store)
    with service.turning():
        service.loop.commit(submission(1)).result(PATIENCE_S)
    InProcess(tmp_path, store)
    seldom = SchedulerConfig(round_s=50.0)
    last = InProcess(tmp_path, store, config=seldom)
    told = [
        event.config
        for event in store.events()
        if isinstance(event, SchedulerConfigured)
    ]
    assert told == [CONFIG, seldom]
    replay = Scheduler()
    for event in store.events():
        replay.handle(event)
    assert last.loop.read(lambda state: state == replay.state)
    assert replay.config == seldom


def test_whoever_waits_for_an_event_that_cannot_be_handled_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handle = Scheduler.handle

    def careless(self: Scheduler, event: Event) -> list[Command]:
        if isinstance(event, JobSubmitted) and event.job == "job-2":
            raise OverflowError("integer division result too large for a float")
        return handle(self, event)

    monkeypatch.setattr(Scheduler, "handle", careless)
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    with service.turning():
        futures = [service.loop.commit(submission(number)) for number in (1, 2, 3)]
        futures[0].result(PATIENCE_S)
        with pytest.raises(
            EventRefusedError,
            match=r"event \d+, JobSubmitted of job job-2, was set aside",
        ):
            futures[1].result(PATIENCE_S)
        futures[2].result(PATIENCE_S)
        assert service.loop.read(lambda state: sorted(state.jobs)) == ["job-1", "job-3"]
    (notice,) = service.loop.notices()
    assert "nothing has changed" in notice
    assert "coadapt doctor" in caplog.text
    again = InProcess(tmp_path, store)
    assert again.loop.read(lambda state: sorted(state.jobs)) == ["job-1", "job-3"]


def test_an_observer_that_fails_does_not_end_the_scheduler(tmp_path: Path) -> None:
    """A chart once did, for good: it divided by what a report had said."""
    service = InProcess(tmp_path, RecordingStore())

    def chart(*_: object) -> None:
        raise OverflowError("too large")

    service.loop._runtime.observers.insert(0, chart)
    with service.turning():
        service.loop.commit(submission(1)).result(PATIENCE_S)
        service.loop.commit(submission(2)).result(PATIENCE_S)
    (notice,) = service.loop.notices()
    assert (
        notice
        == "chart is switched off until the next start: it failed (OverflowError: "
        "too large)"
    )
    assert all(service.index.rows(job) for job in ("job-1", "job-2"))
