"""Replicas that live on other machines outlive their launcher. A new launcher takes
them over, or they are ended.

A launcher's children are proxies of these replicas (cluster.py, `via`). A killed proxy
reports nothing about its replica. So the engine's own command, the *sweep*, ends what
is left, or a new launcher starts new proxies.
"""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from coadapt.core.events import Outcome
from coadapt.executors.processes.control_server import ControlServer
from coadapt.executors.processes.job_processes import (
    end_marked,
    kill_identified,
    kill_marked,
)
from coadapt.executors.processes.records.generation_dir import (
    ExitRecord,
    GenerationDir,
    LaunchOrder,
    LaunchSettings,
    ReplicaOrder,
    read_json,
    read_note,
    write_json,
)
from coadapt.executors.processes.records.own_files import PRIVATE_DIR, names_in
from coadapt.model.rescale import CAPABLE_FILE

# A failed command is tried again: the engine may be unreachable for a while, and the
# slots are not free before the command succeeds.
SWEEP_RETRY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAt:
    """Where a launcher serves the control channel. The next launcher uses the same port
    and token.
    """

    port: int
    token: str


def start_sweep(
    settings: LaunchSettings, job: str, generation: int | None = None
) -> "subprocess.Popen[bytes]":
    """Start the process that ends what is left elsewhere of a job, or of one
    generation. Raises OSError.
    """
    what = (job,) if generation is None else (job, str(generation))
    return subprocess.Popen(
        [*settings.sweep, *what], stdin=subprocess.DEVNULL, start_new_session=True
    )


def sweep(settings: LaunchSettings, job: str) -> None:
    """End what is left of a job elsewhere, however long that takes."""
    while start_sweep(settings, job).wait():
        time.sleep(SWEEP_RETRY_S)


def serve_control(lead: GenerationDir, settings: LaunchSettings) -> dict[str, str]:
    """Serve the control directory at the port of the previous launcher, if there was
    one. Return the environment that replicas need for it.

    If that is impossible, the present replicas cannot get orders any more, so they are
    recorded as unable to rescale in place.
    """
    path = lead.path / "served.json"
    host = settings.control_host
    name = settings.control_name
    before = read_json(path, ServedAt)
    server: ControlServer | None = None
    if before is not None:
        try:
            server = ControlServer(
                lead.control_dir, host, name=name, port=before.port, token=before.token
            )
        except OSError:
            lead.own.remove(CAPABLE_FILE)
    server = server or ControlServer(lead.control_dir, host, name=name)
    write_json(path, ServedAt(port=server.port, token=server.token))
    return server.envs


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """The replicas that live elsewhere when a launcher takes over. newest: the last
    generation that was ordered.

    order: the order of the generation that trains. replicas: in rank order, the order
    with which each replica was started.
    """

    newest: GenerationDir
    order: LaunchOrder
    replicas: tuple[tuple[LaunchOrder, ReplicaOrder], ...]


def find_present(lead: GenerationDir) -> Present | ExitRecord:
    """Return the replicas that train in the generations that `lead` leads, or an exit
    record if these are not known.
    """
    newest = lead
    present = lead
    for directory in lead.job.generations():
        if directory.number <= lead.number:
            continue
        order = directory.order()
        kept = directory.kept()
        if kept is None and (order is None or order.lead != lead.number):
            continue
        if kept is None and not directory.has_started:
            if (lead.successor() or 0) < directory.number:
                # not reported yet: the next scheduler that adopts the job reports it
                continue
            return ExitRecord(
                outcome=Outcome.LOST,
                detail="its launcher died while its replicas were changing",
            )
        newest = directory
        present = directory if kept is None else present
    order = present.order()
    assert order is not None, f"{present.path} holds no order"
    return Present(newest=newest, order=order, replicas=_orders_of(lead, order))


def _orders_of(
    lead: GenerationDir, order: LaunchOrder
) -> tuple[tuple[LaunchOrder, ReplicaOrder], ...]:
    found = []
    for member in order.rescale.members:
        its = lead.job.generation(int(member.partition("-")[0])).order()
        assert its is not None, f"nothing tells how {member} was started"
        found.append(
            (its, next(item for item in its.replicas if Path(item.log).stem == member))
        )
    return tuple(found)


def note_unseen(lead: GenerationDir, member: str, why: str) -> None:
    """Record why a proxy cannot see its replica, "" if it can. The executor reports
    it.
    """
    note = lead.unseen / member
    if why:
        note.parent.mkdir(mode=PRIVATE_DIR, exist_ok=True)
        write_json(note, why)
    else:
        note.unlink(missing_ok=True)


def why_unseen(lead: GenerationDir) -> str:
    """Return why a replica cannot be seen, by the note of the first such replica; "" if
    all replicas can be seen.
    """
    for name in names_in(lead.unseen):
        why = read_note(lead.unseen / name, str)
        if why:
            return why
    return ""


def note_out_of_memory(lead: GenerationDir, member: str) -> None:
    """Record that a process of a replica was killed because memory ran out, whatever
    the replica's exit code is.
    """
    lead.out_of_memory.mkdir(mode=PRIVATE_DIR, exist_ok=True)
    (lead.out_of_memory / member).touch()


def out_of_memory_text(lead: GenerationDir) -> str:
    """Return a text for a job that succeeded although replicas ran out of memory, "" if
    none did.
    """
    members = names_in(lead.out_of_memory)
    if not members:
        return ""
    whose = "a replica" if len(members) == 1 else f"{len(members)} replicas"
    return (
        f"while it ran, the kernel killed a process of {whose} because memory ran out: "
        f"see whether its log misses one"
    )


def kill_left(lead: GenerationDir) -> int:
    """End the processes that a dead launcher left on this machine. Return how many
    there were.
    """
    return kill_marked(lead.job.checkpoints) + kill_identified(lead.leaders())


class Remains:
    """The processes that a dead launcher left, on this machine and elsewhere. They are
    ended step by step.
    """

    def __init__(self, lead: GenerationDir) -> None:
        order = lead.order()
        self._lead = lead
        self._settings = None if order is None else order.settings
        self._count = 0
        self._sweep: subprocess.Popen[bytes] | None = None

    def gone(self) -> bool:
        """End what is left. Return whether all of it is gone. One thread calls this
        again and again.
        """
        if self._sweep is None:
            self._count += kill_left(self._lead)
            if self._settings is None or not self._settings.sweep:
                return end_marked(self._lead.job.checkpoints)
            self._sweep = start_sweep(self._settings, self._lead.job.path.name)
        code = self._sweep.poll()
        if code:
            self._sweep = None
        return code == 0 and end_marked(self._lead.job.checkpoints)

    @property
    def record(self) -> ExitRecord:
        return ExitRecord(
            outcome=Outcome.LOST,
            detail=f"its launcher died; ended {self._count} remaining processes",
        )
