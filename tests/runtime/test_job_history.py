"""What became of a job, for programs: from the index, in order, and from any event
on.
"""

from coadapt.core.events import Outcome, TrainingResumed
from coadapt.core.lifecycle import JobState, Reason
from coadapt.model.wire import from_json, to_json
from coadapt.runtime.job_history import CHANGES_MAX, Change, JobStatus, changes_of
from coadapt.runtime.job_index import LINE, JobIndex, Row
from tests.core.stage import Stage, on
from tests.runtime.test_job_index import written


def of_a_life() -> tuple[JobIndex, list[Change]]:
    stage = Stage()
    stage.running(allocation=on(n0=2))
    stage.at = 90.0
    stage.handle(TrainingResumed(at=90.0, job="a", generation=1, rescale_s=5.0))
    stage.at = 100.0
    stage.exited(Outcome.SUCCEEDED)
    index = JobIndex(":memory:")
    written(index, stage.journal)
    return index, changes_of(index, "a", -1)


def test_each_change_says_how_the_job_stood_before_and_stands_since() -> None:
    _, changes = of_a_life()
    states = [
        (each.was and each.was.state, each.now.state)
        for each in changes
        if each.now is not None
    ]
    assert states == [
        (None, JobState.PENDING),
        (JobState.PENDING, JobState.STARTING),
        (JobState.STARTING, JobState.RUNNING),
        (JobState.RUNNING, JobState.SUCCEEDED),
    ]
    start = changes[1]
    assert start.now == JobStatus(
        state=JobState.STARTING, reason=Reason.ALLOCATED, replicas=2
    )
    [rescale] = [each.rescale for each in changes if each.rescale is not None]
    assert (rescale.before, rescale.now, rescale.cost_s) == (0, 2, 5.0)
    assert [each.why for each in changes][-1] == "finished"
    assert [from_json(Change, to_json(each)) for each in changes] == changes


def test_whoever_knows_up_to_an_event_is_told_what_came_after_it() -> None:
    index, changes = of_a_life()
    for number, each in enumerate(changes):
        assert changes_of(index, "a", each.seq) == [
            later for later in changes[number:] if later.seq > each.seq
        ]


def test_a_page_never_ends_within_an_event() -> None:
    index = JobIndex(":memory:")
    stands = ["running", "allocated", 1]
    payload = {"text": "x", "was": ["starting", "allocated", 1], "is": stands}
    for seq in range(CHANGES_MAX):
        rows = [
            Row(job="a", seq=seq, n=n, kind=LINE, at=0.0, payload=payload)
            for n in range(2)
        ]
        index.add(seq, rows)
    found = changes_of(index, "a", -1)
    assert len(found) == CHANGES_MAX
    index.add(
        CHANGES_MAX, [Row(job="a", seq=0, n=2, kind=LINE, at=0.0, payload=payload)]
    )
    assert len(changes_of(index, "a", -1)) == CHANGES_MAX + 1


def test_rows_of_an_older_index_and_those_without_a_change_are_passed_over() -> None:
    index = JobIndex(":memory:")
    stands = ["running", "allocated", 1]
    payloads = [{"text": "old"}, {"text": "batch 8", "was": stands, "is": stands}]
    index.add(
        1,
        [
            Row(job="a", seq=1, n=n, kind=LINE, at=0.0, payload=each)
            for n, each in enumerate(payloads)
        ],
    )
    assert changes_of(index, "a", -1) == []
