"""One process of a job, as its launcher sees it: how it is started, and what its end
means.
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
from coadapt.executors.processes.records.generation_dir import LaunchOrder, ReplicaOrder
from coadapt.executors.processes.records.replica_log import tail
from coadapt.executors.processes.setup_env import SetupLeft
from coadapt.executors.processes.standing_in import NODE_LOST
from coadapt.model.contract_env import EXIT_NO_WORKDIR, EXIT_PEER_LOST, EXIT_STOPPED

TAIL_LINES = 8
TAIL_BYTES = 4096
# How Python ends a traceback, after torch's prefix perhaps, and how coadapt.train says
# why a replica ends.
TELLING_LINE = re.compile(
    r"(?:\[rank\d+\]: )?((?:[\w.]*(?:Error|Exception)(?:: |$)|error: |out of memory: "
    r"|replica \d+ ends ).*)"
)
# A wrapper needs a moment to pass on how its command ended; a script may go on to its
# next command instead.
WRAPPER_GRACE_S = 1.0

# Signals that an operator, the kernel's memory killer or a shutdown sends: not the
# script's own fault.
OUTSIDE_SIGNALS = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
)
TOLD_TO_STOP = OUTSIDE_SIGNALS - {signal.SIGKILL}
# How a process that stands for a pod begins the line which says that it was deleted.
STAND_IN_SAYS = "[coadapt: its "
# A shell reports a child that was killed by signal N as exit code 128 + N.
SHELL_SIGNAL_BASE = 128
BASH = "/bin/bash"
UNKNOWN_KILLER = "from outside (by a person, or by the kernel when memory ran out)"


@dataclass(slots=True, eq=False)
class Replica:
    """A process under its name (model/rescale.py), and its log. asked: those of its
    processes told to end.

    drain: has the log written down as far as it was printed. spared_until: on the
    monotonic clock; `process` itself is not told before. overdue: whether its grace
    passed while something of the job was left.
    """

    name: str
    log: str
    process: "subprocess.Popen[bytes]"
    drain: Callable[[], None] = lambda: None
    asked: set[int] = field(default_factory=set)
    spared_until: float = 0.0
    overdue: bool = False

    @property
    def code(self) -> int | None:
        """Return how it ended, None while it lives."""
        return self.process.poll()

    @property
    def lost(self) -> bool:
        """Return whether it ended through no fault of the script.

        One that stopped although nobody here asked it to obeyed a signal from outside.
        """
        return (
            self.code == EXIT_STOPPED
            or _signal_number(self.code or 0) in OUTSIDE_SIGNALS
        )

    @property
    def failed_itself(self) -> bool:
        """Return whether its own error ended it: it would end a start as well."""
        elsewhere = self.lost or self.lost_peers or self.code == EXIT_NO_WORKDIR
        return bool(self.code) and not elsewhere

    @property
    def lost_peers(self) -> bool:
        """Return whether it ended only because another one had."""
        return self.code == EXIT_PEER_LOST

    def ask(self, listening: AbstractSet[int]) -> set[int]:
        """Tell it to save and end, nobody twice; return the ids of the processes that
        are told now.

        listening: processes (listeners.py); those below it are told. Itself it is told
        where there are none, and where it lives on after they ended.
        """
        if self.code is not None:
            return set()
        leader = self.process.pid
        now = time.monotonic()
        own = {pid for pid in listening if leader in {pid, *parents(pid)}}
        told = own - self.asked
        for pid in told:
            ask(pid)
        if own:
            self.spared_until = now + WRAPPER_GRACE_S
        elif leader not in self.asked and now >= self.spared_until:
            told = terminate(leader)
        self.asked |= told
        return told

    def report_hidden(self, who: str) -> str:
        """Return in words that its training did not end although its command reports
        0.
        """
        how = (
            "exited with code 0, but its training did not say that it ended: it "
            "failed or was killed, and "
            "the command hides that (by ;, || or a wrapper)"
        )
        return self._with_log(f"{who} {how}")

    def report_overdue(self, said: str) -> str:
        """Return `said` with the last line of its log: what it was at."""
        return self._with_log(said)

    def last_line(self) -> str:
        """Return the line of its log that says why it ended."""
        self.drain()
        lines = _last_lines(self.log)
        return _telling_line(lines).removeprefix("error: ") if lines else ""

    def report(self, who: str, killer: str = "") -> str:
        """Return how it failed, in words, with the end of its log.

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
        if number in TOLD_TO_STOP or code == EXIT_STOPPED:
            self.drain()
            return _stopped_from_outside(who, code, how, _last_lines(self.log))
        return self._with_log(f"{who} {how}")

    def _with_log(self, said: str) -> str:
        """Return `said` with the line of its log that says why, and the end of the log
        below it.
        """
        self.drain()
        lines = _last_lines(self.log)
        # One line often says it all, and it is what a table has room for.
        last = f": {_telling_line(lines)}" if lines else ""
        more = "\n".join(["\nthe end of its log:", *lines]) if len(lines) > 1 else ""
        return f"{said}{last}{more}"


def _stopped_from_outside(who: str, code: int, how: str, lines: list[str]) -> str:
    """Return how a replica ended that was told to stop: what it printed last is no
    cause of that.
    """
    pod = [line for line in lines if line.startswith(STAND_IN_SAYS)]
    if pod:
        told = pod[-1].removeprefix(STAND_IN_SAYS).rstrip("]")
        return f"{who}'s {told}"
    saved = f"{who} was told to stop from outside; it saved first"
    return saved if code == EXIT_STOPPED else f"{who} {how} from outside"


def free_port(replicas: Sequence[ReplicaOrder]) -> int:
    """Return a port for the rendezvous at the first one, free where that runs if it is
    on this machine.
    """
    address = replicas[0].envs["MASTER_ADDR"] if replicas else ""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


def shell(command: str) -> tuple[str, ...]:
    """Return how a line of a job file is run."""
    if not os.path.exists(BASH):
        return ("/bin/sh", "-c", command)
    # Without it `python train.py | tee log` succeeds whatever becomes of the training.
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
) -> Replica:
    """Start `command` as `order` says; its name is that of its log. Raises OSError if
    that is impossible.

    left: what `setup` left for it. pass_fds: open files that it gets.
    """
    left = left or SetupLeft()
    output = pump.open(Path(log))
    try:
        process = subprocess.Popen(
            command,
            cwd=left.workdir or order.workdir,
            env={**left.applied(base_envs(order)), **envs},
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
    """Return what each process of a job finds in its environment."""
    return {**os.environ, **order.envs}


def first_failed(replicas: Iterable[Replica]) -> Replica | None:
    """Return one that failed, if any: one ended by a signal first, since its peers fail
    in its wake.
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
    """Return `failed`, or if it only lost its peers, one that failed by itself although
    it ended later.
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
    """Return the line that says why, even if libraries had more to say after it; else
    the last one.
    """
    found = (TELLING_LINE.match(line) for line in reversed(lines))
    return next((match[1] for match in found if match), lines[-1]).strip()


def _last_lines(log: str) -> list[str]:
    text = tail(Path(log), TAIL_BYTES).decode(errors="replace")
    return text.rstrip().splitlines()[-TAIL_LINES:]
