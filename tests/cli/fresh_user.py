"""The scheduler as an ordinary user under umask 002, 022 and 077: up, submit, ls,
cancel, doctor, a restart.

As root: `python -m tests.cli.fresh_user [UID]`. It ends with 0 if every step of every
umask went well.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cli.live_cluster import COMMAND

UMASKS = (0o002, 0o022, 0o077)
USER = 23456
PATIENCE_S = 90.0
JOB = "name: sleeper\nrun: sleep 300\nbatch: {initial: 8}\nresources: {gpus: 1}\n"


def main(uid: int) -> int:
    wrong = 0
    for umask in UMASKS:
        with tempfile.TemporaryDirectory() as home:
            os.chown(home, uid, uid)
            wrong += not _User(uid, umask, Path(home)).all_goes_well()
    return wrong


class _User:
    """A user with an empty home."""

    def __init__(self, uid: int, umask: int, home: Path) -> None:
        # The installation may lie where only root looks: the user may read, and writes
        # as itself.
        user = f"--reuid={uid} --regid={uid} --clear-groups"
        reads = "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
        self._become = ["setpriv", *user.split(), *reads.split()]
        self._umask = umask
        self._home = home
        self._environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": "src",
            "NUMBA_CACHE_DIR": str(home / "numba"),
        }

    def all_goes_well(self) -> bool:
        steps: list[bool] = []
        (self._home / "job.yaml").write_text(JOB)
        for _ in range(2):
            up = self._start()
            try:
                steps.append(self._answers(up))
                job = self._verb("submit", str(self._home / "job.yaml"), "--elsewhere")
                steps.append(bool(job))
                steps += [bool(self._verb(verb)) for verb in ("ls", "doctor")]
                steps.append(bool(self._verb("cancel", job)))
                self._wait_for_end(job)
            finally:
                up.terminate()
                steps.append(up.wait(PATIENCE_S) == 0)
        print(f"umask {self._umask:03o}: {sum(steps)} of {len(steps)} steps went well")
        return all(steps)

    def _start(self) -> "subprocess.Popen[bytes]":
        options = ("--slots", "1", "--port", "0", "--policy", "fifo", "--round", "1")
        return subprocess.Popen(
            [*self._become, *COMMAND, "up", *options],
            env=self._environ,
            umask=self._umask,
            stdout=subprocess.DEVNULL,
        )

    def _answers(self, up: "subprocess.Popen[bytes]") -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and up.poll() is None:
            if self._verb("tenant", "ls", loud=False) is not None:
                return True
            time.sleep(0.5)
        return False

    def _wait_for_end(self, job: str | None) -> None:
        if job:
            self._verb("wait", job, "--timeout", "60", loud=False)

    def _verb(self, *arguments: str, loud: bool = True) -> str | None:
        """Return what a verb printed, None where it failed."""
        done = subprocess.run(
            [*self._become, *COMMAND, *arguments],
            env=self._environ,
            umask=self._umask,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and loud:
            print(f"umask {self._umask:03o}: {arguments}: {done.stderr.strip()}")
        return None if done.returncode else done.stdout.strip() or "done"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else USER))
