"""The files through which a launcher and the scheduler communicate about a generation
of a job. Standard library only.

They are below `<state>/runs/JOB`, apart from the files that the job may write
(own_files.py). The launcher of a generation also leads later generations that follow in
place; the first of them is the *lead*. The job's launcher holds a lock, which the
kernel releases when it dies.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from coadapt.core.events import Outcome
from coadapt.durable import write_whole
from coadapt.executors.processes.records.own_files import (
    PRIVATE_FILE,
    OwnFiles,
    is_there,
    make_folder,
    names_in,
    open_plain,
    read_plain,
)
from coadapt.executors.processes.slots import Slots
from coadapt.model import InputError, JobId
from coadapt.model.rescale import RescaleOrder, member_name
from coadapt.model.wire import from_json, to_json

LOCK_POLL_S = 0.02
# Per job. The files of one generation are some kilobytes. A job that is rescaled each
# minute has 10,000 generations in a week.
GENERATIONS_KEPT = 20
# Folders below the state directory: files that jobs may write, and the executor's
# records about jobs.
JOBS = "jobs"
RECORDS = "runs"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOrder:
    """One process to start: its log file and what it finds in its environment beside
    the shared part.

    via: the command that starts the replica's own command on its node, () for this
    machine.
    """

    log: str
    envs: Mapping[str, str]
    via: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """The settings that all jobs of an executor have in common.

    stop_grace_s: seconds from the order to stop to the kill. log_bytes: the largest
    size of a replica's log. disk_reserve_bytes: the space that output leaves free on
    the disk of the logs. control_host: the address at which the launcher serves the
    control directory to its replicas (control_server.py), "" if they read it
    themselves. control_name: the name by which replicas reach this address, "" for the
    same.

    sweep: the command that ends what is left of a job elsewhere. It gets the job's id,
    and perhaps a generation, as further arguments. () if all of a job is on this
    machine, or ends with the processes here. With a sweep, replicas outlive their
    launcher and a new launcher takes them over. `setup` and `workdir` are then on their
    machines, too.
    """

    stop_grace_s: float
    log_bytes: int
    disk_reserve_bytes: int
    control_host: str = ""
    control_name: str = ""
    sweep: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """The order to a launcher.

    replicas: the replicas to start. slots: the slots taken on each node, in rank order;
    only the executor uses them. rescale: the replicas that train in this generation.
    lead: the generation whose launcher carries out this order. If that is another
    generation, its replicas change in place. setup_timeout_s: the longest run of
    `setup`, after which it is ended; None: no limit.
    """

    run: str
    setup: str
    workdir: str
    envs: Mapping[str, str]
    replicas: tuple[ReplicaOrder, ...]
    slots: Slots
    settings: LaunchSettings
    rescale: RescaleOrder
    lead: int
    setup_timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a generation ended. member: the name of the replica that failed first, "" if
    none did.

    unfit: this replica's node lacks something that the job needs, and nothing has run
    there.
    """

    outcome: Outcome
    detail: str = ""
    member: str = ""
    unfit: bool = False


@dataclass(frozen=True, slots=True)
class JobDir:
    """Everything on disk that belongs to one job.

    path: `<state>/jobs/<id>`, where the job writes. `records`: `<state>/runs/<id>`,
    where it must not write.
    """

    path: Path

    @classmethod
    def of(cls, state_dir: Path, job: JobId) -> "JobDir":
        return cls(state_dir / JOBS / job)

    @property
    def records(self) -> Path:
        return self.path.parent.parent / RECORDS / self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, member: str) -> Path:
        """Return the log of a replica by its name (model/rescale.py), or of "setup"."""
        return self.logs / f"{member}.log"

    @property
    def setup_done(self) -> Path:
        """The file with the environment that `setup` left for `run`. It exists once
        `setup` has succeeded.
        """
        return self.records / "setup.done"

    def generation(self, number: int) -> "GenerationDir":
        return GenerationDir(self, number)

    def generations(self) -> list["GenerationDir"]:
        """Return the generations that have a folder in the records, in ascending
        order.
        """
        names = names_in(self.records / "generations")
        numbers = sorted(
            int(name) for name in names if name.isascii() and name.isdecimal()
        )
        return [GenerationDir(self, number) for number in numbers]

    def prune(self) -> None:
        """Delete old generations, except the last GENERATIONS_KEPT and those that lead
        one of these.

        Living replicas belong to the newest generation, or to the previous one during a
        change in place. Their files are in the directory of the generation that leads.
        The caller ensures that nothing else runs.
        """
        there = self.generations()
        kept = there[-GENERATIONS_KEPT:]
        if len(there) == len(kept):
            return
        leads = {order.lead for each in kept if (order := each.order()) is not None}
        for each in there[:-GENERATIONS_KEPT]:
            if each.number not in leads:
                # A folder that cannot be deleted now is tried again the next time.
                shutil.rmtree(each.path, ignore_errors=True)
                shutil.rmtree(each.own.folder, ignore_errors=True)

    def logged_before(self, number: int, rank: int) -> list[str]:
        """Return the replicas that were started as `rank` before generation `number`
        and left a log.

        A replica that got this rank by a change in place is missing, because the
        records of its generation may have been pruned.
        """
        numbers = set[int]()
        for name in names_in(self.logs):
            first, dash, rest = name.partition("-")
            of_rank = rest.startswith(f"{rank}.log")
            if dash and of_rank and first.isascii() and first.isdecimal():
                numbers.add(int(first))
        return [member_name(each, rank) for each in sorted(numbers) if each < number]

    def make_records(self) -> None:
        """Make the folder of the records if it is missing. Raises OSError."""
        make_folder(self.records.parent)
        make_folder(self.records)

    @contextmanager
    def lock(self, wait_s: float = 0.0) -> Iterator[bool]:
        """Hold the job's launcher lock inside the block. The value is whether this
        process has got the lock.

        Raises OSError if the lock's file cannot be created.
        """
        self.make_records()
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(self.records / "lock", flags, PRIVATE_FILE)
        try:
            yield _try_lock(handle, wait_s)
        finally:
            os.close(handle)


@dataclass(frozen=True, slots=True)
class GenerationDir:
    """The files of one generation: `<records>/generations/<number>`. own: the files
    that the job may write.

    `order.json`, `started`, `exit.json`. `stop`: the generation is ordered to end.
    `successor`: the number of a later generation, into which this one's replicas change
    in place. In the folder of that later generation, `retract` means that the change is
    not wanted any more, and `kept.json` that it did not happen. `leaders.json`: the
    first process of each replica. An unreadable file counts as missing, or the
    generation as lost.
    """

    job: JobDir
    number: int

    @classmethod
    def at(cls, path: Path) -> "GenerationDir":
        """Return the generation whose records are at `path`:
        `<state>/runs/JOB/generations/NUMBER`.
        """
        _, job, _, state_dir = path.parents[:4]
        return cls(JobDir.of(state_dir, job.name), int(path.name))

    @property
    def path(self) -> Path:
        return self.job.records / "generations" / str(self.number)

    @property
    def own(self) -> OwnFiles:
        """The notes of the replicas that this generation leads."""
        return OwnFiles(self.job.path, self.number)

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    @property
    def retract_file(self) -> Path:
        return self.path / "retract"

    @property
    def started_file(self) -> Path:
        return self.path / "started"

    @property
    def control_dir(self) -> Path:
        """The directory of model/rescale.py, if this generation leads."""
        return self.own.control

    @property
    def unseen(self) -> Path:
        """The directory in which proxies note why they cannot see their replicas
        (elsewhere.py), if this generation leads.
        """
        return self.path / "unseen"

    @property
    def out_of_memory(self) -> Path:
        """The directory in which proxies note that a process of their replica was
        killed because memory ran out (elsewhere.py), if this generation leads.
        """
        return self.path / "out-of-memory"

    @property
    def listeners(self) -> Path:
        """The directory of listeners.py, if this generation leads."""
        return self.own.listeners

    def make(self) -> None:
        """Make the folders of the records and the job's own. Raises OSError that names
        the path.
        """
        self.make_records()
        self.own.make()

    def make_records(self) -> None:
        """Make the folders of this generation's records. Raises OSError."""
        self.job.make_records()
        make_folder(self.path.parent)
        make_folder(self.path)

    @property
    def has_started(self) -> bool:
        return is_there(self.started_file)

    @property
    def is_to_stop(self) -> bool:
        return is_there(self.stop_file)

    @property
    def is_retracted(self) -> bool:
        return is_there(self.retract_file)

    def write_order(self, order: LaunchOrder) -> None:
        write_json(self.path / "order.json", order)

    def order(self) -> LaunchOrder | None:
        return read_note(self.path / "order.json", LaunchOrder)

    def request_stop(self) -> None:
        self.stop_file.touch(PRIVATE_FILE)

    @property
    def setup_file(self) -> Path:
        return self.path / "setup"

    def mark_setup(self) -> None:
        """Record that `setup` runs from now on."""
        self.setup_file.touch(PRIVATE_FILE)

    def setup_since(self) -> float | None:
        """Return the start of `setup` in s since 1970, None if it has not started."""
        try:
            return self.setup_file.stat().st_mtime
        except OSError:
            return None

    @property
    def plain_file(self) -> Path:
        return self.path / "plain"

    def note_plain(self, *, plain: bool) -> None:
        """Record whether the job is a plain one: as far as can be seen, no process of
        its replicas uses coadapt.train.
        """
        if plain:
            self.plain_file.touch(PRIVATE_FILE)
        else:
            self.plain_file.unlink(missing_ok=True)

    @property
    def is_plain(self) -> bool:
        return is_there(self.plain_file)

    def mark_started(self) -> None:
        self.started_file.touch(PRIVATE_FILE)

    def write_successor(self, number: int) -> None:
        """Announce a later generation, whose order is written, to this generation's
        launcher.
        """
        write_json(self.path / "successor", number)

    def successor(self) -> int | None:
        return read_note(self.path / "successor", int)

    def write_leaders(self, identities: Sequence[str]) -> None:
        """Record the first process of each replica (job_processes.identity), if this
        generation leads.
        """
        write_json(self.path / "leaders.json", tuple(identities))

    def leaders(self) -> tuple[str, ...]:
        return read_note(self.path / "leaders.json", tuple[str, ...]) or ()

    def request_retraction(self) -> None:
        self.retract_file.touch(PRIVATE_FILE)

    def write_kept(self, why: str, *, joiner_failed: bool = False) -> None:
        """Record that the previous replicas train on. why: the reason, "" if this was
        ordered.

        joiner_failed: whether a joining replica failed by itself.
        """
        if joiner_failed:
            write_json(self.path / "joiner_failed.json", True)
        write_json(self.path / "kept.json", why)

    def joiner_failed(self) -> bool:
        """Return whether the previous replicas train on because a joining replica
        failed by itself.
        """
        return bool(read_note(self.path / "joiner_failed.json", bool))

    def kept(self) -> str | None:
        """Return why the previous replicas train on, None if they do not."""
        return read_note(self.path / "kept.json", str)

    def write_exit_record(self, record: ExitRecord) -> None:
        write_json(self.path / "exit.json", record)

    def exit_record(self) -> ExitRecord | None:
        """Return how the generation ended, None if that is not written. If the file
        cannot be read, the generation counts as lost.
        """
        try:
            return read_json(self.path / "exit.json", ExitRecord)
        except InputError as error:
            return ExitRecord(outcome=Outcome.LOST, detail=str(error))


def write_json(path: Path, value: object) -> None:
    """Write a value durably, readable for this user only. A reader sees all of it or
    nothing.
    """
    write_whole(path, json.dumps(to_json(value)), mode=PRIVATE_FILE)


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return what `write_json` wrote, None if there is nothing. Raises InputError for
    anything else.
    """
    text = read_plain(path)
    try:
        return None if text is None else from_json(kind, json.loads(text), path.name)
    except (ValueError, RecursionError):
        raise InputError(str(path), text, "the file as Coadapt wrote it") from None


def read_note(path: Path, kind: type[T]) -> T | None:
    """Return what `read_json` returns, and None for a file that cannot be read."""
    try:
        return read_json(path, kind)
    except InputError:
        return None


def lock_is_free(path: Path) -> bool:
    """Return whether no process holds the lock of the plain file `path`, or there is no
    such file.
    """
    handle = open_plain(path, os.O_RDWR)
    if handle is None:
        return True
    try:
        return _try_lock(handle, 0.0)
    finally:
        os.close(handle)


def _try_lock(handle: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_POLL_S)
        else:
            return True
