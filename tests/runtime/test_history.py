"""The history recorder: spans, points, capacity and rounds, whole values asserted."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coadapt.core.commands import Command, Start
from coadapt.core.events import (
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Outcome,
    PlanFailed,
    PlanReady,
    ReplicasExited,
    ReplicasStarted,
    TimerFired,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.lifecycle import JobState
from coadapt.core.state import JobRecord, Order, Running, SchedulerState, Status
from coadapt.model import (
    WAITING,
    Allocation,
    BatchConfig,
    BatchLimits,
    GradStats,
    Grant,
    JobSpec,
    Measured,
    Node,
    Plan,
    RescaleContract,
    TrainingReport,
    Usage,
)
from coadapt.runtime import history
from coadapt.runtime.history import (
    JobHistory,
    MeasuredRescale,
    Point,
    Recorder,
    Round,
    Span,
)

SPEC = JobSpec(
    name="mnist",
    application="small",
    batch=BatchLimits(initial=100, max_total=400),
    contract=RescaleContract.ADAPTIVE,
)
TWO = Allocation(slots=(("a", 1), ("b", 1)))


class Books:
    """A scheduler's state moved by hand, with the recorder beside it."""

    def __init__(self) -> None:
        self.state = SchedulerState()
        self.recorder = Recorder()

    def tell(self, event: Event, commands: Sequence[Command] = ()) -> None:
        self.state.at = event.at
        self.recorder(event, commands, self.state)

    def ask(self, at: float) -> None:
        """Ask for the plan of the next round; the next event finds it answered, or
        void.
        """
        self.state.round, self.state.solve_at = self.state.round + 1, at
        self.tell(TimerFired(at=at))
        self.state.solve_at = None

    def submit(self, at: float, job: str = "j") -> JobRecord:
        record = JobRecord(id=job, spec=SPEC, submitted_at=at)
        self.state.jobs[job] = record
        self.tell(JobSubmitted(at=at, job=job, spec=SPEC))
        return record

    @property
    def job(self) -> JobHistory:
        return self.recorder.history.jobs["j"]


def move(
    record: JobRecord,
    state: JobState = JobState.PENDING,
    ordered: Allocation = WAITING,
    *,
    generation: int = 0,
    why: str = "",
) -> None:
    record.status = Status(state=state, explanation=why)
    record.order = Order(generation=generation, grant=Grant(allocation=ordered))


def start(record: JobRecord) -> Start:
    return Start(
        job=record.id,
        generation=record.generation,
        spec=SPEC,
        allocation=record.ordered,
    )


@pytest.fixture
def books() -> Books:
    return Books()


def run_to_end(books: Books) -> JobRecord:
    record = books.submit(10.0)
    move(record, JobState.STARTING, TWO, generation=1, why="first in line")
    books.tell(PlanReady(at=60.0, round=1, plan=Plan()), [start(record)])
    move(record, JobState.RUNNING, TWO, generation=1, why="first in line")
    record.usage = Usage(started_at=90.0)
    books.tell(ReplicasStarted(at=90.0, job="j", generation=1))
    move(record, JobState.SUCCEEDED, WAITING, generation=1, why="first in line")
    record.ended_at = 200.0
    record.measured = Measured(metrics={"loss": 0.5})
    books.tell(
        ReplicasExited(at=200.0, job="j", generation=1, outcome=Outcome.SUCCEEDED)
    )
    return record


def test_a_whole_life(books: Books) -> None:
    run_to_end(books)
    assert books.job == JobHistory(
        id="j",
        spec=SPEC,
        submitted_at=10.0,
        ended_at=200.0,
        state=JobState.SUCCEEDED,
        spans=[
            Span(start=10.0, end=60.0, num_gpus=0, shape=(), state=JobState.PENDING),
            Span(
                start=60.0, end=90.0, num_gpus=2, shape=(1, 1), state=JobState.STARTING
            ),
            Span(
                start=90.0, end=200.0, num_gpus=2, shape=(1, 1), state=JobState.RUNNING
            ),
        ],
        reasons=[(60.0, "first in line")],
        measured=Measured(metrics={"loss": 0.5}),
        usage=Usage(started_at=90.0),
    )


def test_an_ended_job_stays_as_it_was(books: Books) -> None:
    record = run_to_end(books)
    record.status = replace(record.status, explanation="something later")
    books.tell(TimerFired(at=500.0))
    books.tell(ReplicasExited(at=600.0, job="j", generation=1, outcome=Outcome.LOST))
    assert books.job.spans[-1].end == 200.0
    assert books.job.reasons == [(60.0, "first in line")]
    assert books.recorder.history.at == 600.0


def test_what_starts_and_changes_cost_is_kept_once(books: Books) -> None:
    record = books.submit(0.0)
    move(record, JobState.RUNNING, TWO, generation=1)
    books.tell(TrainingResumed(at=9.0, job="j", generation=1, rescale_s=8.0))
    move(record, JobState.RUNNING, TWO, generation=2)
    record.running = Running(
        generation=2, grant=Grant(allocation=TWO), num_replicas_before=1
    )
    parts = {"transfer": 0.25}
    resumed = TrainingResumed(
        at=20.0, job="j", generation=2, rescale_s=0.25, pause=parts
    )
    for event in (
        resumed,
        resumed,
        TrainingResumed(at=21.0, job="j", generation=1, rescale_s=7.0),
    ):
        books.tell(event)
    assert books.job.rescales == [
        MeasuredRescale(at=9.0, generation=1, before=0, now=2, cost_s=8.0, pause={}),
        MeasuredRescale(
            at=20.0, generation=2, before=1, now=2, cost_s=0.25, pause=parts
        ),
    ]
    assert books.job.changes == [
        (20.0, "rescaled 1 -> 2 in place, pause 0.25 s (transfer 250 ms)")
    ]


def test_open_spans_reach_to_the_last_event(books: Books) -> None:
    books.submit(0.0)
    books.submit(5.0, "other")
    assert books.job.spans == [
        Span(start=0.0, end=5.0, num_gpus=0, shape=(), state=JobState.PENDING)
    ]
    books.tell(TimerFired(at=7.0))
    assert books.job.spans[-1].end == 7.0


def test_a_command_about_another_job_is_followed(books: Books) -> None:
    record = books.submit(0.0)
    books.submit(1.0, "leaving")
    move(record, JobState.STARTING, TWO)
    exited = ReplicasExited(
        at=9.0, job="leaving", generation=1, outcome=Outcome.SUCCEEDED
    )
    books.tell(exited, [start(record)])
    assert [span.state for span in books.job.spans] == [
        JobState.PENDING,
        JobState.STARTING,
    ]


def test_spans_of_no_length_vanish(books: Books) -> None:
    record = books.submit(3.0)
    move(record, JobState.STARTING, TWO)
    books.tell(TimerFired(at=3.0))
    move(record, JobState.RUNNING, TWO)
    books.tell(ReplicasStarted(at=3.0, job="j", generation=0))
    books.tell(TimerFired(at=4.0))
    assert books.job.spans == [
        Span(start=3.0, end=4.0, num_gpus=2, shape=(1, 1), state=JobState.RUNNING)
    ]


def test_a_share_of_a_gpu_counts_as_a_share(books: Books) -> None:
    record = books.submit(0.0)
    halves = Allocation(slots=(("a", 2),), gpu_share=0.5, shared=(0, 1))
    move(record, JobState.STARTING, halves)
    books.tell(TimerFired(at=1.0))
    assert books.job.spans[-1].num_gpus == 1.0


def report(at: float, generation: int, **fields: object) -> TrainingReported:
    body = TrainingReport(progress=50.0, **fields)  # type: ignore[arg-type]
    return TrainingReported(at=at, job="j", generation=generation, report=body)


def test_points_carry_batch_and_efficiency(books: Books) -> None:
    record = books.submit(0.0)
    move(record, generation=1)
    record.measured = Measured(progress=50.0)
    books.tell(report(30.0, 1))
    # noise scale 200 samples; (200 + 100) / (200 + 400) = 0.5
    batch = BatchConfig(total=400, atomic=200)
    grad = GradStats(sqr=1.0, var=2.0)
    record.measured = Measured(progress=50.0, batch=batch, grad=grad)
    books.tell(report(60.0, 1, step_time_s=0.25))
    first = Point(
        at=30.0, total_batch=None, efficiency=None, progress=50.0, step_time_s=None
    )
    second = Point(
        at=60.0,
        total_batch=400,
        efficiency=0.5,
        progress=50.0,
        step_time_s=0.25,
        noise_scale=200.0,
    )
    assert books.job.points == [first, second]


def test_stale_and_unknown_reports_leave_no_point(books: Books) -> None:
    move(books.submit(0.0), generation=2)
    books.tell(report(30.0, 1))
    books.tell(
        TrainingReported(
            at=31.0, job="ghost", generation=1, report=TrainingReport(progress=0.0)
        )
    )
    assert books.job.points == []
    assert list(books.recorder.history.jobs) == ["j"]


def test_points_are_thinned_and_keep_both_ends(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "NUM_POINTS_MAX", 10)
    books.submit(0.0)
    for at in range(100):
        books.tell(report(float(at), 0))
    points = [point.at for point in books.job.points]
    assert len(points) <= 10
    assert (points[0], points[-1]) == (0.0, 99.0)
    assert points == sorted(points)


def test_reasons_are_kept_once_and_bounded(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "NUM_REASONS_MAX", 3)
    record = books.submit(0.0)
    for at, text in enumerate(["a", "a", "b", "c", "d"]):
        record.status = replace(record.status, explanation=text)
        books.tell(TimerFired(at=float(at)))
    assert books.job.reasons == [(0.0, "a"), (3.0, "c"), (4.0, "d")]


def test_capacity_follows_the_nodes(books: Books) -> None:
    for at, name, num_gpus in ((0.0, "a", 4), (0.0, "b", 4), (50.0, "c", 2)):
        books.state.nodes[name] = Node(id=name, num_gpus=num_gpus)
        books.tell(NodeJoined(at=at, node=books.state.nodes[name]))
    del books.state.nodes["a"]
    books.tell(NodeLost(at=70.0, node="a"))
    books.tell(NodeLost(at=80.0, node="a"))
    assert books.recorder.history.capacity == [(0.0, 8), (50.0, 10), (70.0, 6)]


def test_rounds_keep_errors_and_diagnostics_once(books: Books) -> None:
    books.ask(60.0)
    books.tell(PlanReady(at=60.0, round=1, plan=Plan(diagnostics={"gap": 0.01})))
    books.tell(PlanReady(at=61.0, round=1, plan=Plan()))
    books.ask(120.0)
    books.state.plan_error = "node 'a': 5 GPUs given, it has 4"
    books.tell(PlanReady(at=120.0, round=2, plan=Plan()))
    books.ask(180.0)
    books.tell(PlanFailed(at=180.0, round=3, error="timed out"))
    assert books.recorder.history.rounds == [
        Round(at=60.0, round=1, error="", diagnostics={"gap": 0.01}),
        Round(
            at=120.0, round=2, error="node 'a': 5 GPUs given, it has 4", diagnostics={}
        ),
        Round(at=180.0, round=3, error="timed out", diagnostics={}),
    ]


def test_an_answer_to_a_void_round_is_not_taken(books: Books) -> None:
    """As when a node was lost, or a quota changed, while the plan was made."""
    books.ask(60.0)
    books.tell(NodeLost(at=61.0, node="a"))
    books.tell(PlanReady(at=62.0, round=1, plan=Plan()))
    books.tell(PlanFailed(at=63.0, round=1, error="too late"))
    books.ask(120.0)
    books.tell(PlanFailed(at=121.0, round=1, error="of another round"))
    assert books.recorder.history.rounds == []


def test_a_job_found_in_the_books_is_taken_up(books: Books) -> None:
    record = books.state.jobs["j"] = JobRecord(id="j", spec=SPEC, submitted_at=2.0)
    move(record, JobState.RUNNING, TWO)
    books.tell(TimerFired(at=8.0))
    assert books.job.state is JobState.RUNNING
