"""`python SCRIPT ...` as a fork of the server that has torch loaded: a start costs
milliseconds, not seconds.

What differs from a fresh process: `/proc/PID/environ` and the command line are the
server's, so what a launcher finds by its mark in the environment is not found, and
modules that the server has imported are not imported again.
"""

import atexit
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO

import numpy as np

from tests.train.replicas import forked

POLL_S = 0.01


class ForkedScript:
    """As much of `subprocess.Popen` as a check and the examples' tests use."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: IO[bytes],
        cwd: str | None = None,
    ) -> None:
        """Start the script `command[0]`, in a session of its own; its output is
        appended to `log`.
        """
        self._process = forked(
            _become_script,
            (list(command), dict(env), os.path.abspath(log.name), cwd or os.getcwd()),
        )
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 1e9)
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        assert code is not None, "the process did not end"
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _become_script(
    command: Sequence[str], env: Mapping[str, str], log: str, cwd: str
) -> None:
    """Become the process that runs the script; never return."""
    from coadapt.train.exits.stop import register_end

    code = 1
    try:
        os.setsid()
        os.chdir(cwd)
        atexit._clear()
        register_end()
        os.environ.clear()
        os.environ.update(env)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # A fresh process draws its own; `random` does so after each fork by itself.
        np.random.seed()  # noqa: NPY002  # the global generator is what scripts use
        sys.argv = list(command)
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        sys.excepthook = sys.__excepthook__
        code = _code_of(command[0])
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  # whatever it is, this process must not go on as the server does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if (
            code == -signal.SIGINT
        ):  # as the interpreter does: its parent sees the signal
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def _code_of(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return ending.code or 0
        print(ending.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0
