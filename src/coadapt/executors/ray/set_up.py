"""On a Ray node, in a directory that Ray has brought there: `setup` once, then the
command in its place.

Started as `python -m … SETUP COMMAND…`. Replicas that start together wait for the first
one's.
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
    """Run `setup` unless it was, here, and become `command`; end with its exit code
    where it fails.
    """
    done = Path(f".coadapt-setup-{hashlib.sha256(setup.encode()).hexdigest()[:DIGITS]}")
    with open(
        f"{done}.lock", "a"
    ) as lock:  # goes with this process, or as it becomes another
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
