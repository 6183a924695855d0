"""Asks a Ray cluster through a process that may die without the scheduler."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

CLIENT = "coadapt.executors.ray.client_process"
# How Ray's client finds the cluster's token. A job's `run` does not get them.
ENV_AUTH_MODE = "RAY_AUTH_MODE"
TOKEN_ENVS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# Ray's library itself tries to connect for a minute, and then ends the process.
CONNECT_S = 5.0
START_S = 180.0
ANSWER_S = 20.0
# The pause between two tries to connect. It doubles with each failure, because a try
# takes 2 s of CPU time.
RETRY_S = 2.0
RETRY_MAX_S = 15.0
LAST_BYTES = 4096
ENDING_S = 2.0

# An answer of client_process.py. If it has a field `error`, it has no other field.
Answer = Mapping[str, Any]


class RayAwayError(Exception):
    """Ray cannot be asked now. str(error) is the reason, in one line."""


class RayClient:
    """Starts the process at the first question, and again after it died.

    Any thread may call it. After `ask` raised RayAwayError the next `ask` connects
    again, maybe to a cluster at another address.
    """

    def __init__(self, address: str) -> None:
        """`address`: `HOST:PORT`, or a word that Ray's client resolves."""
        self._given = address
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._buffer = b""
        self._closed = False
        self._why_away = ""
        self._retry_at = 0.0
        self._retry_s = RETRY_S
        # The output of the process. Ray's library prints there why it ends the process.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this object
        self.address = ""
        self.own_address = ""
        # The cluster's RAY_AUTH_MODE, "" for Ray's default.
        self.auth_mode = ""

    def connect(self) -> None:
        """Connect, unless already connected. Raises RayAwayError."""
        with self._lock:
            self._connect()

    def ask(self, what: str, **values: object) -> Answer:
        """Return the answer to one of client_process.QUESTIONS. Raises RayAwayError."""
        with self._lock:
            self._connect()
            if not reaches(self.address, CONNECT_S):
                self._end()
                raise RayAwayError(f"nothing answers at {self.address}")
            return self._exchange({"ask": what, **values}, ANSWER_S)

    def close(self) -> None:
        """End the process. Later questions raise RayAwayError."""
        with self._lock:
            self._closed = True
            self._end()

    def _connect(self) -> None:
        if self._line is not None:
            return
        if self._closed:
            raise RayAwayError("the client is closed")
        given = self._given
        if is_address(given) and not reaches(given, CONNECT_S):
            raise RayAwayError(f"nothing answers at {given}")
        if time.monotonic() < self._retry_at:
            raise RayAwayError(self._why_away)
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
        self._start(given)
        self._retry_at = 0.0
        self._retry_s = RETRY_S

    def _start(self, given: str) -> None:
        """Start the process and wait until it is connected. Raises RayAwayError."""
        self._said.seek(0)
        self._said.truncate()
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", CLIENT, str(fd), given],
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,
            )
        self._line = ours
        self._buffer = b""
        answer = self._exchange(None, START_S)
        self.address = str(answer["address"])
        self.own_address = str(answer["own_address"])
        self.auth_mode = str(answer["auth_mode"])

    def _exchange(self, question: object, wait_s: float) -> Answer:
        """Send `question` unless it is None; return the answer. An error ends the
        process.
        """
        assert self._line is not None
        self._line.settimeout(wait_s)
        try:
            if question is not None:
                self._line.sendall(json.dumps(question).encode() + b"\n")
            answer: Answer = json.loads(self._read_line())
        except TimeoutError:
            answer = {"error": f"Ray gave no answer for {wait_s:g} s"}
        except OSError as error:
            why = f"Ray's client ended: {self._last_line() or error}"
            answer = {"error": why}
        if "error" in answer:
            self._end()
            self._why_away = str(answer["error"])
            raise RayAwayError(self._why_away)
        return answer

    def _read_line(self) -> bytes:
        assert self._line is not None
        while b"\n" not in self._buffer:
            data = self._line.recv(1 << 20)
            if not data:
                self._let_it_end()
                raise ConnectionError("it died without an answer")
            self._buffer += data
        answer, _, self._buffer = self._buffer.partition(b"\n")
        return answer

    def _let_it_end(self) -> None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)

    def _last_line(self) -> str:
        """Return what the process printed last, "" if nothing."""
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(self._said.tell() - LAST_BYTES, 0))
        lines = self._said.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def is_address(text: str) -> bool:
    """Return whether `text` is `HOST:PORT`."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdecimal()


def reaches(address: str, within_s: float) -> bool:
    """Return whether something listens at `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), within_s).close()
    except OSError:
        return False
    return True
