"""What a process does at its end that stands here for another one: it ends as that one did."""

import os
import signal
from typing import NoReturn


def end_as(code: int) -> NoReturn:
    """End at once, by the same exit code, or by the same signal where `code` is one below 0."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)
