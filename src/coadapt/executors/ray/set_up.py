"""On a Ray node, in a directory that Ray has brought there: runs `setup` once, then
replaces itself by the command.

Started as `python -m … SETUP COMMAND…`. If replicas start together, the first one runs
`setup` and the others wait for it.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from coadapt.executors.processes.replica import shell

DIGITS = 16


def main(setup: str, *command: str) -> NoReturn:
    """Run `setup`, unless it has run here, and become `command`. If `setup` fails, end
    with its exit code.
    """
    done = Path(f".coadapt-setup-{hashlib.sha256(setup.encode()).hexdigest()[:DIGITS]}")
    with open(
        f"{done}.lock", "a"
    ) as lock:  # closed when this process ends or becomes the command
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            code = subprocess.run(
                shell(setup), stdin=subprocess.DEVNULL, check=False
            ).returncode
            if code:
                sys.stdout.write(
                    f"error: setup failed on this node, with exit code {code}\n"
                )
                sys.stdout.flush()
                sys.exit(code if code > 0 else 1)
            done.touch()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
