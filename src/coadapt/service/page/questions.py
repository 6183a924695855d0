"""What-if questions of the page: one at a time, each in a process of its own."""

# A question takes seconds to minutes of CPU time. The process that answers it runs at a
# low priority, so that requests to the scheduler are answered as before. One question
# is computed at a time for all pages: a second one is refused until the first one is
# answered, stopped, or has run out of time. The last answer is kept for all open pages.

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import IO

from coadapt.model.wire import Json

TIMEOUT_S = 600.0
ERROR_SHOWN = 400

logger = logging.getLogger(__name__)


class QuestionState(StrEnum):
    """How far the computation of a question is."""

    BUSY = "busy"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question. began_at: s since 1970. answer: of its process; {} until then.

    progress: how many futures are computed, and how many in all; () until one is.
    """

    number: int
    state: QuestionState
    given: Mapping[str, Json]
    began_at: float
    took_s: float = 0.0
    answer: Mapping[str, Json]
    error: str = ""
    progress: tuple[int, ...] = ()

    def values(self) -> dict[str, Json]:
        """Return the question and its answer as plain data."""
        return {
            "number": self.number,
            "state": self.state.value,
            "asked": dict(self.given),
            "began_at": self.began_at,
            "took_s": round(self.took_s, 2),
            "answer": dict(self.answer),
            "error": self.error,
            "progress": list(self.progress),
        }


class BusyError(Exception):
    """Another question is being computed."""


class Questions:
    """Answers questions by `command`, which reads one as JSON and writes the answer.
    For any thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        now: Callable[[], float],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._command = list(command)
        self._now = now
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._latest: Asked | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def latest(self) -> Asked | None:
        """Return the question that was asked last."""
        with self._lock:
            return self._latest

    def ask(self, given: Mapping[str, Json]) -> Asked:
        """Begin to compute an answer. Raises BusyError."""
        with self._lock:
            before = self._latest
            if before is not None and before.state is QuestionState.BUSY:
                raise BusyError
            asked = Asked(
                number=1 if before is None else before.number + 1,
                state=QuestionState.BUSY,
                given=dict(given),
                began_at=self._now(),
                answer={},
            )
            self._stopped = False
            problems = tempfile.TemporaryFile()  # noqa: SIM115  # _answer closes it
            # A group of its own: the process has others that compute for it.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=problems,
                start_new_session=True,
            )
            self._latest = asked
            answering = threading.Thread(
                target=self._answer,
                args=(self._process, problems, asked),
                name="what-if",
                daemon=True,
            )
        answering.start()
        return asked

    def stop(self) -> None:
        """End the computation, if there is one."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _kill(self._process)

    def close(self) -> None:
        """End the computation: the scheduler stops."""
        self.stop()

    def _answer(
        self, process: "subprocess.Popen[bytes]", problems: IO[bytes], asked: Asked
    ) -> None:
        begun = time.monotonic()
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            _kill(process)

        timer = threading.Timer(self._timeout_s, end)
        timer.start()
        output = b""
        try:
            output = self._last_line(process, asked)
            process.wait()
        finally:
            timer.cancel()
            _kill(process)
            process.wait()
        with problems:
            problems.seek(0)
            answer, error = _read(output, problems.read(), process.returncode)
        if timed_out.is_set():
            answer = {}
            error = (
                f"it took longer than {self._timeout_s:g} s and was ended; on the "
                "command line `coadapt what-if --seconds 3600` may take longer"
            )
        with self._lock:
            self._process = None
            if self._stopped:
                state = QuestionState.STOPPED
                answer = {}
                error = ""
            else:
                state = QuestionState.FAILED if error else QuestionState.DONE
            took_s = time.monotonic() - begun
            self._latest = replace(
                asked, state=state, took_s=took_s, answer=answer, error=error
            )

    def _last_line(self, process: "subprocess.Popen[bytes]", asked: Asked) -> bytes:
        """Ask the process, and return the last line that it writes. The lines before it
        are its progress.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that does not read its question ends without an answer.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(dict(asked.given)).encode())
            process.stdin.close()
        last = b""
        for line in process.stdout:
            last = line
            if progress := _progress(line):
                with self._lock:
                    self._latest = replace(asked, progress=progress)
        return last


def _progress(line: bytes) -> tuple[int, ...]:
    """Return the numbers of a line of progress, () for any other line."""
    try:
        found = json.loads(line)
    except ValueError:
        return ()
    if not isinstance(found, dict) or found.keys() != {"progress"}:
        return ()
    return tuple(found["progress"])


def _read(output: bytes, problem: bytes, exit_code: int) -> tuple[dict[str, Json], str]:
    """Return the answer and what is wrong, of which one is empty."""
    try:
        answer = json.loads(output)
    except ValueError:
        answer = None
    if exit_code or not isinstance(answer, dict):
        text = problem.decode(errors="replace").strip()
        logger.warning("a what-if question failed: %s", text[-2_000:])
        last = text.splitlines()[-1] if text else "it printed nothing"
        return {}, f"exit code {exit_code}: {last[:ERROR_SHOWN]}"
    if "error" in answer:
        return {}, str(answer["error"])[:ERROR_SHOWN]
    return answer, ""


def _kill(process: "subprocess.Popen[bytes]") -> None:
    # The group outlives its first process while others of it run.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
