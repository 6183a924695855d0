"""The demo's course, with a fake scheduler that answers at once: what is told, and that
trouble is made.
"""

from typing import cast

import pytest

from coadapt.cli.client import Client, JsonObject, UnreachableError
from coadapt.cli.demo.scheduler_process import DemoError
from demo.plan import DemoJob
from demo.processes import LiveScheduler
from demo.timeline import Course, Pace, Timeline

JOBS = (
    DemoJob(name="shapes", at_s=0.0, higher_is_better=True, tolerance=0.0),
    DemoJob(name="tiny-gpt", at_s=0.0, higher_is_better=True, tolerance=0.0),
)


def picture(
    name: str, state: str, num_gpus: int, total: int, progress: float
) -> JsonObject:
    return {
        "id": name,
        "state": state,
        "num_gpus": num_gpus,
        "batch": {"total": total},
        "explanation": "because",
        "progress": progress,
        "progress_target": 10.0,
    }


class FakeScheduler:
    """Shows each job's pictures one after another, the last one for ever."""

    def __init__(self, **pictures: list[JsonObject]) -> None:
        self.pictures = {
            name.replace("_", "-"): series for name, series in pictures.items()
        }
        self.submitted: list[str] = []
        self.done: list[str] = []
        self.up = True

    def client(self) -> Client:
        return cast(Client, self)

    def get(self, path: str) -> JsonObject:
        assert path == "/v1/cluster"
        if not self.up:
            raise UnreachableError("it is down")
        shown = [self.pictures[name] for name in self.submitted]
        return {
            "jobs": [
                series.pop(0) if len(series) > 1 else series[0] for series in shown
            ]
        }

    def submit(self, job: DemoJob) -> str:
        self.submitted.append(job.name)
        return job.name

    def kill_replica(self, job: str) -> int:
        self.done.append(f"killed {job}")
        return 7

    def kill(self) -> int:
        self.done.append("killed the scheduler")
        self.up = False
        return 8

    def start(self) -> None:
        self.done.append("started")
        self.up = True


def run(
    scheduler: FakeScheduler, *, trouble: bool, limit_s: float = 60.0
) -> tuple[Course, list[str]]:
    lines: list[str] = []
    pace = Pace(look_s=0.001, down_s=0.001, limit_s=limit_s)
    live = cast(LiveScheduler, scheduler)
    return Timeline(
        live, JOBS, lambda _, text: lines.append(text), lambda _: None, pace
    ).run(trouble), lines


def fake() -> FakeScheduler:
    return FakeScheduler(
        shapes=[
            picture("shapes", "running", 1, 32, 1.0),
            picture("shapes", "running", 2, 32, 5.0),
            picture("shapes", "running", 2, 64, 6.0),
            picture("shapes", "succeeded", 0, 64, 10.0),
        ],
        tiny_gpt=[
            picture("tiny-gpt", "pending", 0, 32, 0.0),
            *[picture("tiny-gpt", "running", 2, 32, 5.0)] * 4,
            picture("tiny-gpt", "succeeded", 0, 32, 10.0),
        ],
    )


def test_changes_are_told_once_and_gpus_are_remembered() -> None:
    course, lines = run(fake(), trouble=False)
    assert [" ".join(text.split()) for text in lines] == [
        "shapes running, 1 GPU: because",  # looked at before the next is submitted
        "shapes running, 2 GPUs: because",
        "tiny-gpt pending, 0 GPUs: because",
        "shapes batch 32 → 64",
        "tiny-gpt running, 2 GPUs: because",
        "shapes succeeded, 0 GPUs: because",
        "tiny-gpt succeeded, 0 GPUs: because",
    ]
    assert course.held == {"shapes": [1, 2], "tiny-gpt": [2]}


def test_a_job_and_then_the_scheduler_are_killed_on_the_way() -> None:
    scheduler = fake()
    run(scheduler, trouble=True)
    assert scheduler.done == ["killed shapes", "killed the scheduler", "started"]


def test_trouble_that_could_not_be_made_is_an_error() -> None:
    scheduler = FakeScheduler(
        shapes=[picture("shapes", "succeeded", 0, 32, 10.0)],
        tiny_gpt=[picture("tiny-gpt", "succeeded", 0, 32, 10.0)],
    )
    with pytest.raises(DemoError, match="before all of the trouble"):
        run(scheduler, trouble=True)


def test_jobs_that_never_end_are_given_up() -> None:
    endless = FakeScheduler(
        shapes=[picture("shapes", "running", 1, 32, 1.0)],
        tiny_gpt=[picture("tiny-gpt", "running", 2, 32, 1.0)],
    )
    with pytest.raises(DemoError, match="did not end"):
        run(endless, trouble=False, limit_s=0.01)
