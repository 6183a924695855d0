"""The processes that the demo starts, and their end: plain runs of the scripts, and the
scheduler.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coadapt.cli.client import Client, find_client
from coadapt.cli.demo.scheduler_process import DemoError, answers, end
from coadapt.executors.processes.job_processes import marked_processes
from demo.plan import DemoJob, find_result

NUM_SLOTS = 4
ON_THIS_MACHINE = ("--slots", str(NUM_SLOTS))
NUM_PLAIN_AT_ONCE = 2
ROUND_S = 10.0
REACTION_S = 1.0
GRACE_S = 20.0
UP_TIMEOUT_S = 60.0
PLAIN_TIMEOUT_S = 300.0

Result = tuple[str, float]


def run_plain(
    jobs: Sequence[DemoJob], done: Callable[[DemoJob, Result], None]
) -> dict[str, Result]:
    """Run each job's command by itself, without the scheduler, in one process; return
    its figure by job name.

    `done` is called with each result. Raises DemoError if a script fails.
    """
    waiting = list(jobs)
    running = dict[str, tuple[DemoJob, subprocess.Popen[str]]]()
    results: dict[str, Result] = {}
    try:
        while waiting or running:
            while waiting and len(running) < NUM_PLAIN_AT_ONCE:
                job = waiting.pop(0)
                running[job.name] = (job, _start_plain(job))
            name = next(
                (
                    name
                    for name, (_, process) in running.items()
                    if process.poll() is not None
                ),
                None,
            )
            if name is None:
                time.sleep(0.05)
                continue
            job, process = running.pop(name)
            output, errors = process.communicate(timeout=PLAIN_TIMEOUT_S)
            result = find_result(output)
            if process.returncode or result is None:
                raise DemoError(
                    f"{job.file.run}, by itself, failed: {errors.strip()[-500:]}"
                )
            results[name] = result
            done(job, result)
    finally:
        for _, process in running.values():
            process.kill()
            process.wait()
    return results


class LiveScheduler:
    """`coadapt up` on a fresh state directory, started and spoken to as a user
    would.
    """

    def __init__(self, folder: Path, engine: Sequence[str] = ON_THIS_MACHINE) -> None:
        """`folder`: for the state directory and the scheduler's log. `engine`: the
        options of `up` for it.
        """
        self.state = folder / "state"
        self.log = folder / "scheduler.log"
        self._engine = engine
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the scheduler and wait until it answers. Raises DemoError if it does
        not.
        """
        command = _coadapt(
            "up", *self._engine, "--state", str(self.state), "--grace", str(GRACE_S),
            "--round", str(ROUND_S), "--reaction", str(REACTION_S),
        )  # fmt: skip
        if not (self.state / "connection.json").exists():
            command += ["--port", "0"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_clean_environment(),
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + UP_TIMEOUT_S
        while not answers(self.state):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(
                    f"the scheduler did not start: {self.log.read_text()[-500:]}"
                )
            time.sleep(0.1)

    def client(self) -> Client:
        return find_client(self.state)

    def submit(self, job: DemoJob) -> str:
        """Submit the job by the command line; return its id."""
        return self.coadapt("submit", str(job.path)).strip()

    def coadapt(self, verb: str, *arguments: str) -> str:
        """Return what a verb of the command line prints. Raises DemoError with its
        one-line error.
        """
        command = _coadapt(verb, *arguments, "--state", str(self.state))
        run = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
            env=_clean_environment(),
        )  # fmt: skip
        if run.returncode:
            raise DemoError(f"coadapt {verb}: {run.stderr.strip()}")
        return run.stdout

    def checkpoints(self, job: str) -> Path:
        return self.state / "jobs" / job / "checkpoints"

    def kill_replica(self, job: str) -> int | None:
        """kill -9 the newest process of a job, a training replica; return its id, None
        if none lives.
        """
        alive = marked_processes(self.checkpoints(job))
        if not alive:
            return None
        with suppress(ProcessLookupError):
            os.kill(max(alive), signal.SIGKILL)
        return max(alive)

    def kill(self) -> int:
        """kill -9 the scheduler; return its process id."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        return self._process.pid

    def stop(self) -> None:
        """End the scheduler, and every process of every job of its state directory."""
        end(self._process, self.state)


def _start_plain(job: DemoJob) -> subprocess.Popen[str]:
    environment = _clean_environment()
    return subprocess.Popen(
        ["bash", "-c", f"exec {job.file.run}"],
        cwd=job.file.workdir,
        env={
            **environment,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        },
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _clean_environment() -> Mapping[str, str]:
    """This process' environment without settings of Coadapt's; one thread per process,
    as in a CPU slot.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("COADAPT_")
    }
    return {**kept, "OMP_NUM_THREADS": "1"}


def _coadapt(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("coadapt")), *arguments]
