"""One small process per (job, generation): sets up, starts the replicas, waits, and writes how they ended.

It outlives the scheduler, so that a restarted scheduler finds the replicas as it left them. Standard library
only: it is up in a blink. Started as `python -m coadapt.executors.launcher GENERATION_DIR`.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from coadapt.core.events import Outcome
from coadapt.executors.generation_dir import Fate, GenerationDir, JobDir, LaunchOrder
from coadapt.executors.job_processes import kill_marked, marked_processes, terminate
from coadapt.model.contract_env import EXIT_STOPPED

# How often children and the stop file are looked at: half of it is added to each stop, at 0.1 % of a core.
POLL_S = 0.05
# Peers of a failed replica cannot finish a collective, so they get less time than an orderly stop.
PEER_GRACE_S = 5.0
# The launcher of the generation before may still be on its last lines when its successor starts.
LOCK_WAIT_S = 10.0
TAIL_LINES = 8
TAIL_BYTES = 4096

# Signals that an operator, the kernel's memory killer or a shutdown sends: not the script's own fault.
OUTSIDE_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
# A shell reports a child that was killed by signal N as exit code 128 + N.
SHELL_SIGNAL_BASE = 128


def main(generation_dir: str, lock_wait_s: float = LOCK_WAIT_S) -> None:
    """Carry out the order in `generation_dir`, unless its fate is written or another launcher lives."""
    path = Path(generation_dir)
    directory = GenerationDir(JobDir(path.parent.parent), int(path.name))
    with directory.job.lock(lock_wait_s) as held:
        if not held or directory.fate() is not None:
            return
        order = directory.order()
        assert order is not None, f"{path} holds no order"
        try:
            fate = _Launcher(directory, order).run()
        except OSError as error:
            fate = Fate(outcome=Outcome.FAILED, detail=f"could not be started: {error}")
        kill_marked(directory.job.checkpoints)
        directory.write_fate(fate)


class _Launcher:
    def __init__(self, directory: GenerationDir, order: LaunchOrder) -> None:
        self._directory = directory
        self._order = order
        self._told_to_stop = False
        for number in OUTSIDE_SIGNALS - {signal.SIGKILL}:
            signal.signal(number, self._on_signal)

    def run(self) -> Fate:
        """Set up, start the replicas, wait for all of them; return how they ended."""
        if not Path(self._order.workdir).is_dir():
            return Fate(outcome=Outcome.FAILED, detail=f"workdir {self._order.workdir} is not a directory")
        fate = self._set_up()
        if fate is not None:
            return fate
        if self._stopping():
            return Fate(outcome=Outcome.STOPPED, detail="stopped before its replicas were started")
        port = {"MASTER_PORT": str(_free_port())}
        commands = [(replica.log, {**replica.envs, **port}) for replica in self._order.replicas]
        replicas = [self._spawn(self._order.run, log, envs) for log, envs in commands]
        self._directory.mark_started()
        first_failed = self._wait(replicas)
        return self._judge(replicas, first_failed)

    def _set_up(self) -> Fate | None:
        """Run `setup` unless an earlier generation did; return a fate only if the job ended by it."""
        if not self._order.setup or self._directory.job.setup_done.exists():
            return None
        log = str(self._directory.job.logs / "setup.log")
        process = self._spawn(self._order.setup, log, {})
        self._wait([process])
        if self._stopping():
            return Fate(outcome=Outcome.STOPPED, detail="stopped during setup")
        if process.returncode:
            return Fate(outcome=Outcome.FAILED, detail=_report("setup", process.returncode, log))
        self._directory.job.setup_done.touch()
        return None

    def _spawn(self, command: str, log: str, envs: dict[str, str]) -> "subprocess.Popen[bytes]":
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        with open(log, "ab") as output:
            return subprocess.Popen(
                [shell, "-c", command],
                cwd=self._order.workdir,
                env={**os.environ, **self._order.envs, **envs},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, processes: "list[subprocess.Popen[bytes]]") -> int | None:
        """Wait until all are gone; end the rest once one failed or a stop was asked for.

        Return the index of the process that failed first, None if none did before a stop was asked for.
        """
        first_failed: int | None = None
        kill_at: float | None = None
        asked: set[int] = set()
        # A shell dies of SIGTERM at once while the script below it still saves.
        while sum(process.poll() is None for process in processes) or (
            asked and asked.intersection(marked_processes(self._directory.job.checkpoints))
        ):
            if kill_at is None:
                first_failed = _failed(processes)
                if self._stopping():
                    kill_at = time.monotonic() + self._order.stop_grace_s
                elif first_failed is not None:
                    kill_at = time.monotonic() + PEER_GRACE_S
                if kill_at is not None:
                    living = [process.pid for process in processes if process.returncode is None]
                    asked = asked.union(*map(terminate, living))
            elif time.monotonic() >= kill_at:
                kill_marked(self._directory.job.checkpoints)
            time.sleep(POLL_S)
        return first_failed if kill_at is not None else _failed(processes)

    def _judge(self, replicas: "list[subprocess.Popen[bytes]]", first_failed: int | None) -> Fate:
        if all(replica.returncode == 0 for replica in replicas):
            return Fate(outcome=Outcome.SUCCEEDED)
        if self._stopping():
            codes = ", ".join(str(replica.returncode) for replica in replicas)
            return Fate(outcome=Outcome.STOPPED, detail=f"stopped as ordered; exit codes {codes}")
        assert first_failed is not None
        code = replicas[first_failed].returncode
        detail = _report(f"replica {first_failed}", code, self._order.replicas[first_failed].log)
        # A replica that stopped although nobody here asked it to obeyed a signal from outside.
        lost = code == EXIT_STOPPED or _signal_number(code) in OUTSIDE_SIGNALS
        return Fate(outcome=Outcome.LOST if lost else Outcome.FAILED, detail=detail)

    def _stopping(self) -> bool:
        return self._told_to_stop or self._directory.stop_file.exists()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._told_to_stop = True


def _failed(processes: "list[subprocess.Popen[bytes]]") -> int | None:
    """Return the index of a failed process, one ended by a signal first: its peers fail in its wake."""
    failed = [index for index, process in enumerate(processes) if process.returncode]
    return min(
        failed, key=lambda index: (not _signal_number(processes[index].returncode), index), default=None
    )


def _signal_number(code: int) -> int:
    """Return the signal that ended a process with this exit code, 0 if none did."""
    if code < 0:
        return -code
    return code - SHELL_SIGNAL_BASE if SHELL_SIGNAL_BASE < code < SHELL_SIGNAL_BASE + signal.NSIG else 0


def _report(who: str, code: int, log: str) -> str:
    number = _signal_number(code)
    known = number in {member.value for member in signal.Signals}
    how = f"was killed by {signal.Signals(number).name}" if known else f"exited with code {code}"
    if number == signal.SIGKILL:
        how += " from outside (by a person, or by the kernel when memory ran out)"
    tail = _tail(log)
    # The last line alone often says it all, and it is what a table has room for.
    last = f": {tail[-1].strip()}" if tail else ""
    more = "\n".join(["\nthe end of its log:", *tail]) if len(tail) > 1 else ""
    return f"{who} {how}{last}{more}"


def _tail(log: str) -> list[str]:
    with open(log, "rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
        text = file.read().decode(errors="replace")
    return text.rstrip().splitlines()[-TAIL_LINES:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    main(sys.argv[1])
