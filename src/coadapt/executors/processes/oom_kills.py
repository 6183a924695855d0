"""Whether the kernel has just killed a process because memory ran out."""

import time
from dataclasses import dataclass, field
from pathlib import Path

# By version of control groups: where the memory controller is mounted, and its file.
VERSION_1 = (Path("/sys/fs/cgroup/memory"), "memory.oom_control")
VERSION_2 = (Path("/sys/fs/cgroup"), "memory.events")
COUNTER = "oom_kill"
# A process of many gigabytes takes some seconds from the signal to its end.
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class OomKills:
    """Processes killed so far because memory ran out.

    group: kills in this process's control group, by its own limit or for another
    reason; None if it has no group. machine: kills on the whole machine; None if the
    kernel does not count them. Sources: `memory.events` of cgroup-v2,
    `memory.oom_control` of cgroup-v1, `/proc/vmstat`.
    """

    group: int | None
    machine: int | None


def read_kills() -> OomKills:
    """Read the kernel's counters."""
    return OomKills(_of_group(), _counter(Path("/proc/vmstat")))


@dataclass(slots=True)
class OomWatch:
    """Keeps the counters of the last half to one minute, and those at the start."""

    _before: OomKills = field(default_factory=read_kills)
    _last: OomKills = field(default_factory=read_kills)
    _noted_at: float = field(default_factory=time.monotonic)
    _first: OomKills = field(default_factory=read_kills)

    def note(self) -> None:
        """Read the counters. Call this every few seconds."""
        now = time.monotonic()
        if now - self._noted_at >= WINDOW_S:
            self._noted_at = now
            self._before = self._last
            self._last = read_kills()

    def meanwhile(self) -> str:
        """Return a text for a job that succeeded although the kernel killed processes
        meanwhile, "" if it killed none.

        This is the only way to notice the kill of a process that a replica has started.
        """
        now = read_kills()
        first = self._first
        where = "of its control group"
        before = first.group
        after = now.group
        if before is None or after is None:
            where = "on this machine"
            before = first.machine
            after = now.machine
        if before is None or after is None or after <= before:
            return ""
        killed = after - before
        what = "a process" if killed == 1 else f"{killed} processes"
        return (
            f"while it ran, the kernel killed {what} {where} because memory ran out: "
            f"see whether its log misses one"
        )

    def cause(self) -> str:
        """Return in words the cause of a kill that has just happened, "" if the kernel
        did not do it.
        """
        now = read_kills()
        if _rose(now.group, self._before.group):
            return "by the kernel because memory ran out"
        if _rose(now.machine, self._before.machine):
            return (
                "from outside (most likely by the kernel: memory ran out on this "
                "machine at that time)"
            )
        return ""


def _rose(now: int | None, before: int | None) -> bool:
    return now is not None and before is not None and now > before


def _of_group() -> int | None:
    """Return the counter of this process's control group, None if it has none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, file = VERSION_1
        elif number == "0":
            root, file = VERSION_2
        else:
            continue
        # In a container the root of the mount may be the control group itself.
        for folder in (root / path.lstrip("/"), root):
            count = _counter(folder / file)
            if count is not None:
                return count
    return None


def _counter(file: Path) -> int | None:
    """Return the value of `oom_kill` in lines of names and values."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == COUNTER:
            return int(value)
    return None
