"""A proxy: a local process that represents a replica on another machine. It reports
that the replica has begun, and ends in the same way.
"""

import os
import signal
from pathlib import Path
from typing import NoReturn

# Set by the launcher: the file that a proxy creates once its replica lives.
ENV_BEGUN = "COADAPT_BEGUN_FILE"
# Exit code for the launcher: the replica never began, because its resources were not
# available.
EXIT_NOT_BEGUN = 80
# The beginning of a line of a proxy's output that says why nothing is known about the
# replica any more.
NODE_LOST = "this replica's node is lost: "


class Begun:
    """Reports once that the replica lives. Removes the name of the file from the
    environment.
    """

    def __init__(self) -> None:
        self._file = os.environ.pop(ENV_BEGUN, "")
        self.is_reported = False

    def tell(self) -> None:
        if not self.is_reported and self._file:
            Path(self._file).touch()
        self.is_reported = True


def end_as(code: int) -> NoReturn:
    """End at once with the same exit code, or by the same signal if `code` is
    negative.
    """
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    os._exit(code)
