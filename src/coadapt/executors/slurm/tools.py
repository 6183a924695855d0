"""Slurm through its command-line tools: the queries, and how their answers are read.
Slurm 21.08 and later.

Columns are requested by name and separated by a bar, and instants are in seconds.
Unlike `--json`, this is the same in all versions and needs no plugin.
"""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from coadapt.model import DEFAULT_GPU_TYPE

# While the controller is unreachable, Slurm's tools wait and try again.
CALL_S = 20.0
TOOLS = ("sbatch", "srun", "squeue", "sinfo", "scontrol", "scancel")
# These variables of the environment would refer a call to another allocation.
KEPT_ENVS = frozenset({"SLURM_CONF", "SLURM_CLUSTERS"})

# %A: a number of its own for each task of an array and each part of a heterogeneous
# job, where %i has `6_1`, `8+0`.
JOB_COLUMNS = "%A|%T|%N|%D|%S|%e|%r"
NODE_COLUMNS = "NodeList:|,StateLong:|,NodeAddr:|,Port:|"
HELD_GRES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
JOB_STATE = re.compile(r"\bJobState=(\w+)")
GPUS = re.compile(r"\bgpu(?::(?P<kind>[^:(,=]+))?:(?P<count>\d+)")


class SlurmError(Exception):
    """A tool failed. The text is the tool's message, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """An allocation that is held or waited for.

    starts_at, ends_at: in seconds since 1970; None: not known, or never. why: the
    reason for waiting, in Slurm's word.
    """

    id: str
    state: str
    hosts: tuple[str, ...]
    num_nodes: int
    starts_at: float | None
    ends_at: float | None
    why: str = ""

    @property
    def waits(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A machine. state: in Slurm's words, with its flags, `mixed*`. port: of its
    daemon.
    """

    state: str
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What an allocation holds on a node."""

    count: int = 0
    kind: str = DEFAULT_GPU_TYPE


@dataclass(frozen=True, slots=True)
class SlurmTools:
    """Queries to Slurm. Each raises SlurmError if Slurm does not answer.

    cwd: the directory in which a submitted script runs. `scontrol update` leaves
    scripts in the directory where it runs.
    """

    envs: Mapping[str, str] = field(default_factory=lambda: _envs(os.environ))
    cwd: str = "/"

    def jobs(self, *which: str) -> list[SlurmJob]:
        """Return own allocations that have not ended, by age. which: options of
        squeue.
        """
        lines = self.call("squeue", "-h", *which, "-o", JOB_COLUMNS).splitlines()
        found = [_job(line) for line in lines if _is_plain_job(line)]
        return sorted(found, key=lambda job: int(job.id))

    def ended(self, job: str) -> str:
        """Return the state in which an allocation ended, in Slurm's word; "" if it is
        not known (any more).
        """
        try:
            text = self.call("scontrol", "show", "job", "-o", job)
        except SlurmError as error:
            if "invalid job id" in str(error).lower():
                return ""
            raise
        found = JOB_STATE.search(text)
        return found[1] if found else ""

    def would_grant(self, options: Sequence[str], script: str) -> None:
        """Raise SlurmError if Slurm could never grant a request with these options of
        sbatch.
        """
        self.call("sbatch", "--test-only", *options, stdin=script)

    def time_limits(self, partition: str) -> list[tuple[str, str]]:
        """Return (default, longest) time limit of the partition, "": of the default
        one; in Slurm's words.
        """
        which = ("-p", partition) if partition else ()
        lines = self.call("sinfo", "-h", *which, "-o", "%P|%L|%l").splitlines()
        rows = [line.strip().split("|") for line in lines]
        return [
            (row[1], row[2])
            for row in rows
            if len(row) == 3 and (partition or row[0].endswith("*"))
        ]

    def nodes(self, hosts: Collection[str]) -> dict[str, SlurmNode]:
        """Return the state of machines by name."""
        if not hosts:
            return {}
        lines = self.call(
            "sinfo", "-a", "-h", "-N", "-n", ",".join(sorted(hosts)), "-O", NODE_COLUMNS
        )
        found = {}
        for line in lines.splitlines():
            if not line.strip():
                continue
            with _readable("sinfo", line):
                name, state, address, port, *_ = (
                    part.strip() for part in line.split("|")
                )
                node = SlurmNode(state=state, address=address, port=_number(port))
                found[name] = node
        return found

    def gpus(self, job: str) -> dict[str, Gpus]:
        """Return the GPUs that an allocation holds on each of its nodes."""
        text = self.call("scontrol", "show", "job", "-d", "-o", job)
        return {
            host: _gpus(held)
            for hosts, held in HELD_GRES.findall(text)
            for host in hostnames(hosts)
        }

    def busy_hosts(self, jobs: Iterable[str]) -> dict[str, set[str]]:
        """Return per allocation the machines on which it has a step."""
        busy: dict[str, set[str]] = {job: set() for job in jobs}
        for line in self.call("squeue", "-h", "-s", "--me", "-o", "%i|%N").split():
            step, _, hosts = line.partition("|")
            job, _, number = step.partition(".")
            if (
                job in busy and number.isdecimal()
            ):  # others are Slurm's own: batch, extern
                busy[job].update(hostnames(hosts))
        return busy

    def submit(self, options: Sequence[str], script: str) -> str:
        """Return the id of a new allocation."""
        return (
            self.call("sbatch", "--parsable", *options, stdin=script)
            .strip()
            .partition(";")[0]
        )

    def cancel(self, job: str) -> None:
        self.call("scancel", job)

    def keep_hosts(self, job: str, hosts: Collection[str]) -> None:
        """Give back all but `hosts` of an allocation."""
        self.call(
            "scontrol", "update", f"JobId={job}", f"NodeList={','.join(sorted(hosts))}"
        )

    def call(self, *command: str, stdin: str = "", limit_s: float = CALL_S) -> str:
        """Run a tool. Return its output."""
        try:
            done = subprocess.run(
                command,
                env=self.envs,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
                cwd=self.cwd,
            )
        except OSError as error:
            raise SlurmError(f"{command[0]}: {error}") from None
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace")
            raise SlurmError(
                _one_line(said, f"{command[0]} timed out after {limit_s:g} s")
            ) from None
        if done.returncode:
            raise SlurmError(
                _one_line(
                    done.stderr, f"{command[0]} ended with code {done.returncode}"
                )
            )
        return done.stdout


def missing_tools() -> list[str]:
    """Return Slurm's commands that are not to be found."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@cache
def hostnames(hosts: str) -> tuple[str, ...]:
    """Return the names in one of Slurm's host lists: `a[1-2],b` is a1, a2, b. Raises
    SlurmError.
    """
    if not hosts or hosts.startswith("("):
        return ()
    if "[" not in hosts:
        return tuple(hosts.split(","))
    return tuple(SlurmTools().call("scontrol", "show", "hostnames", hosts).split())


def _one_line(said: str, otherwise: str) -> str:
    return (
        "; ".join(
            dict.fromkeys(line.strip() for line in said.splitlines() if line.strip())
        )
        or otherwise
    )


def _envs(environ: Mapping[str, str]) -> dict[str, str]:
    own = {
        name: value
        for name, value in environ.items()
        if name in KEPT_ENVS or not _of_slurm(name)
    }
    return {**own, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def _number(text: str) -> int:
    """Return a number from Slurm's notation: a multiple of 1,024 may be written with K,
    as in port 21K.
    """
    for power, letter in enumerate("KMGT", 1):
        if text.endswith(letter):
            return int(text.removesuffix(letter)) << 10 * power
    return int(text)


def _of_slurm(name: str) -> bool:
    return name.startswith(("SLURM_", "SQUEUE_", "SINFO_", "SCONTROL_", "SRUN_"))


def _is_plain_job(line: str) -> bool:
    """Return whether a line of squeue is about a plain job. Arrays and heterogeneous
    jobs are never ours.
    """
    return line.partition("|")[0].strip().isdecimal()


def _job(line: str) -> SlurmJob:
    with _readable("squeue", line):
        columns = [part.strip() for part in line.split("|", 6)]
        number, state, hosts, num_nodes, starts_at, ends_at, why = columns
        return SlurmJob(
            id=number,
            state=state,
            hosts=hostnames(hosts),
            num_nodes=_number(num_nodes),
            starts_at=float(starts_at) if starts_at.isdecimal() else None,
            ends_at=float(ends_at) if ends_at.isdecimal() else None,
            why=why,
        )


@contextmanager
def _readable(tool: str, line: str) -> Iterator[None]:
    """Raise SlurmError with the line if the code inside cannot read it."""
    try:
        yield
    except ValueError as error:
        raise SlurmError(
            f"{tool} gave an answer that cannot be read ({error}): {line.strip()!r}"
        ) from None


def seconds_of(limit: str) -> float | None:
    """Return a time limit of Slurm's in seconds: `90`, `1:30:00`, `2-12`. Infinity: no
    limit. None: not a time limit.

    Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds,
    days-hours[:minutes[:seconds]].
    """
    text = limit.strip()
    if text.lower() in ("infinite", "unlimited"):
        return math.inf
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    numbers = [*([days] if dash else []), *parts]
    if len(parts) > 3 or not all(each.isdecimal() for each in numbers):
        return None
    values = [int(each) for each in parts]
    if dash:
        hours, minutes, seconds = (*values, 0, 0)[:3]
    elif len(values) == 3:
        hours, minutes, seconds = values
    else:
        hours = 0
        minutes, seconds = (*values, 0)[:2]
    whole_days = int(days) if dash else 0
    return float(((whole_days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _gpus(held: str) -> Gpus:
    found = [(match["kind"], int(match["count"])) for match in GPUS.finditer(held)]
    kinds = [kind.lower() for kind, _ in found if kind]
    return Gpus(
        count=sum(count for _, count in found),
        kind=min(kinds, default=DEFAULT_GPU_TYPE),
    )
