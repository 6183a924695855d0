"""A real `coadapt up` in a process of its own on CPU slots, for tests of the live
system.
"""

import io
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import cast
from unittest import mock

from coadapt.cli.client import (
    Client,
    JsonObject,
    RefusedError,
    UnreachableError,
    find_client,
)
from coadapt.cli.main import main
from coadapt.executors.processes.job_processes import kill_marked
from coadapt.model.wire import Json
from tests.marked import kill_of

PATIENCE_S = 120.0
COMMAND = (sys.executable, "-c", "from coadapt.cli.main import main; main()")

# Counts in its checkpoint, and goes on from there, to $TARGET and until the file $GATE
# is there (default: at once); notes each start, and any second life beside it.
COUNTER = """\
cd "$COADAPT_CHECKPOINT_DIR"
exec 9> alive
flock -n 9 || { echo "two lives in generation $COADAPT_GENERATION" >> trace; exit 1; }
n=$(cat count 2> /dev/null || echo 0)
echo "generation $COADAPT_GENERATION starts at $n" >> trace
trap 'exit 75' TERM
while [ $n -lt "$TARGET" ] || ! [ -e "${GATE:-.}" ]; do
  sleep 0.05
  n=$((n + 1)); echo $n > count.new; mv count.new count
done
echo "generation $COADAPT_GENERATION ends at $n" >> trace
"""


def run_cli(
    *arguments: str, state: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, **({"COADAPT_STATE": str(state)} if state else {})}
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def call_cli(
    *arguments: str, state: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command in this process: for what is refused before anything begins."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    environ = {"COADAPT_STATE": str(state)} if state else {}
    code: object = 0
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.object(sys, "argv", ["coadapt", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    texts = []
    for stream in (output, errors):
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(arguments, cast(int, code), *texts)


def until(
    condition: Callable[[], bool],
    what: str,
    *,
    within_s: float = PATIENCE_S,
    every_s: float = 0.05,
) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(every_s)


def unused_port() -> int:
    """Return a port that nothing listens on, below those that the kernel gives to
    outgoing connections. So none takes it while the scheduler is down.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class LiveCluster:
    """A scheduler on four CPU slots in `folder`, which can be killed and started
    again.
    """

    def __init__(
        self,
        folder: Path,
        policy: str = "fifo",
        engine: tuple[str, ...] = (),
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """`engine`: options of `coadapt up` that name another executor than the local
        one. `command`: what starts `coadapt`.
        """
        self.command = command
        self.folder = folder
        self.state = folder / "state"
        self.policy = policy
        self.engine = engine
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> Client:
        return find_client(self.state)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def up(
        self, slots: int | None = 4, *, round_s: int = 1, in_place: bool = True
    ) -> None:
        known = (self.state / "connection.json").exists()
        port = [] if known else ["--port", str(unused_port())]
        timing = [
            "--round",
            str(round_s),
            "--reaction",
            "0.1",
            "--settle",
            "0",
            "--grace",
            "5",
        ]
        where = [
            *(() if slots is None else ("--slots", str(slots))),
            "--state",
            str(self.state),
            "--policy",
            self.policy,
        ]
        arguments = [
            "up",
            *where,
            *timing,
            *port,
            *self.engine,
            "--in-place" if in_place else "--no-in-place",
        ]
        with (self.folder / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, *arguments], stdout=log, stderr=log
            )
        until(
            self._answers,
            f"the scheduler answers: {(self.folder / 'up.log').read_text()}",
        )

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the scheduler's process; return its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        """Leave nothing behind, jobs included."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for job in (self.state / "jobs").glob("*"):
            kill_marked(job / "checkpoints")

    def submit(
        self,
        name: str,
        run: str = COUNTER,
        gpus: str = "1",
        *,
        max_failures: int = 3,
        **envs: object,
    ) -> str:
        """Submit a job and return its id. It rests before it tries again: 5 s, then 10
        s, then 20 s.
        """
        job = {
            "max_failures": max_failures,
            "name": name,
            "run": run,
            "workdir": str(self.folder),
            "envs": envs,
            "batch": {"initial": 8},
            "resources": {"gpus": gpus},
        }
        return str(self.client.post("/v1/jobs", cast(Json, job))["id"])

    def job(self, job: str) -> JsonObject:
        return self.client.get(f"/v1/jobs/{job}")

    def wait_for(
        self, job: str, *states: str, within_s: float = PATIENCE_S
    ) -> JsonObject:
        waited_for = f"{job} is {states}: {self.job(job)['explanation']}"
        # Each look is a request that both processes pay for.
        until(
            lambda: self.job(job)["state"] in states,
            waited_for,
            within_s=within_s,
            every_s=0.15,
        )
        return self.job(job)

    def checkpoints(self, job: str) -> Path:
        return self.state / "jobs" / job / "checkpoints"

    def trace(self, job: str) -> list[str]:
        path = self.checkpoints(job) / "trace"
        return path.read_text().splitlines() if path.exists() else []

    def count(self, job: str) -> int:
        path = self.checkpoints(job) / "count"
        return int(path.read_text()) if path.exists() else 0

    def kill_job(self, job: str, *, launcher: bool) -> None:
        """Kill -9 the job's launcher, or everything but its launcher."""
        kill_of(self.checkpoints(job), launcher=launcher)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "up.log").read_text()
        try:
            return self.client.get("/v1/healthz")["status"] == "ok"
        except (UnreachableError, RefusedError):
            return False
