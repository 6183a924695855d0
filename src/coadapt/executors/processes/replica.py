"""One process of a job, from its launcher's point of view: how it is started, and what
its end means.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.executors.processes.job_processes import ask, parents, terminate
from coadapt.executors.processes.log_pump import LogPump
from coadapt.executors.processes.proxy_process import NODE_LOST
from coadapt.executors.processes.records.generation_dir import LaunchOrder, ReplicaOrder
from coadapt.executors.processes.records.replica_log import tail
from coadapt.executors.processes.setup_env import SetupLeft
from coadapt.executors.processes.spare_replica import Process, Spare
from coadapt.model.contract_env import EXIT_NO_WORKDIR, EXIT_PEER_LOST, EXIT_STOPPED

TAIL_LINES = 8
TAIL_BYTES = 4096
# The last line of a Python traceback, perhaps with torch's prefix, and the line with
# which coadapt.train says why a replica ends.
TELLING_LINE = re.compile(
    r"(?:\[rank\d+\]: )?((?:[\w.]*(?:Error|Exception)(?:: |$)|error: |out of memory: "
    r"|replica \d+ ends ).*)"
)
# A wrapper needs a moment to pass on its command's exit code. A script may continue
# with its next command instead.
WRAPPER_GRACE_S = 1.0

# Signals that an operator, the kernel's memory killer or a shutdown sends: not the
# script's own fault.
OUTSIDE_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
)
STOP_SIGNALS = OUTSIDE_SIGNALS - {signal.SIGKILL}
# The beginning of a pod proxy's line which says that the pod was deleted.
STAND_IN_SAYS = "[coadapt: its "
# A shell reports a child that was killed by signal N as exit code 128 + N.
SHELL_SIGNAL_BASE = 128
BASH = "/bin/bash"
UNKNOWN_KILLER = "from outside (by a person, or by the kernel when memory ran out)"


@dataclass(slots=True, eq=False)
class Replica:
    """A replica's process with its name (model/rescale.py) and its log. asked: the
    replica's processes that were ordered to end.

    drain: writes all output until now to the log. spared_until: `process` itself gets
    no SIGTERM before this time, on the monotonic clock. overdue: whether the grace has
    passed while processes of the job were left.
    """

    name: str
    log: str
    process: Process
    drain: Callable[[], None] = lambda: None
    asked: set[int] = field(default_factory=set)
    spared_until: float = 0.0
    overdue: bool = False

    @property
    def code(self) -> int | None:
        """Return the exit code, None while the process lives."""
        return self.process.poll()

    @property
    def lost(self) -> bool:
        """Return whether the replica's end is not the script's fault.

        A replica that stopped without an order from here has followed a signal from
        outside.
        """
        return (
            self.code == EXIT_STOPPED
            or _signal_number(self.code or 0) in OUTSIDE_SIGNALS
        )

    @property
    def failed_itself(self) -> bool:
        """Return whether an error of its own ended the replica. The same error would
        end a start as well.
        """
        elsewhere = self.lost or self.lost_peers or self.code == EXIT_NO_WORKDIR
        return bool(self.code) and not elsewhere

    @property
    def lost_peers(self) -> bool:
        """Return whether the replica ended only because another one had ended."""
        return self.code == EXIT_PEER_LOST

    def ask(self, listening: AbstractSet[int]) -> set[int]:
        """Order the replica to save and end. No process gets the signal twice. Return
        the ids of the processes that get it now.

        listening: processes that listen (listeners.py); those below this replica's
        process get the signal. The process itself gets it if there are none, or if it
        outlives them.
        """
        if self.code is not None:
            return set()
        leader = self.process.pid
        now = time.monotonic()
        own = {pid for pid in listening if leader in {pid, *parents(pid)}}
        ordered = own - self.asked
        for pid in ordered:
            ask(pid)
        if own:
            self.spared_until = now + WRAPPER_GRACE_S
        elif leader not in self.asked and now >= self.spared_until:
            ordered = terminate(leader)
        self.asked |= ordered
        return ordered

    def report_hidden(self, who: str) -> str:
        """Return a text which says that the training did not end although its command
        reports 0.
        """
        how = (
            "exited with code 0, but its training did not say that it ended: it "
            "failed or was killed, and "
            "the command hides that (by ;, || or a wrapper)"
        )
        return self._with_log(f"{who} {how}")

    def report_overdue(self, said: str) -> str:
        """Return `said` with the last line of the log, which shows what the replica was
        doing.
        """
        return self._with_log(said)

    def last_line(self) -> str:
        """Return the line of the log that says why the replica ended."""
        self.drain()
        lines = _last_lines(self.log)
        return _telling_line(lines).removeprefix("error: ") if lines else ""

    def report(self, who: str, killer: str = "") -> str:
        """Return in words how the replica failed, with the end of its log.

        killer: the sender of SIGKILL, if it is known.
        """
        code = self.code or 0
        number = _signal_number(code)
        known = number in {member.value for member in signal.Signals}
        how = (
            f"was killed by {signal.Signals(number).name}"
            if known
            else f"exited with code {code}"
        )
        if number == signal.SIGKILL:
            how += f" {killer or UNKNOWN_KILLER}"
            self.drain()
            lines = _last_lines(self.log)
            if lines and lines[-1].startswith(NODE_LOST):
                return f"the node of {who} is lost: {lines[-1].removeprefix(NODE_LOST)}"
        if number in STOP_SIGNALS or code == EXIT_STOPPED:
            self.drain()
            return _stopped_from_outside(who, code, how, _last_lines(self.log))
        return self._with_log(f"{who} {how}")

    def _with_log(self, said: str) -> str:
        """Return `said` with the line of the log that says why, and the end of the log
        below it.
        """
        self.drain()
        lines = _last_lines(self.log)
        # One line often says enough, and a table has room for one line.
        last = f": {_telling_line(lines)}" if lines else ""
        more = "\n".join(["\nthe end of its log:", *lines]) if len(lines) > 1 else ""
        return f"{said}{last}{more}"


def _stopped_from_outside(who: str, code: int, how: str, lines: list[str]) -> str:
    """Return how a replica ended that was ordered to stop. Its last output is not the
    cause, so it is left out.
    """
    pod = [line for line in lines if line.startswith(STAND_IN_SAYS)]
    if pod:
        why = pod[-1].removeprefix(STAND_IN_SAYS).rstrip("]")
        return f"{who}'s {why}"
    saved = f"{who} got a stop signal from outside; it saved first"
    return saved if code == EXIT_STOPPED else f"{who} {how} from outside"


def reserve_port(replicas: Sequence[ReplicaOrder]) -> socket.socket:
    """Return a socket that is bound to a port for the rendezvous at the first replica.

    While the socket is open, the kernel gives the port to no program that asks for any
    free one. A replica can listen at it nevertheless, if it sets SO_REUSEADDR, as torch
    does. If the first replica is on another machine, the port may be in use there.
    """
    address = replicas[0].envs["MASTER_ADDR"] if replicas else ""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reserved.bind((address, 0))
    except OSError:
        reserved.bind(("", 0))
    return reserved


def shell(command: str) -> tuple[str, ...]:
    """Return the command that runs a line of a job file."""
    if not os.path.exists(BASH):
        return ("/bin/sh", "-c", command)
    # Without pipefail, `python train.py | tee log` succeeds even if the training fails.
    return (BASH, "-o", "pipefail", "-c", command)


def spawn(
    order: LaunchOrder,
    command: Sequence[str],
    log: str,
    envs: Mapping[str, str],
    pump: LogPump,
    *,
    left: SetupLeft | None = None,
    pass_fds: Sequence[int] = (),
    spare: Spare | None = None,
) -> Replica:
    """Start `command` with the settings of `order`. The replica's name is that of its
    log. Raises OSError if the process cannot be started.

    left: the changes that `setup` left. pass_fds: open files that the process gets.
    spare: the process that becomes the replica, instead of a new one.
    """
    left = left or SetupLeft()
    workdir = left.workdir or order.workdir
    all_envs = {**left.applied(base_envs(order)), **envs}
    output = pump.open(Path(log))
    process: Process
    try:
        if spare is not None and spare.start(workdir, all_envs, output):
            return Replica(
                name=Path(log).stem, log=log, process=spare, drain=pump.drain
            )
        process = subprocess.Popen(
            command,
            cwd=workdir,
            env=all_envs,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(output)
    return Replica(name=Path(log).stem, log=log, process=process, drain=pump.drain)


def base_envs(order: LaunchOrder) -> dict[str, str]:
    """Return the environment of each process of a job."""
    return {**os.environ, **order.envs}


def first_failed(replicas: Iterable[Replica]) -> Replica | None:
    """Return a replica that failed, None if there is none. A replica that a signal
    ended comes before its peers, which fail because of it.
    """
    failed = [replica for replica in replicas if replica.code]
    return min(
        failed,
        key=lambda replica: (
            replica.code != EXIT_NO_WORKDIR,
            not _signal_number(replica.code or 0),
            replica.lost_peers,
        ),
        default=None,
    )


def cause_of(failed: Replica, replicas: Iterable[Replica]) -> Replica:
    """Return the replica that is the cause: `failed`, or if that only lost its peers, a
    replica that failed by itself, even if it ended later.
    """
    if not failed.lost_peers:
        return failed
    ours = {0, EXIT_PEER_LOST, EXIT_STOPPED, -signal.SIGTERM, -signal.SIGKILL}
    return next((replica for replica in replicas if replica.code not in ours), failed)


def _signal_number(code: int) -> int:
    """Return the signal that ended a process with this exit code, 0 if none did."""
    if code < 0:
        return -code
    return (
        code - SHELL_SIGNAL_BASE
        if SHELL_SIGNAL_BASE < code < SHELL_SIGNAL_BASE + signal.NSIG
        else 0
    )


def _telling_line(lines: list[str]) -> str:
    """Return the line that says why, even if libraries printed more after it, or else
    the last line.
    """
    found = (TELLING_LINE.match(line) for line in reversed(lines))
    return next((match[1] for match in found if match), lines[-1]).strip()


def _last_lines(log: str) -> list[str]:
    text = tail(Path(log), TAIL_BYTES).decode(errors="replace")
    return text.rstrip().splitlines()[-TAIL_LINES:]
