"""The demo's course: jobs are submitted one after another, looked at until they end,
disturbed if asked.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from coadapt.cli.client import JsonObject, UnreachableError
from coadapt.cli.demo.scheduler_process import DemoError
from coadapt.cli.jobs.job_states import ENDED
from coadapt.cli.jobs.job_table import done
from demo.plan import DemoJob
from demo.processes import LiveScheduler

# share of the job's progress that is done by then
KILL_JOB_AT = 0.3
KILL_SCHEDULER_AT = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between two looks; that the scheduler stays down when killed; after which
    the demo gives up.
    """

    look_s: float = 0.5
    down_s: float = 2.0
    limit_s: float = 600.0


Tell = Callable[[float, str], None]
Show = Callable[[JsonObject], None]


@dataclass(slots=True)
class Course:
    """What happened. ids: job ids by name. held: how many GPUs each job held, one
    number after another.
    """

    ids: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    cluster: JsonObject = field(default_factory=dict)

    def job(self, name: str) -> JsonObject | None:
        """Return the last picture of a job, None before the scheduler knew it."""
        jobs = cast("list[JsonObject]", self.cluster.get("jobs", []))
        return next((job for job in jobs if job["id"] == self.ids.get(name)), None)

    def ended(self, jobs: Sequence[DemoJob]) -> bool:
        pictures = [self.job(job.name) for job in jobs]
        return all(
            picture is not None and picture["state"] in ENDED for picture in pictures
        )


class Timeline:
    """Runs `jobs` on the scheduler. tell: called with (seconds, text) at each change;
    show: at every look.
    """

    def __init__(
        self,
        scheduler: LiveScheduler,
        jobs: Sequence[DemoJob],
        tell: Tell,
        show: Show,
        pace: Pace | None = None,
    ) -> None:
        self.course = Course()
        self._scheduler = scheduler
        self._jobs = jobs
        self._tell = tell
        self._show = show
        self._pace = pace or Pace()
        self._began = time.monotonic()
        self._last: dict[str, tuple[object, ...]] = {}

    def run(self, with_trouble: bool) -> Course:
        """Return when all jobs ended. Raises DemoError if that takes too long."""
        trouble = [self._kill_replica, self._kill_scheduler] if with_trouble else []
        while not self.course.ended(self._jobs):
            if self._elapsed() > self._pace.limit_s:
                raise DemoError(f"the jobs did not end within {self._pace.limit_s:g} s")
            # One at a time: where a submission takes long, no job may come and go
            # between two looks.
            if (job := next(filter(self._is_due, self._jobs), None)) is not None:
                self.course.ids[job.name] = self._scheduler.submit(job)
            self._look()
            if trouble and trouble[0]():
                trouble.pop(0)
            time.sleep(self._pace.look_s)
        if trouble:
            raise DemoError("the jobs ended before all of the trouble was made")
        return self.course

    def _is_due(self, job: DemoJob) -> bool:
        return job.name not in self.course.ids and self._elapsed() >= job.at_s

    def _look(self) -> None:
        try:
            self.course.cluster = self._scheduler.client().get("/v1/cluster")
        except UnreachableError:
            return
        for name in self.course.ids:
            if (picture := self.course.job(name)) is not None:
                self._note(name, picture)
        self._show(self.course.cluster)

    def _note(self, name: str, picture: JsonObject) -> None:
        """Tell what is new about a job."""
        num_gpus = cast(int, picture["num_gpus"])
        batch = cast("JsonObject | None", picture["batch"])
        total = batch["total"] if batch else None
        before = self._last.get(name, (None, 0, None))
        now = (picture["state"], num_gpus, total)
        self._last[name] = now
        if (
            now[0] == "running"
            and num_gpus
            and self.course.held.get(name, [0])[-1] != num_gpus
        ):
            self.course.held.setdefault(name, []).append(num_gpus)
        if now[:2] != before[:2]:
            gpus = f"{num_gpus} GPU{'s' * (num_gpus != 1)}"
            self._say(
                name,
                f"{picture['state']}, {gpus}: "
                f"{str(picture['explanation']).splitlines()[0]}",
            )
        elif total != before[2] and before[2] is not None:
            self._say(name, f"batch {before[2]} → {total}")

    def _kill_replica(self) -> bool:
        """Kill a replica of the first job when it is well on its way."""
        name = self._jobs[0].name
        if not self._is_on_its_way(name, KILL_JOB_AT):
            return False
        pid = self._scheduler.kill_replica(self.course.ids[name])
        if pid is not None:
            self._say(name, f"KILL -9 of its process {pid}, in the middle of an epoch")
        return pid is not None

    def _kill_scheduler(self) -> bool:
        """Kill the scheduler while the rigid job runs, and start it again."""
        if not self._is_on_its_way("tiny-gpt", KILL_SCHEDULER_AT):
            return False
        self._say(
            "scheduler",
            f"KILL -9 of the scheduler, process {self._scheduler.kill()}; jobs keep running",
        )
        time.sleep(self._pace.down_s)
        self._scheduler.start()
        self._say("scheduler", "started again on the same state directory")
        return True

    def _is_on_its_way(self, name: str, share: float) -> bool:
        picture = self.course.job(name)
        return (
            picture is not None
            and picture["state"] == "running"
            and (done(picture) or 0.0) >= share
        )

    def _say(self, name: str, text: str) -> None:
        self._tell(self._elapsed(), f"{name:<13} {text}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
