"""Replicas as forks of this process, which has imported PyTorch: a check of a tiny script takes seconds."""

import atexit
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO

POLL_S = 0.01


class Forked:
    """As much of `subprocess.Popen` as a check uses."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log: IO[bytes]
    ) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _run(command, env, log)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 1e9)
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        assert code is not None, "the process did not end"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
    """Become a replica that runs the script; never return."""
    code = 1
    try:
        os.setsid()
        atexit._clear()
        os.environ.clear()
        os.environ.update(env)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        sys.argv = list(command)
        sys.excepthook = sys.__excepthook__
        code = _code_of(command[0])
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  # whatever it is, this process must not go on as the test does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code_of(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(bool(ending.code))
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0
