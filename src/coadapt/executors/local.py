"""Replicas as processes of this machine. One thread takes orders and watches; launchers do the rest.

What runs is written on disk before it runs, and launchers outlive the scheduler: a new LocalExecutor on the
same directory finds every generation that its predecessor left, alive or dead.
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

from coadapt.core.commands import JobCommand, Resize, Start, Stop
from coadapt.core.events import Outcome, ReplicasExited, ReplicasStarted
from coadapt.executors import launcher
from coadapt.executors.generation_dir import Fate, GenerationDir, JobDir
from coadapt.executors.job_processes import kill_marked
from coadapt.executors.machine import Machine
from coadapt.executors.replica_env import Slots, launch_order
from coadapt.model import Allocation, JobId, NodeId
from coadapt.model.contract_env import ENV_CHECKPOINT_DIR, ENV_TOKEN, ENV_URL
from coadapt.runtime.ports import Post

POLL_S = 0.05

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


@dataclass(slots=True, kw_only=True)
class _Running:
    """A generation whose launcher lives, or died unnoticed. `process` is None if a predecessor started it."""

    directory: GenerationDir
    slots: Slots
    process: "subprocess.Popen[bytes] | None" = None
    post: Post | None = None
    announced: bool = False


class LocalExecutor:
    """The port Executor on this machine. All books are touched by one thread only, `run`'s."""

    def __init__(self, machine: Machine, config: LocalConfig, now: Callable[[], float]) -> None:
        """Adopt what runs under `config.state_dir`. `now` stamps the events that are posted."""
        self._machine = machine
        self._config = config
        self._now = now
        self._orders: queue.SimpleQueue[tuple[JobCommand, Post]] = queue.SimpleQueue()
        self._running: dict[JobId, _Running] = {}
        self._waiting: dict[JobId, tuple[JobCommand, Post]] = {}
        self._newest: dict[JobId, int] = {}
        self._closed = threading.Event()
        for entry in _folders(config.state_dir / "jobs"):
            self._adopt(JobDir(entry))

    @property
    def resizes_in_place(self) -> bool:
        return False

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
        logs = [directory.logs / f"{item.number}-{rank}.log" for item in directory.generations()]
        return [log for log in (directory.logs / "setup.log", *logs) if log.exists()]

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
        elif (fate := directory.fate()) is not None:
            self._post_exit(order.job, order.generation, fate, post)
        else:
            if running is not None:
                running.directory.request_stop()
            waiting, _ = self._waiting.get(order.job, (order, post))
            stopped = isinstance(waiting, Stop) and waiting.generation == order.generation
            self._waiting[order.job] = (waiting if stopped else order, post)

    def _attempt(self, job: JobId, order: JobCommand, post: Post) -> None:
        """Carry out an order as soon as the generation before is gone and the slots are free."""
        if job in self._running:
            return
        directory = self._job_dir(job).generation(order.generation)
        if isinstance(order, Stop):
            directory.make()
            fate = Fate(outcome=Outcome.STOPPED, detail="stopped before it was started")
            directory.write_fate(fate)
            self._post_exit(job, order.generation, fate, post)
        else:
            slots = self._free_slots(order.allocation)
            if slots is None:
                return
            self._start(order, directory, slots, post)
        del self._waiting[job]

    def _free_slots(self, allocation: Allocation) -> dict[NodeId, tuple[int, ...]] | None:
        """Return the lowest free slots for an allocation, None while there are too few."""
        chosen: dict[NodeId, tuple[int, ...]] = {}
        for node, count in allocation.slots:
            taken = {slot for running in self._running.values() for slot in running.slots.get(node, ())}
            num_slots = next((item.num_gpus for item in self._machine.nodes if item.id == node), 0)
            free = [slot for slot in range(num_slots) if slot not in taken]
            if len(free) < count:
                return None
            chosen[node] = tuple(free[:count])
        return chosen

    def _start(self, command: Start | Resize, directory: GenerationDir, slots: Slots, post: Post) -> None:
        directory.make()
        try:
            directory.write_order(
                launch_order(command, directory, self._machine, slots, self._config.stop_grace_s)
            )
            process = self._spawn_launcher(directory)
        except ValueError as error:
            fate = Fate(outcome=Outcome.FAILED, detail=str(error))
        except OSError as error:
            # Too many processes, no memory: this machine's trouble, not the script's.
            fate = Fate(outcome=Outcome.LOST, detail=f"could not be started: {error}")
        else:
            self._running[command.job] = _Running(
                directory=directory, slots=slots, process=process, post=post
            )
            return
        directory.write_fate(fate)
        self._post_exit(command.job, command.generation, fate, post)

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

    def _adopt(self, job: JobDir) -> None:
        for directory in job.generations():
            self._newest[job.path.name] = directory.number
            order = directory.order()
            if order is not None and directory.fate() is None:
                self._running[job.path.name] = _Running(directory=directory, slots=order.slots)

    def _watch(self, job: JobId, running: _Running) -> None:
        if running.post is not None and not running.announced and running.directory.started_file.exists():
            running.announced = True
            generation = running.directory.number
            running.post(ReplicasStarted(at=self._now(), job=job, generation=generation))
        fate = running.directory.fate() or self._settle(running)
        if fate is None:
            return
        if running.process is not None:
            running.process.wait()
        del self._running[job]
        if running.post is not None:
            self._post_exit(job, running.directory.number, fate, running.post)

    def _settle(self, running: _Running) -> Fate | None:
        """If the launcher died without a word, end what it left behind and write that it is lost."""
        if running.process is not None and running.process.poll() is None:
            return None
        directory = running.directory
        with directory.job.lock() as held:
            if not held:
                return None
            fate = directory.fate()
            if fate is None:
                count = kill_marked(directory.job.checkpoints)
                fate = Fate(
                    outcome=Outcome.LOST, detail=f"its launcher died; ended {count} remaining processes"
                )
                directory.write_fate(fate)
            return fate

    def _post_exit(self, job: JobId, generation: int, fate: Fate, post: Post) -> None:
        how = fate.detail.split("\n", 1)[0]
        logger.info("job %s generation %d ended: %s %s", job, generation, fate.outcome.value, how)
        post(
            ReplicasExited(
                at=self._now(), job=job, generation=generation, outcome=fate.outcome, detail=fate.detail
            )
        )

    def _job_dir(self, job: JobId) -> JobDir:
        return JobDir(self._config.state_dir / "jobs" / job)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
