"""Find the processes of a job, ask them to stop, and end what is left of them. Linux
only (/proc).

A launcher's processes inherit the job's private checkpoint directory in their
environment. This marks them in any session or process group. A process without it
(`setproctitle` overwrites it) is found below the launcher, which adopts orphans, or on
record as the first process of its replica.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from coadapt.model.contract_env import ENV_CHECKPOINT_DIR, ENV_GENERATION, ENV_NODE

# A process cannot refuse SIGKILL. One that outlives this time is stuck in the kernel,
# and waiting longer frees nothing.
KILL_WAIT_S = 5.0
POLL_S = 0.01

PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
# of /proc/PID/stat, counted from the state: when it was started, in ticks since the
# boot
STARTED_FIELD = 19

LAUNCHER_MODULE = "coadapt.executors.processes.launcher"
PYTHONS = ("python", "pypy")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "busybox"})


def marked_processes(checkpoints: Path, generation: int | None = None) -> list[int]:
    """Return the ids of living processes, except this one, that carry the mark of
    `checkpoints`.

    generation: only processes that were started for this generation.
    """
    marks = {f"{ENV_CHECKPOINT_DIR}={checkpoints}".encode()}
    if generation is not None:
        marks.add(f"{ENV_GENERATION}={generation}".encode())
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
        and int(entry.name) != os.getpid()
        and marks.issubset(_environ(entry))
    ]


def marked_jobs(jobs: Path) -> dict[str, list[int]]:
    """Return the ids of all living processes with the mark of a job below the folder
    `jobs`, by job.
    """
    begin = f"{ENV_CHECKPOINT_DIR}={jobs}/".encode()
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for each in _environ(entry):
            if each.startswith(begin):
                job = each.removeprefix(begin).decode(errors="replace").split("/")[0]
                found.setdefault(job, []).append(int(entry.name))
    return found


def kill_on_node(jobs: Path, node: str) -> int:
    """End all replicas on `node` of the jobs below the folder `jobs`, and wait until
    they are gone; return how many processes there were.
    """
    mark = f"{ENV_NODE}={node}".encode()
    return _kill_all(
        lambda: [
            pid
            for pids in marked_jobs(jobs).values()
            for pid in pids
            if mark in _environ(Path(f"/proc/{pid}"))
        ]
    )


def end_marked(checkpoints: Path) -> bool:
    """Send SIGKILL to all processes with the mark of a job, without waiting. Return
    whether there were none.
    """
    alive = marked_processes(checkpoints)
    for pid in alive:
        kill_pid(pid)
    return not alive


def launchers_of(checkpoints: Path) -> list[int]:
    """Return the ids of the living launchers of a job, by its mark and their command
    line.
    """
    found = []
    for pid in marked_processes(checkpoints):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if LAUNCHER_MODULE.encode() in words:
                found.append(pid)
    return found


def terminate(leader: int) -> set[int]:
    """Send SIGTERM to `leader` and, where it passes nothing on, to the commands below
    it; return all of them.

    The signal does not go to a whole process group. A data loader's workers would die
    at once, and the training process above them would fail while it still has to save
    its state.
    """
    children = (
        _children(leader)
        if _is_shell(leader) or not _catches(leader, signal.SIGTERM)
        else []
    )
    ask(leader)
    return {leader}.union(*(terminate(child) for child in children))


def ask(pid: int) -> None:
    """Send SIGTERM to one process."""
    _kill(pid, signal.SIGTERM)


def kill_pid(pid: int) -> None:
    """Send SIGKILL to one process."""
    _kill(pid, signal.SIGKILL)


def parents(pid: int) -> set[int]:
    """Return the ids of the living processes above `pid`."""
    found = set[int]()
    while pid := _parent(pid):
        found.add(pid)
    return found


def kill_marked(checkpoints: Path, generation: int | None = None) -> int:
    """End all marked processes and wait until they are gone; return how many there
    were.
    """
    return _kill_all(partial(marked_processes, checkpoints, generation))


def own_processes(checkpoints: Path) -> set[int]:
    """Return the ids of all living processes of the job whose launcher this process
    is.
    """
    return {*marked_processes(checkpoints), *_living_below(os.getpid())}


def runs_python() -> bool:
    """Return whether a process below this one is a Python interpreter."""
    for pid in _living_below(os.getpid()):
        with suppress(OSError):
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(PYTHONS):
                return True
    return False


def kill_own(checkpoints: Path) -> int:
    """End the `own_processes`, and wait until they have ended; return how many there
    were.
    """
    return _kill_all(partial(own_processes, checkpoints))


def kill_trees(leaders: Iterable[int]) -> int:
    """End processes and all below them, and wait as `kill_own` does; return how many
    there were.
    """
    leaders = set(leaders)
    return _kill_all(
        lambda: (
            leaders.union(*map(_living_below, leaders)) - {*filter(_has_ended, leaders)}
        )
    )


def identity(pid: int) -> str:
    """Return a text that identifies a living process among all processes that ever run
    on this machine, "" if the process has ended.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid} {fields[STARTED_FIELD]} {boot}"


def lives(identified: str) -> bool:
    """Return whether the process with this identity, of the present boot, has not
    ended. It reads one file, since each running job is asked about 20 times a second.
    """
    pid, started, _ = identified.split()
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[STARTED_FIELD] == started and fields[0] not in "ZX"


def kill_identified(identities: Iterable[str]) -> int:
    """End the processes with these identities that still live, and all processes below
    them. Return how many there were.
    """
    pids = {each: int(each.split()[0]) for each in identities}
    return kill_trees(pid for each, pid in pids.items() if identity(pid) == each)


def _kill_all(find: Callable[[], Collection[int]]) -> int:
    deadline = time.monotonic() + KILL_WAIT_S
    found = set[int]()
    while (alive := find()) and time.monotonic() < deadline:
        found.update(alive)
        for pid in alive:
            _kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return len(found)


def adopt_orphans() -> None:
    """From now on a process below this one that loses its parent becomes this process's
    child, instead of init's.

    If the kernel refuses this (in a sandbox), processes are found by their mark only.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Collection[int]) -> None:
    """Reap adopted children that have ended. Children in `own` are left out, because
    other code waits for their ends.
    """
    for pid in _children(os.getpid()):
        if pid not in own:
            _reap(pid)


def kill_descendants() -> int:
    """End all processes below this one and wait until they are gone. Return how many
    there were.

    No other code may still wait for the end of a child.
    """
    deadline = time.monotonic() + KILL_WAIT_S
    found = set[int]()
    while (below := _descendants(os.getpid())) and time.monotonic() < deadline:
        found.update(below)
        for pid in below:
            _kill(pid, signal.SIGKILL)
        for pid in _children(os.getpid()):
            _reap(pid)
        time.sleep(POLL_S)
    return len(found)


def _descendants(pid: int) -> set[int]:
    children = _children(pid)
    return set(children).union(*(_descendants(child) for child in children))


def _living_below(pid: int) -> set[int]:
    return {each for each in _descendants(pid) if not _has_ended(each)}


def _has_ended(pid: int) -> bool:
    """Return whether the process is gone or a zombie."""
    return _status(pid).get("State", "Z")[0] in "ZX"


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _environ(process: Path) -> list[bytes]:
    try:
        # A zombie has an empty environment: it holds nothing and only waits to be
        # reaped.
        return (process / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _parent(pid: int) -> int:
    return int(_status(pid).get("PPid", "0"))


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler of its own for a signal."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def _status(pid: int) -> dict[str, str]:
    """Return the fields of /proc/PID/status, none for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {
        name: value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():  # each has its own
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _is_shell(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in SHELLS
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (
        ProcessLookupError,
        PermissionError,
    ):  # gone, or another user's by now (sudo)
        return
