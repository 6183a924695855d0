"""What a process does that stands here for another one: it says that one has begun, and
ends as that one did.
"""

import os
import signal
from pathlib import Path
from typing import NoReturn

# Set by the launcher: the file that a process which stands for a replica makes once
# that replica lives.
ENV_BEGUN = "COADAPT_BEGUN_FILE"
# To the launcher: the replica never began, because what it needs was not to be had.
EXIT_NOT_BEGUN = 80
# How a line of its output begins that says why nothing is known of the replica any
# more.
NODE_LOST = "this replica's node is lost: "


class Begun:
    """Says once that the replica lives. Takes the name of the file out of the
    environment.
    """

    def __init__(self) -> None:
        self._file = os.environ.pop(ENV_BEGUN, "")
        self.is_told = False

    def tell(self) -> None:
        if not self.is_told and self._file:
            Path(self._file).touch()
        self.is_told = True


def end_as(code: int) -> NoReturn:
    """End at once, by the same exit code, or by the same signal where `code` is one
    below 0.
    """
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)
