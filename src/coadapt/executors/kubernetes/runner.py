"""In a pod: the first process, above a job's command. `python3 -m … COMMAND…`. Standard
library only.

A shell as the first process would not pass on SIGTERM, and would not reap orphans. This
process passes SIGTERM to the listening processes below it. It ends with the command's
exit code, or 128 plus the signal's number.
"""

import os
import signal
import sys
import time
from types import FrameType

from coadapt.executors.processes.job_processes import (
    adopt_orphans,
    reap_orphans,
    terminate,
)

POLL_S = 0.05
BY_SIGNAL = 128

_told = False


def main(*command: str) -> None:
    """Run `command`; never returns."""
    signal.signal(signal.SIGTERM, _on_signal)
    adopt_orphans()
    child = os.posix_spawnp(command[0], list(command), os.environ, setsid=True)
    asked = False
    while True:
        if _told and not asked:
            terminate(child)
            asked = True
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else BY_SIGNAL - code)
        reap_orphans({child})
        time.sleep(POLL_S)


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    global _told  # noqa: PLW0603  # a signal handler has nowhere else to say it
    _told = True


if __name__ == "__main__":
    main(*sys.argv[1:])
