"""One side of `coadapt demo`: a real scheduler, and what its jobs got."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from coadapt.cli.client import (
    Client,
    JsonObject,
    UnreachableError,
    find_client,
)
from coadapt.cli.demo.plan import NUM_SLOTS, DemoJob
from coadapt.cli.demo.scheduler_process import DemoError, answers, end
from coadapt.cli.jobs.submit import checked

ROUND_S = 5.0
REACTION_S = 0.5
START_TIMEOUT_S = 60.0
ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(slots=True)
class JobRun:
    """What a job got. gpus: (seconds since the first job arrived, GPUs) at each change.

    arrived_s, ended_s: also since the first job arrived. reasons: the scheduler's
    reason each time that its first clause changed.
    """

    job: DemoJob
    id: str
    arrived_s: float
    gpus: list[tuple[float, int]] = field(default_factory=list)
    reasons: list[tuple[float, str]] = field(default_factory=list)
    state: str = "pending"
    ended_s: float | None = None

    @property
    def took_s(self) -> float | None:
        """Seconds from its arrival to its end; None before that."""
        return None if self.ended_s is None else self.ended_s - self.arrived_s

    def note(self, at_s: float, picture: JsonObject) -> None:
        """Note what the scheduler shows of the job at `at_s`."""
        if self.ended_s is not None:
            return
        self.state = str(picture["state"])
        num_gpus = cast(int, picture["num_gpus"]) if self.state == "running" else 0
        if (self.gpus[-1][1] if self.gpus else 0) != num_gpus:
            self.gpus.append((at_s, num_gpus))
        reason = str(picture["explanation"]).splitlines()[0]
        if not self.reasons or _clause(self.reasons[-1][1]) != _clause(reason):
            self.reasons.append((at_s, reason))
        if self.state in ENDED:
            self.ended_s = at_s


def _clause(reason: str) -> str:
    """Return what a reason says before the time that is left, which always changes."""
    return reason.partition(";")[0]


class Side:
    """`coadapt up` under one policy, on a state directory of its own."""

    def __init__(self, policy: str, folder: Path, *, elastic: bool) -> None:
        self.policy = policy
        self.elastic = elastic
        self.runs: list[JobRun] = []
        self._state = folder / "state"
        self._files = folder / "jobs"
        self._log = folder / "scheduler.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the scheduler; `wait_until_up` waits for it."""
        self._files.mkdir(parents=True)
        command = [
            sys.executable, "-c", "from coadapt.cli.main import main; main()",
            "up", "--slots", str(NUM_SLOTS), "--state", str(self._state), "--port", "0",
            "--policy", self.policy, "--round", str(ROUND_S),
            "--reaction", str(REACTION_S),
        ]  # fmt: skip
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("COADAPT_")
        }
        # For four jobs plain Python decides in milliseconds; compiling takes minutes.
        environment["NUMBA_DISABLE_JIT"] = "1"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """Return once the scheduler answers. Raises DemoError if it does not."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self._state):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace").strip()[-500:]
                raise DemoError(
                    f"the scheduler under {self.policy} did not start: {said}"
                )
            time.sleep(0.1)

    def submit(self, job: DemoJob, at_s: float) -> None:
        """Submit a job, by its job file, as `coadapt submit` does."""
        path = self._files / f"{job.name}.yaml"
        path.write_text(job.file(elastic=self.elastic))
        found = self._client().post("/v1/jobs", checked(path, on_disk=True))
        self.runs.append(JobRun(job=job, id=str(found["id"]), arrived_s=at_s))

    def look(self, at_s: float) -> None:
        """Note what the scheduler shows of all jobs."""
        try:
            cluster = self._client().get("/v1/cluster")
        except UnreachableError:
            return
        pictures = {
            str(picture["id"]): picture
            for picture in cast("list[JsonObject]", cluster["jobs"])
        }
        for run in self.runs:
            if (picture := pictures.get(run.id)) is not None:
                run.note(at_s, picture)

    def ended(self, jobs: Sequence[DemoJob]) -> bool:
        """Return whether all of `jobs` have been submitted and have ended."""
        done = [run for run in self.runs if run.ended_s is not None]
        return len(done) == len(jobs)

    def stop(self) -> None:
        """End the scheduler and every process of its jobs."""
        end(self._process, self._state)

    def _client(self) -> Client:
        return find_client(self._state)
