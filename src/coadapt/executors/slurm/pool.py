"""The allocations that Coadapt holds of Slurm: machines offered, more asked for, some given back."""

# A running allocation with GPUs cannot grow. So the first is asked for whole, and what comes later are
# allocations of one node each, which start as soon as there is one, and can be given back one by one.
# Nothing of this is kept on disk but the pool's name: whatever carries it in Slurm's queue is the pool.
#
# A machine leaves the pool (its replicas save, and go on elsewhere) before its allocation ends. Preemption
# needs no rule of its own: Slurm brings the end of the allocation forward to the end of the grace time.

import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coadapt.executors.slurm.terms import PoolTerms
from coadapt.executors.slurm.tools import Gpus, SlurmError, SlurmJob, SlurmNode, SlurmTools
from coadapt.model import NodeId

# States, and flags behind them, with which a machine should get no work, or no more.
UNFIT = ("down", "drain", "drng", "fail", "error", "unknown", "*", "power", "reboot")
# A successor is asked for this part of the whole time before an allocation ends, to have time in the queue.
AHEAD_PART = 0.1
AHEAD_MAX_S = 1800.0
# Between one request that Slurm refused and the next, doubled each time.
RETRY_S, RETRY_MAX_S = 10.0, 600.0
FOREVER = math.inf
PROBE_S = 1.0

HOLD = "#!/bin/sh\n# Held by Coadapt, which runs its jobs' replicas in here as steps.\nexec sleep infinity\n"

Place = tuple[str, NodeId]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHost:
    """A machine of the pool, by one allocation. renew_at: from when on it is not counted on any more."""

    job: str
    gpus: Gpus
    address: str
    renew_at: float


class Pool:
    """One thread asks Slurm (`run`); anybody may read `hosts`, which are those of the last look."""

    def __init__(self, terms: PoolTerms, folder: Path, name: str, wanted_slots: Callable[[], int]) -> None:
        """Look for the first time, and ask for a first allocation. Raises SlurmError.

        folder: where proxies leave word of nodes that may be dead. name: of the allocations.
        """
        self.hosts: Mapping[NodeId, PoolHost] = {}
        self._terms = terms
        self._folder = folder
        self._name = name
        self._wanted_slots = wanted_slots
        self._tools = SlurmTools()
        self._gpus: dict[tuple[str, tuple[str, ...]], dict[str, Gpus]] = {}
        self._idle_since: dict[Place, float] = {}
        self._given_up: set[Place] = set()
        self._retry_s, self._retry_at = RETRY_S, 0.0
        self._told: set[str] = set()
        self._closed = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self._look()

    @property
    def name(self) -> str:
        return self._name

    def suspect(self, host: NodeId) -> Path:
        """Return the file that says: look whether this machine is alive."""
        return self._folder / host

    def run(self) -> None:
        """Look again and again until `close`. While Slurm does not answer, what is known stays."""
        while not self._closed.wait(self._terms.look_s):
            try:
                self._look()
            except SlurmError as error:
                self._tell(f"Slurm does not answer: {error}")
            else:
                self._told = {each for each in self._told if not each.startswith("Slurm does not")}

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        jobs = self._jobs()
        running = [job for job in jobs if job.runs]
        machines = self._tools.nodes({host for job in running for host in job.hosts})
        hosts: dict[NodeId, PoolHost] = {}
        leaving: set[Place] = set()
        taken: set[NodeId] = set()
        for job in running:
            gpus = self._gpus_of(job)
            for host in job.hosts:
                place = (job.id, host)
                # Of two allocations on one machine the older one counts, until it is gone.
                if host in taken or place in self._given_up or time.time() > _end(job) - self._terms.leave_s:
                    leaving.add(place)
                elif host in machines and self._fit(host, machines[host]):
                    hosts[host] = PoolHost(
                        job=job.id,
                        gpus=gpus.get(host, Gpus()),
                        address=machines[host].address,
                        renew_at=self._renew_at(job),
                    )
                taken.add(host)
        self.hosts = hosts
        if self._terms.allocation:
            return
        self._give_back(running, leaving)
        self._ask_for_more(jobs)

    def _jobs(self) -> list[SlurmJob]:
        if self._terms.allocation:
            return [job for job in self._tools.jobs("--me") if job.id == self._terms.allocation]
        return self._tools.jobs("--me", f"--name={self._name}")

    def _gpus_of(self, job: SlurmJob) -> dict[str, Gpus]:
        if self._terms.slots is not None:
            return {}
        key = (job.id, job.hosts)
        if key not in self._gpus:
            self._gpus = {each: gpus for each, gpus in self._gpus.items() if each[0] != job.id}
            self._gpus[key] = self._tools.gpus(job.id)
        return self._gpus[key]

    def _fit(self, host: NodeId, machine: SlurmNode) -> bool:
        """Return whether a machine can take work; one under suspicion has to answer."""
        if any(flag in machine.state.lower() for flag in UNFIT):
            return False
        if self.suspect(host).exists():
            try:
                socket.create_connection((machine.address, machine.port), PROBE_S).close()
            except OSError as error:
                self._tell(f"node {host} is lost: its daemon does not answer ({error})")
                return False
            self.suspect(host).unlink(missing_ok=True)
            self._told = {each for each in self._told if not each.startswith(f"node {host} ")}
        return True

    # -- more and less ----------------------------------------------------------------------------------

    def _ask_for_more(self, jobs: list[SlurmJob]) -> None:
        staying = self._staying()
        waiting = [job for job in jobs if job.waits]
        coming = sum(job.num_nodes for job in waiting)
        growth = math.ceil(max(self._wanted_slots(), 0) / self._terms.slots_per_node)
        goal = min(self._terms.max_nodes, max(self._terms.nodes, len(staying) + growth))
        for job in reversed(waiting):
            if coming > self._terms.nodes and len(staying) + coming - job.num_nodes >= goal:
                self._tools.cancel(job.id)
                coming -= job.num_nodes
            else:
                self._tell(f"waits for {job.num_nodes} nodes of Slurm: job {job.id}, {job.why}")
        lacking = goal - len(staying) - coming
        if lacking > 0 and time.monotonic() >= self._retry_at:
            whole = not staying and not coming
            self._submit([lacking] if whole else [1] * lacking)

    def _submit(self, sizes: list[int]) -> None:
        staying = self._staying()
        elsewhere = [f"--exclude={','.join(staying)}"] if staying else []
        for num_nodes in sizes:
            options = [f"--job-name={self._name}", f"--nodes={num_nodes}", *elsewhere, *self._terms.sbatch]
            try:
                job = self._tools.submit(options, HOLD)
            except SlurmError as error:
                self._retry_at = time.monotonic() + self._retry_s
                self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
                if not self.hosts and not self._told:
                    raise
                self._tell(f"Slurm refuses {num_nodes} more nodes: {error}")
                return
            self._retry_s = RETRY_S
            logger.info("asked Slurm for %d nodes: job %s", num_nodes, job)

    def _give_back(self, running: list[SlurmJob], leaving: set[Place]) -> None:
        """Let go of what left and stands empty; of what is idle for long, above what is always held, too."""
        now = time.monotonic()
        busy = self._tools.busy_hosts([job.id for job in running])
        places = {(job.id, host) for job in running for host in job.hosts}
        idle = {place for place in places if place[1] not in busy[place[0]]}
        self._idle_since = {place: self._idle_since.get(place, now) for place in idle}
        for job in running:
            free = {host for host in job.hosts if (job.id, host) in leaving & idle}
            if free == set(job.hosts):
                self._let_go(job, "all of its nodes are")
            elif free & {host for number, host in self._given_up if number == job.id}:
                self._let_go(job, ", ".join(sorted(free)), set(job.hosts) - free)
        self._given_up &= places
        if self._wanted_slots() > 0:
            return
        old = [
            (held.job, host)
            for host, held in self.hosts.items()
            if now - self._idle_since.get((held.job, host), now) >= self._terms.idle_s
        ]
        old.sort(key=lambda place: (-int(place[0]), place[1]))
        # They leave the pool with the next look, and go back with the one after it, if nothing began there.
        self._given_up |= set(old[: max(len(self.hosts) - self._terms.nodes, 0)])

    def _let_go(self, job: SlurmJob, what: str, kept: set[str] | None = None) -> None:
        logger.info("given back to Slurm: job %s, %s free", job.id, what)
        with suppress(SlurmError):  # it has just ended by itself, or is tried again at the next look
            self._tools.keep_hosts(job.id, kept) if kept else self._tools.cancel(job.id)

    def _staying(self) -> list[NodeId]:
        """Return the machines for which no successor is needed yet."""
        return sorted(host for host, held in self.hosts.items() if time.time() < held.renew_at)

    def _renew_at(self, job: SlurmJob) -> float:
        span = _end(job) - (job.starts_at or 0.0)
        return _end(job) - max(self._terms.leave_s, min(AHEAD_PART * span, AHEAD_MAX_S))

    def _tell(self, what: str) -> None:
        """Say it once, until it is over."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s", what)


def _end(job: SlurmJob) -> float:
    return FOREVER if job.ends_at is None else job.ends_at
