"""One process of a job, as its launcher sees it: how it is started, and what its end means."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coadapt.executors.generation_dir import LaunchOrder
from coadapt.executors.job_processes import terminate
from coadapt.model.contract_env import EXIT_STOPPED

TAIL_LINES = 8
TAIL_BYTES = 4096

# Signals that an operator, the kernel's memory killer or a shutdown sends: not the script's own fault.
OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# A shell reports a child that was killed by signal N as exit code 128 + N.
SHELL_SIGNAL_BASE = 128


@dataclass(slots=True, eq=False)
class Replica:
    """A process under its name (model/rescale.py), and its log. asked: it was told to end."""

    name: str
    log: str
    process: "subprocess.Popen[bytes]"
    asked: bool = False

    @property
    def code(self) -> int | None:
        """Return how it ended, None while it lives."""
        return self.process.poll()

    @property
    def lost(self) -> bool:
        """Return whether it ended through no fault of the script.

        One that stopped although nobody here asked it to obeyed a signal from outside.
        """
        return self.code == EXIT_STOPPED or _signal_number(self.code or 0) in OUTSIDE_SIGNALS

    def ask(self) -> set[int]:
        """Tell it once to save and end; return the ids of the processes that were told."""
        if self.asked or self.code is not None:
            return set()
        self.asked = True
        return terminate(self.process.pid)

    def report(self, who: str) -> str:
        """Return how it failed, in words, with the end of its log."""
        code = self.code or 0
        number = _signal_number(code)
        known = number in {member.value for member in signal.Signals}
        how = f"was killed by {signal.Signals(number).name}" if known else f"exited with code {code}"
        if number == signal.SIGKILL:
            how += " from outside (by a person, or by the kernel when memory ran out)"
        tail = _tail(self.log)
        # The last line alone often says it all, and it is what a table has room for.
        last = f": {tail[-1].strip()}" if tail else ""
        more = "\n".join(["\nthe end of its log:", *tail]) if len(tail) > 1 else ""
        return f"{who} {how}{last}{more}"


def spawn(order: LaunchOrder, command: str, name: str, log: str, envs: Mapping[str, str]) -> Replica:
    """Start `command` as `order` says. Raises OSError if that is impossible."""
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [shell, "-c", command],
            cwd=order.workdir,
            env={**os.environ, **order.envs, **envs},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Replica(name=name, log=log, process=process)


def first_failed(replicas: Iterable[Replica]) -> Replica | None:
    """Return one that failed, if any: one ended by a signal first, since its peers fail in its wake."""
    failed = [replica for replica in replicas if replica.code]
    return min(failed, key=lambda replica: not _signal_number(replica.code or 0), default=None)


def _signal_number(code: int) -> int:
    """Return the signal that ended a process with this exit code, 0 if none did."""
    if code < 0:
        return -code
    return code - SHELL_SIGNAL_BASE if SHELL_SIGNAL_BASE < code < SHELL_SIGNAL_BASE + signal.NSIG else 0


def _tail(log: str) -> list[str]:
    with open(log, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        text = file.read().decode(errors="replace")
    return text.rstrip().splitlines()[-TAIL_LINES:]
