"""Which changes of a job become Events of its object, and how often; a small server
keeps what is posted.
"""

from dataclasses import replace

import pytest

pytest.importorskip("kubernetes")

from coadapt.core.lifecycle import JobState, Reason
from coadapt.executors.kubernetes.api import CONFLICT, NOT_FOUND, ApiError, JsonObject
from coadapt.executors.kubernetes.job_events import (
    BURST,
    EVERY_S,
    MESSAGE_MAX,
    EventRecorder,
    event_content,
)
from coadapt.runtime.history import MeasuredRescale
from coadapt.runtime.job_history import Change, JobStatus

OBJECT = {"metadata": {"name": "cifar", "namespace": "ml", "uid": "u-1"}}


class EventServer:
    """What an API server does with events: names are unique, a patch changes what is
    there.
    """

    def __init__(self) -> None:
        self.events: dict[str, JsonObject] = {}
        self.broken = False

    def ask(self, method: str, path: str, body: JsonObject) -> JsonObject:
        if self.broken:
            raise ApiError(0, "does not answer")
        if method == "PATCH":
            name = path.rpartition("/")[2]
            if name not in self.events:
                raise ApiError(NOT_FOUND, "not found")
            self.events[name] |= body
            return self.events[name]
        name = body["metadata"]["name"]
        if name in self.events:
            raise ApiError(CONFLICT, "already exists")
        self.events[name] = dict(body)
        return body

    def said(self) -> list[tuple[str, str, int]]:
        return [
            (each["reason"], each["message"], each["count"])
            for each in self.events.values()
        ]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status(state: str, reason: str, replicas: int = 0) -> JobStatus:
    return JobStatus(state=JobState(state), reason=Reason(reason), replicas=replicas)


def change(
    was: JobStatus | None, now: JobStatus, why: str = "so it is", seq: int = 1
) -> Change:
    return Change(seq=seq, at=float(seq), text="its story", why=why, was=was, now=now)


def rescaled(before: int, now: int, text: str = "", **pause: float) -> Change:
    rescale = MeasuredRescale(
        at=9.0, generation=2, before=before, now=now, cost_s=4.25, pause=pause
    )
    return Change(seq=9, at=9.0, text=text, rescale=rescale)


PENDING = status("pending", "no_capacity")
STARTING = status("starting", "allocated", 2)
RUNNING = status("running", "allocated", 2)


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        (change(None, PENDING), ("Normal", "Submitted", "its story")),
        (
            change(RUNNING, status("running", "unseen", 2)),
            ("Warning", "Unseen", "so it is"),
        ),
        (
            replace(
                change(status("running", "unseen", 2), RUNNING),
                text="running; its replicas are seen again",
            ),
            ("Normal", "SeenAgain", "its replicas are seen again"),
        ),
        (change(PENDING, STARTING), ("Normal", "Starting", "2 replicas: so it is")),
        (
            replace(
                change(PENDING, STARTING, why=""),
                text="starting; generation 4 on 2 GPUs (node-0: 2)",
            ),
            ("Normal", "Starting", "2 replicas: generation 4 on 2 GPUs (node-0: 2)"),
        ),
        (change(STARTING, RUNNING), ("Normal", "Started", "2 replicas started")),
        (
            change(RUNNING, status("rescaling", "rescaled", 4)),
            ("Normal", "Resizing", "2 -> 4 in place: so it is"),
        ),
        (
            change(RUNNING, status("stopping", "preempted")),
            ("Normal", "Preempted", "2 replicas stop: so it is"),
        ),
        (
            change(RUNNING, status("stopping", "rescaled")),
            (
                "Normal",
                "Resizing",
                "2 replicas stop, to start again otherwise: so it is",
            ),
        ),
        (
            change(RUNNING, status("stopping", "node_lost", 2)),
            ("Warning", "NodeLost", "so it is"),
        ),
        (
            change(RUNNING, status("pending", "replicas_lost")),
            ("Warning", "ReplicasLost", "so it is"),
        ),
        (
            change(RUNNING, status("pending", "script_failed")),
            ("Warning", "ScriptFailed", "so it is"),
        ),
        (
            change(RUNNING, status("running", "rescale_failed", 2)),
            ("Warning", "ResizeFailed", "so it is"),
        ),
        (
            change(RUNNING, status("succeeded", "finished")),
            ("Normal", "Succeeded", "so it is"),
        ),
        (
            change(RUNNING, status("failed", "too_many_failures")),
            ("Warning", "Failed", "so it is"),
        ),
        (
            change(PENDING, status("cancelled", "cancelled")),
            ("Normal", "Cancelled", "so it is"),
        ),
        (
            rescaled(0, 2),
            (
                "Normal",
                "Training",
                "2 replicas took the first step; the start cost 4.2 s",
            ),
        ),
        (
            rescaled(2, 1),
            ("Normal", "Resized", "resized 2 -> 1 by a restart, which cost 4.2 s"),
        ),
        (
            rescaled(2, 2),
            (
                "Normal",
                "Resumed",
                "went on with 2 replicas by a restart, which cost 4.2 s",
            ),
        ),
        (
            rescaled(2, 4, "rescaled 2 -> 4 in place", wait=0.1),
            ("Normal", "Resized", "rescaled 2 -> 4 in place"),
        ),
    ],
)
def test_what_an_event_says(happened: Change, expected: tuple[str, str, str]) -> None:
    found = event_content(happened)
    assert found is not None
    assert (found.kind, found.reason, found.message) == expected


@pytest.mark.parametrize(
    "happened",
    [
        change(
            status("rescaling", "rescaled", 4), status("running", "rescaled", 4)
        ),  # it is posted as resized
        change(
            status("stopping", "node_lost", 2), status("pending", "node_lost")
        ),  # it was told lost
        change(PENDING, status("pending", "preempted")),
        change(RUNNING, status("stopping", "cancelled")),  # it is posted as cancelled
    ],
)
def test_what_another_event_says_better_is_not_posted(happened: Change) -> None:
    assert event_content(happened) is None


def test_a_change_is_posted_once_however_often_it_is_asked_for() -> None:
    server = EventServer()
    changes = [change(PENDING, STARTING, seq=4), change(STARTING, RUNNING, seq=6)]
    for _ in range(
        2
    ):  # by one who died before it could write that down, and by the next
        assert EventRecorder(server, "ml").record(OBJECT, changes) == 6  # type: ignore[arg-type]  # a server
    assert server.said() == [
        ("Starting", "2 replicas: so it is", 1),
        ("Started", "2 replicas started", 1),
    ]


def test_the_same_sentence_again_is_counted_and_goes_on_if_its_event_has_expired() -> (
    None
):
    server = EventServer()
    recorder = EventRecorder(server, "ml")  # type: ignore[arg-type]  # a server
    lost = status("pending", "replicas_lost")
    recorder.record(
        OBJECT, [change(RUNNING, lost, seq=1), change(RUNNING, lost, seq=2)]
    )
    server.broken = True
    with pytest.raises(ApiError):
        recorder.record(OBJECT, [change(RUNNING, lost, seq=3)])
    server.broken = False
    recorder.record(OBJECT, [change(RUNNING, lost, seq=3)])
    assert server.said() == [("ReplicasLost", "so it is", 3)]
    [event] = server.events.values()
    assert (event["firstTimestamp"], event["lastTimestamp"]) == (
        "1970-01-01T00:00:01Z",
        "1970-01-01T00:00:03Z",
    )
    server.events.clear()
    recorder.record(OBJECT, [change(RUNNING, lost, seq=4)])
    assert server.said() == [("ReplicasLost", "so it is", 1)]


def flapping(first: int, count: int) -> list[Change]:
    return [
        change(PENDING, STARTING, why=f"try {seq}", seq=seq)
        for seq in range(first, first + count)
    ]


def test_what_is_too_much_is_counted_and_what_comes_later_waits_but_not_the_end() -> (
    None
):
    server = EventServer()
    clock = Clock()
    recorder = EventRecorder(server, "ml", clock)  # type: ignore[arg-type]  # a server
    assert recorder.record(OBJECT, flapping(1, BURST + 5)) == BURST + 5
    said = server.said()
    assert len(said) == BURST
    assert said[0][:2] == (
        "Skipped",
        "6 changes up to here are in `coadapt story` only: there were too many",
    )
    assert said[-1][1] == f"2 replicas: try {BURST + 5}"
    assert recorder.record(OBJECT, flapping(100, 1)) == 99
    assert len(server.events) == BURST
    clock.now += EVERY_S
    assert recorder.record(OBJECT, flapping(100, 1)) == 100
    end = change(RUNNING, status("succeeded", "finished"), seq=200)
    assert recorder.record(OBJECT, [*flapping(101, 3), end]) == 200
    assert [reason for reason, _, _ in server.said()][-2:] == ["Skipped", "Succeeded"]


def test_a_long_sentence_is_cut_between_letters() -> None:
    found = event_content(change(PENDING, STARTING, why="é" * MESSAGE_MAX))
    assert found is not None
    assert found.message.endswith("é…")
    assert MESSAGE_MAX - 2 <= len(found.message.encode()) <= MESSAGE_MAX


def test_nothing_is_kept_of_an_object_that_is_gone() -> None:
    server = EventServer()
    recorder = EventRecorder(server, "ml")  # type: ignore[arg-type]  # a server
    recorder.record(OBJECT, flapping(1, BURST))
    recorder.forget(set())
    recorder.record(OBJECT, flapping(100, 2))
    assert len(server.events) == BURST + 2
