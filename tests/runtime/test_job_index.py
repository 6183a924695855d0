"""The index of jobs on disk: what it tells is what a replay of the whole journal tells,
over restarts too.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Event, Outcome, PlanFailed, PlanReady
from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import Allocation, BatchConfig, Plan, TrainingReport
from coadapt.model.wire import dumps, loads
from coadapt.runtime.history import History, JobHistory, Recorder
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_history import (
    latest_decisions,
    latest_spans,
    story_of,
    whole_history,
)
from coadapt.runtime.job_index import BUFFER_MAX, LINE, POINT, EndedQuery, JobIndex, Row
from coadapt.runtime.snapshot import cluster_snapshot
from coadapt.runtime.story import story
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import draw_scenario
from tests.core.stage import Stage, on

CONFIG = SchedulerConfig()


def written(
    index: JobIndex,
    events: Sequence[Event],
    state: SchedulerState | None = None,
    after: int = 0,
) -> Scheduler:
    """Let a writer see the events after number `after`, which `state` is of."""
    scheduler = Scheduler(CONFIG, state)
    writer = IndexWriter(index, lambda: enumerate(events, start=1), CONFIG)
    writer.restored(scheduler.state, after)
    for number, event in enumerate(events[after:], start=after + 1):
        writer.observe(number, event, scheduler.handle(event), scheduler.state)
    return scheduler


def recorded(events: Sequence[Event]) -> History:
    scheduler = Scheduler(CONFIG)
    recorder = Recorder()
    for event in events:
        recorder(event, scheduler.handle(event), scheduler.state)
    return recorder.history


def journal_of(seed: int) -> list[Event]:
    run = FaultRun(draw_scenario(seed), Scheduler, None)
    run.run()
    return list(run.host.store.events())


def content(job: JobHistory) -> object:
    """All but points and sentences, which are thinned, and spans of no length, which
    one of the two drops.
    """
    spans = [span for span in job.spans if span.end > span.start]
    figures = (
        job.usage.attained_service_gpu_s,
        job.usage.num_rescales,
        job.measured.progress,
    )
    rescales = [(r.at, r.generation, r.now, r.cost_s, r.pause) for r in job.rescales]
    return (
        job.id,
        job.spec,
        job.submitted_at,
        job.ended_at,
        job.state,
        spans,
        rescales,
        job.changes,
        figures,
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_index_tells_what_the_recorder_tells(seed: int) -> None:
    events = journal_of(seed)
    index = JobIndex(":memory:")
    state = written(index, events).state
    history = whole_history(index, state)
    expected = recorded(events)
    assert [content(job) for job in history.jobs.values()] == [
        content(job)
        for job in sorted(
            expected.jobs.values(), key=lambda job: (job.submitted_at, job.id)
        )
    ]
    assert history.capacity == expected.capacity
    for name in expected.jobs:
        whole = [line.text for line in story(events, name, CONFIG)]
        thinned = [line.text for line in story_of(index, name)]
        assert thinned[:2] == whole[:2]
        assert thinned[-1] == whole[-1]


def test_a_history_of_the_jobs_that_ended_last_says_what_it_leaves_out() -> None:
    index = JobIndex(":memory:")
    state = written(index, journal_of(1)).state
    whole = whole_history(index, state)
    ended = {name: job.ended_at for name, job in whole.jobs.items() if job.ended_at}
    latest = sorted(ended, key=lambda name: (-ended[name], name))
    assert len(latest) > 2
    part = whole_history(index, state, num_ended=2)
    live = whole.jobs.keys() - ended.keys()
    assert part.jobs.keys() == {*latest[:2], *live}
    assert part.since == ended[latest[2]]
    assert part.num_left_out == len(latest) - 2
    assert [content(job) for job in part.jobs.values()] == [
        content(job) for name, job in whole.jobs.items() if name in part.jobs
    ]
    assert part.rounds == [round_ for round_ in whole.rounds if round_.at >= part.since]
    every = whole_history(index, state, num_ended=len(latest))
    assert (every.since, every.num_left_out) == (None, 0)
    assert every.jobs.keys() == whole.jobs.keys()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_a_restart_from_a_snapshot_forges_no_history(
    seed: int, lost: bool, tmp_path: Path
) -> None:
    """Whoever ran long before the snapshot has its whole life, be the index there or
    made anew.
    """
    events = journal_of(seed)
    upto = len(events) * 2 // 3
    died = len(events) * 5 // 6
    whole = JobIndex(":memory:")
    state = written(whole, events).state
    scheduler = Scheduler(CONFIG)
    for event in events[:upto]:
        scheduler.handle(event)
    snapshot = dumps(scheduler.state)

    first = JobIndex(tmp_path / "jobs.sqlite")
    written(
        first, events[:died]
    )  # it died some events after its snapshot, which are replayed
    first.close()
    if lost:
        (tmp_path / "jobs.sqlite").unlink()
    again = JobIndex(tmp_path / "jobs.sqlite")
    resumed = written(
        again, events, loads({"SchedulerState": SchedulerState}, snapshot), upto
    )
    assert resumed.state == state
    one = whole_history(whole, state)
    other = whole_history(again, state)
    assert {name: content(job) for name, job in other.jobs.items()} == {
        name: content(job) for name, job in one.jobs.items()
    }
    assert (other.capacity, other.rounds) == (one.capacity, one.rounds)
    assert again.counts() == whole.counts()


def stage_of_a_life() -> Stage:
    stage = Stage()
    stage.running(allocation=on(n0=2))
    stage.at = 90.0
    stage.reported(TrainingReport(progress=1.0, batch=BatchConfig(total=16, atomic=8)))
    stage.at = 100.0
    stage.exited(Outcome.SUCCEEDED)
    stage.submit("b")
    return stage


def test_an_ended_job_is_found_and_its_life_is_told() -> None:
    index = JobIndex(":memory:")
    written(index, stage_of_a_life().journal)
    job = index.ended("a")
    assert job is not None
    assert (job.state, job.ended_at, job.picture["attained_service_gpu_s"]) == (
        JobState.SUCCEEDED,
        100.0,
        80.0,
    )
    assert [
        (span.start, span.end, span.num_gpus, span.state)
        for span in latest_spans(index, "a", 100.0, 9)
    ] == [
        (0.0, 60.0, 0.0, JobState.PENDING),
        (60.0, 100.0, 2.0, JobState.RUNNING),
    ]
    assert latest_decisions(index, "a", 1) == [(100.0, "finished")]
    assert index.ended("b") is None
    assert index.counts() == {"succeeded": 1}
    assert index.ids_beginning("a", 5) == ["a"]
    assert index.ids_beginning("b", 5) == []


def test_ended_jobs_come_in_pages_and_can_be_forgotten() -> None:
    stage = Stage()
    names = [f"j{index}" for index in range(7)]
    for at, name in enumerate(names):
        stage.at = float(at)
        stage.submit(name)
        stage.cancel(name)
    index = JobIndex(":memory:")
    written(index, stage.journal)

    def page(**query: object) -> list[str]:
        return [job.id for job in index.ended_page(EndedQuery(**query))]  # type: ignore[arg-type]

    assert page(limit=3) == names[:3]
    assert page(limit=9, after=(2.0, "j2")) == names[3:]
    assert page(limit=2, after=(5.0, "j5"), newest=True) == ["j4", "j3"]
    assert page(states=frozenset({JobState.FAILED})) == page(tenant="nobody") == []
    assert [job.id for job in index.ended_before(3.0)] == names[:3]
    index.remove(names[:3])
    assert page() == names[3:]
    assert index.counts() == {"cancelled": 4}
    assert story_of(index, "j0") == []


def test_an_index_of_another_journal_is_forgotten() -> None:
    journal = stage_of_a_life().journal
    index = JobIndex(":memory:")
    written(index, journal)
    index.follow_journal(len(journal))
    assert index.upto == len(journal)
    index.follow_journal(len(journal) - 1)
    assert (index.upto, index.ended("a")) == (0, None)


def test_a_file_that_is_no_index_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(b"this is no database, whatever it is" * 100)
    index = JobIndex(path)
    assert (index.upto, index.counts()) == (0, {})
    assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_sentences_that_only_count_on_are_thinned() -> None:
    stage = Stage(SchedulerConfig(round_s=10.0))
    num_rounds = 600
    stage.submit()
    for number in range(1, num_rounds + 1):
        stage.timer(10.0 * number)
        reasons = {"a": f"waits: {num_rounds - number} jobs are before it"}
        stage.handle(PlanReady(at=stage.at, round=number, plan=Plan(reasons=reasons)))
    index = JobIndex(":memory:")
    scheduler = Scheduler(SchedulerConfig(round_s=10.0))
    writer = IndexWriter(index, lambda: enumerate(stage.journal, start=1), CONFIG)
    for number, event in enumerate(stage.journal, start=1):
        writer.observe(number, event, scheduler.handle(event), scheduler.state)
    lines = story_of(index, "a")
    assert (
        len(lines) == 2 + (num_rounds - 1) * 10 // 60
    )  # one a minute, after the first two
    assert (lines[0].at, lines[1].at, lines[2].at) == (0.0, 10.0, 70.0)
    assert lines[2].text.endswith("the policy gives it none; 593 jobs are before it")


def test_a_story_tells_of_plans_that_failed_while_the_job_waited() -> None:
    """Once, however many rounds it lasts; and so does every picture of a job that
    waits.
    """
    stage = Stage()
    stage.submit("early")
    for number in (1, 2, 3):
        stage.timer(60.0 * number)
        error = f"KeyError: 'x'; no plan for {number} rounds"
        stage.handle(PlanFailed(at=stage.at, round=number, error=error))
    (picture,) = cluster_snapshot(stage.scheduler.state, at=200.0)["jobs"]
    why = "the policy gives no plan, because KeyError: 'x'; no plan for"
    assert picture["explanation"] == f"waits: {why} 3 rounds"
    stage.timer(240.0)
    stage.handle(
        PlanReady(at=241.0, round=4, plan=Plan(allocations={"early": on(n0=1)}))
    )
    stage.at = 245.0
    stage.submit("late")
    index = JobIndex(":memory:")
    state = written(index, stage.journal).state
    waited = [
        (line.at, line.text) for line in story_of(index, "early") if "plan" in line.text
    ]
    assert waited == [(60.0, f"{why} 1 rounds")]
    assert not [line for line in story_of(index, "late") if "plan" in line.text]
    assert {
        job["explanation"] for job in cluster_snapshot(state, at=250.0)["jobs"]
    } == {
        "runs on 1 GPU",
        "waits: submitted, the next round will look at it",
    }


def row(seq: int, n: int = 0, *, job: str = "a", kind: str = LINE) -> Row:
    return Row(job=job, seq=seq, n=n, kind=kind, at=float(seq), payload=[seq, (n, 1.5)])


def test_who_reads_finds_what_waits_in_memory_and_writes_nothing() -> None:
    index = JobIndex(":memory:")
    writing = list[str]()
    index.add(1, [row(1), row(1, 1, kind=POINT)])
    index.add(2, [row(2), row(2, 1, job="b")])
    index.flush()
    index._database.set_trace_callback(
        lambda text: writing.append(text) if "INSERT" in text else None
    )
    index.add(2, [row(2)])  # as a replay does
    index.add(3, [row(3), row(3, 1, job="b"), row(3, 2, kind=POINT)])
    places = [(found.seq, found.n) for found in index.rows("a")]
    assert places == [(1, 0), (1, 1), (2, 0), (3, 0), (3, 2)]
    assert [found.seq for found in index.rows("a", LINE, latest=2)] == [2, 3]
    assert [found.seq for found in index.rows("a", latest=0)] == []
    assert [found.seq for found in index.rows("a", LINE, after=2)] == [3]
    assert (index.counts(), index.ended("a"), index.ids_beginning("a", 3)) == (
        {},
        None,
        [],
    )
    assert writing == []
    before = index.rows("a")
    index.flush()
    assert index.rows("a") == before


def test_rows_of_a_large_plan_are_written_a_part_at_a_time(tmp_path: Path) -> None:
    index = JobIndex(tmp_path / "jobs.sqlite")
    parts = list[int]()
    write = JobIndex._write

    def note(count: int) -> None:
        parts.append(count)
        write(index, count)

    index._write = note  # type: ignore[method-assign]
    index.add(7, [row(7, n) for n in range(2 * BUFFER_MAX + 1)])
    assert parts == [BUFFER_MAX, BUFFER_MAX]
    # The last row is not in the file, so the event counts as not written.
    assert JobIndex(tmp_path / "jobs.sqlite").upto == 0
    assert len(index.rows("a")) == 2 * BUFFER_MAX + 1
    index.flush()
    assert JobIndex(tmp_path / "jobs.sqlite").upto == 7


def test_of_a_plan_those_jobs_are_followed_that_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looked at all 10,000 in each round: 150 ms of CPU, of the figures for
    Prometheus as well.
    """
    stage = Stage()
    plan = {name: on(n0=1) for name in "abc"}
    for name in plan:
        stage.submit(name)
    stage.submit("d")
    followed = list[str]()
    writer = IndexWriter(JobIndex(":memory:"), lambda: None, CONFIG)
    monkeypatch.setattr(
        writer, "_follow", lambda _event, job, _at: followed.append(job.id)
    )

    def round_of(given: dict[str, Allocation]) -> list[str]:
        stage.timer(stage.at + 60.0)
        event = PlanReady(
            at=stage.at, round=stage.scheduler.state.round, plan=Plan(allocations=given)
        )
        followed.clear()
        writer.observe(1, event, stage.handle(event), stage.scheduler.state)
        return list(followed)

    assert round_of(plan) == ["a", "b", "c", "d"]
    for name in plan:
        stage.started(name)
    round_of(plan)
    assert round_of(plan) == []
    assert round_of({**plan, "b": on(n1=1)}) == ["b"]
