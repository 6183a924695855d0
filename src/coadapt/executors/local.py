"""Replicas as processes of this machine. One thread takes orders and watches; launchers do the rest.

What runs is written on disk before it runs, and launchers outlive the scheduler: a new LocalExecutor on the
same directory finds every generation that its predecessor left, alive, dead, or changing in place.
"""

import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coadapt.core.commands import JobCommand, Resize, Retract, Start, Stop
from coadapt.core.events import Outcome, ReplicasExited, ReplicasKept, ReplicasStarted
from coadapt.executors import launcher
from coadapt.executors.generation_dir import Fate, GenerationDir, JobDir
from coadapt.executors.machine import Machine
from coadapt.executors.replica_env import launch_order
from coadapt.executors.running import Running, found
from coadapt.executors.seating import Seating, seat, seating_of, union
from coadapt.model import JobId, NodeId
from coadapt.model.contract_env import ENV_CHECKPOINT_DIR, ENV_TOKEN, ENV_URL
from coadapt.model.rescale import member_name
from coadapt.runtime.ports import Post

POLL_S = 0.05
NEVER_STARTED = "stopped before it was started"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """state_dir: where `jobs/<id>` are kept. url, token: of the scheduler's API, for the replicas' reports.

    stop_grace_s: how long replicas may take to save their state before they are killed.
    """

    state_dir: Path
    url: str = ""
    token: str = ""
    stop_grace_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.state_dir.is_absolute():
            raise ValueError(f"LocalConfig.state_dir must be absolute, got {self.state_dir}")
        if self.stop_grace_s < 0:
            raise ValueError(f"LocalConfig.stop_grace_s must be >= 0, got {self.stop_grace_s}")


class LocalExecutor:
    """The port Executor on this machine. All books are touched by one thread only, `run`'s."""

    def __init__(self, machine: Machine, config: LocalConfig, now: Callable[[], float]) -> None:
        """Adopt what runs under `config.state_dir`. `now` stamps the events that are posted."""
        self._machine = machine
        self._config = config
        self._now = now
        self._orders: queue.SimpleQueue[tuple[JobCommand, Post]] = queue.SimpleQueue()
        self._running: dict[JobId, Running] = {}
        self._waiting: dict[JobId, tuple[JobCommand, Post]] = {}
        self._newest: dict[JobId, int] = {}
        self._closed = threading.Event()
        for entry in _folders(config.state_dir / "jobs"):
            job = JobDir(entry)
            for directory in job.generations()[-1:]:
                self._newest[entry.name] = directory.number
            if (running := found(job)) is not None:
                self._running[entry.name] = running

    @property
    def resizes_in_place(self) -> bool:
        """Replicas that cannot (yet) are stopped and started for a Resize."""
        return True

    def execute(self, command: JobCommand, post: Post) -> None:
        self._orders.put((command, post))

    def running(self) -> list[tuple[JobId, int]]:
        """Return (job, generation) of what was found alive or unsettled; for use before `run`."""
        return [(job, running.directory.number) for job, running in sorted(self._running.items())]

    def run(self) -> None:
        """Carry out orders and watch launchers until `close`. What runs then goes on running."""
        while not self._closed.is_set():
            for order, post in self._next_orders():
                self._take(order, post)
            for job, running in sorted(self._running.items()):
                self._watch(job, running)
            for job, (order, post) in sorted(self._waiting.items()):
                self._attempt(job, order, post)

    def close(self) -> None:
        self._closed.set()

    def log_files(self, job: JobId, rank: int) -> list[Path]:
        """Return the logs of the setup and then of replica `rank` in every generation, oldest first."""
        directory = self._job_dir(job)
        names = dict.fromkeys(_name(generation, rank) for generation in directory.generations())
        logs = [directory.logs / "setup.log", *(directory.log(name) for name in names)]
        return [log for log in logs if log.exists()]

    # -- orders -----------------------------------------------------------------------------------------

    def _next_orders(self) -> Iterator[tuple[JobCommand, Post]]:
        try:
            yield self._orders.get(timeout=POLL_S)
            while True:
                yield self._orders.get_nowait()
        except queue.Empty:
            return

    def _take(self, order: JobCommand, post: Post) -> None:
        if order.generation < self._newest.get(order.job, 0):
            return
        self._newest[order.job] = order.generation
        running = self._running.get(order.job)
        directory = self._job_dir(order.job).generation(order.generation)
        if running is not None and running.directory.number == order.generation:
            running.post = post
            if isinstance(order, Stop):
                directory.request_stop()
            else:
                running.announced = False
            if isinstance(order, Retract):
                directory.request_retraction()
        elif (fate := directory.fate()) is not None:
            self._post_exit(order.job, order.generation, fate, post)
        else:
            if running is not None and not _spares(order, running):
                running.directory.request_stop()
            waiting, _ = self._waiting.get(order.job, (order, post))
            stands = waiting.generation == order.generation and _stands(waiting, order, running)
            self._waiting[order.job] = (waiting if stands else order, post)

    def _attempt(self, job: JobId, order: JobCommand, post: Post) -> None:
        """Carry out an order as soon as slots are free and the generation before is gone, or can follow."""
        running = self._running.get(job)
        if isinstance(order, Stop):
            if running is None:
                self._end_unstarted(order, Fate(outcome=Outcome.STOPPED, detail=NEVER_STARTED), post)
                del self._waiting[job]
            return
        if isinstance(order, Retract):
            self._keep(order, running, post)
            return
        if running is not None and not (
            isinstance(order, Resize) and running.started and running.changes_in_place()
        ):
            return
        present = None if running is None else running.seating
        seating = seat(order.generation, order.allocation, self._free_slots(), present)
        if seating is not None:
            if running is None:
                self._start(order, seating, post)
            else:
                self._change(order, seating, running, post)
            del self._waiting[job]

    def _keep(self, order: Retract, running: Running | None, post: Post) -> None:
        """The change was not begun. Have those who run go on under its number, or tell how they ended."""
        directory = self._job_dir(order.job).generation(order.generation)
        if running is None:
            fates = [each.fate() for each in directory.job.generations()]
            last = next((fate for fate in reversed(fates) if fate is not None), None)
            self._end_unstarted(order, last or Fate(outcome=Outcome.LOST, detail="nothing of it runs"), post)
        elif running.started and not running.directory.stop_file.exists():
            directory.make()
            directory.write_kept("")
            running.root.write_successor(directory.number)
            self._running[order.job] = Running(
                directory=directory,
                seating=running.seating,
                former=running.seating,
                held=running.held,
                process=running.process,
                post=post,
            )
        else:
            return
        del self._waiting[order.job]

    def _end_unstarted(self, order: JobCommand, fate: Fate, post: Post) -> None:
        directory = self._job_dir(order.job).generation(order.generation)
        directory.make()
        directory.write_fate(fate)
        self._post_exit(order.job, order.generation, fate, post)

    def _free_slots(self) -> dict[NodeId, list[int]]:
        """Return the slots of each node that nobody holds, in ascending order."""
        free: dict[NodeId, list[int]] = {}
        for node in self._machine.nodes:
            taken = {slot for running in self._running.values() for slot in running.held.get(node.id, ())}
            free[node.id] = [slot for slot in range(node.num_gpus) if slot not in taken]
        return free

    def _start(self, command: Start | Resize, seating: Seating, post: Post) -> None:
        try:
            directory = self._write_order(command, seating)
            process = self._spawn_launcher(directory)
        except ValueError as error:
            fate = Fate(outcome=Outcome.FAILED, detail=str(error))
        except OSError as error:
            # Too many processes, no memory: this machine's trouble, not the script's.
            fate = Fate(outcome=Outcome.LOST, detail=f"could not be started: {error}")
        else:
            self._running[command.job] = Running(
                directory=directory, seating=seating, held=seating.slots, process=process, post=post
            )
            return
        self._end_unstarted(command, fate, post)

    def _change(self, command: Start | Resize, seating: Seating, running: Running, post: Post) -> None:
        """Hand the order over to the launcher that runs; it goes on even if nobody is here any more."""
        directory = self._write_order(command, seating)
        running.root.write_successor(directory.number)
        held = union(running.held, seating.slots)
        self._running[command.job] = Running(
            directory=directory,
            seating=seating,
            former=running.seating,
            held=held,
            process=running.process,
            post=post,
        )

    def _write_order(self, command: Start | Resize, seating: Seating) -> GenerationDir:
        directory = self._job_dir(command.job).generation(command.generation)
        directory.make()
        order = launch_order(command, directory, self._machine, seating, self._config.stop_grace_s)
        directory.write_order(order)
        return directory

    def _spawn_launcher(self, directory: GenerationDir) -> "subprocess.Popen[bytes]":
        # The checkpoint directory is the mark by which job_processes.py finds the launcher's descendants.
        # The token travels beside it because the order's file may end up in a backup.
        envs = {
            ENV_CHECKPOINT_DIR: str(directory.job.checkpoints),
            ENV_URL: self._config.url,
            ENV_TOKEN: self._config.token,
        }
        with open(directory.path / "launcher.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", launcher.__name__, str(directory.path)],
                env={**os.environ, **envs},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # -- what runs --------------------------------------------------------------------------------------

    def _watch(self, job: JobId, running: Running) -> None:
        generation = running.directory.number
        running.look()
        if running.post is not None and running.started and not running.announced:
            running.announced = True
            at, why = self._now(), running.kept
            running.post(
                ReplicasStarted(at=at, job=job, generation=generation)
                if why is None
                else ReplicasKept(at=at, job=job, generation=generation, detail=why)
            )
        fate = running.fate()
        if fate is None:
            return
        del self._running[job]
        if running.post is not None:
            self._post_exit(job, generation, fate, running.post)
        waiting = self._waiting.get(job)
        if waiting is not None and isinstance(waiting[0], Resize) and fate.outcome is not Outcome.STOPPED:
            # What was to be resized had ended by itself.
            del self._waiting[job]
            self._end_unstarted(waiting[0], fate, waiting[1])

    def _post_exit(self, job: JobId, generation: int, fate: Fate, post: Post) -> None:
        how = fate.detail.split("\n", 1)[0]
        why = f" ({how})" if how else ""
        logger.info("job %s generation %d ended: %s%s", job, generation, fate.outcome.value, why)
        post(
            ReplicasExited(
                at=self._now(), job=job, generation=generation, outcome=fate.outcome, detail=fate.detail
            )
        )

    def _job_dir(self, job: JobId) -> JobDir:
        return JobDir(self._config.state_dir / "jobs" / job)


def _spares(order: JobCommand, running: Running) -> bool:
    """Return whether those who run may go on although an order of a later generation came."""
    return isinstance(order, Retract) or (isinstance(order, Resize) and running.changes_in_place())


def _stands(waiting: JobCommand, order: JobCommand, running: Running | None) -> bool:
    """Return whether `waiting` is carried out although `order`, of the same generation, came after it."""
    match order:
        case Stop():
            return False
        case Retract():
            return running is None or running.directory.stop_file.exists()
        case _:
            return isinstance(waiting, Stop | Retract)


def _name(generation: GenerationDir, rank: int) -> str:
    """Return the name of the replica that has `rank` in a generation."""
    order = generation.order()
    members = () if order is None else seating_of(order, generation.number).members
    return members[rank] if rank < len(members) else member_name(generation.number, rank)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
