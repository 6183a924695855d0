"""The allocations that Coadapt holds in Slurm: it offers their machines to jobs,
requests more, and gives some back.
"""

# A running allocation with GPUs cannot grow. So the first allocation is requested as a
# whole. Later ones have one node each: they start as soon as one node is free, and can
# be given back one by one. Only the pool's name is kept on disk: all allocations in
# Slurm's queue with this name are the pool.
#
# A machine leaves the pool before its allocation ends: its replicas save, and continue
# elsewhere. Preemption needs no separate rule, because Slurm moves the end of the
# allocation to the end of the grace time.

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from coadapt.executors.slurm.sizing import Place, PoolHost, PoolSize, end_of, renew_at
from coadapt.executors.slurm.terms import PoolTerms
from coadapt.executors.slurm.tools import (
    Gpus,
    SlurmError,
    SlurmJob,
    SlurmNode,
    SlurmTools,
)
from coadapt.model import NodeId

# States and flags of machines that should get no work, or no further work.
UNFIT = ("down", "drain", "drng", "fail", "error", "power", "reboot")
DRAINS = ("drain", "drng")
# A controller that has just restarted has no reports from its nodes yet.
SILENT = ("*", "unknown")
SILENT_S = 15.0
PROBE_S = 1.0

logger = logging.getLogger(__name__)


def _drains(state: str) -> bool:
    """Return whether a machine still works but should get no new work."""
    drains = any(flag in state for flag in DRAINS)
    return drains and not any(
        flag in state for flag in (*UNFIT, *SILENT) if flag not in DRAINS
    )


class Pool:
    """The machines of the pool. One thread queries Slurm (`run`). Any thread may read
    `hosts`, the result of the last query.
    """

    def __init__(
        self, terms: PoolTerms, folder: Path, name: str, wanted_slots: Callable[[], int]
    ) -> None:
        """Query Slurm for the first time, and request a first allocation. Raises
        SlurmError.

        folder: the folder in which proxies note nodes that may be dead. name: the name
        of the allocations.
        """
        self._hosts: Mapping[NodeId, PoolHost] = {}
        # When bought nodes will be taken away, as far as it is known (s since 1970),
        # and the bought nodes that were given back.
        self.noticed: Mapping[NodeId, float] = {}
        self._returned: frozenset[Place] = frozenset()
        self._terms = terms
        self._folder = folder
        self._name = name
        self._size = PoolSize(terms, name, wanted_slots, self._tell)
        self._tools = SlurmTools()
        self._gpus: dict[tuple[str, tuple[str, ...]], dict[str, Gpus]] = {}
        self._logged: set[str] = set()
        self._silent_since: dict[NodeId, float] = {}
        self._closed = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        # Why machines are no longer here, as far as it is known.
        self.why_gone: dict[NodeId, str] = {}
        # Since when and why Slurm does not respond, or has no allocation for us any
        # more; "" if all is well.
        self.trouble = ""
        self._look()

    @property
    def name(self) -> str:
        return self._name

    @property
    def hosts(self) -> Mapping[NodeId, PoolHost]:
        """The machines that take work."""
        returned = self._returned
        return {
            name: host
            for name, host in self._hosts.items()
            if (host.job, name) not in returned
        }

    def buy(self, count: int) -> None:
        """Order this total number of nodes."""
        self._size.num_wanted = count

    def give_back(self, node: NodeId) -> None:
        """Give a node back: it gets no work any more, and returns to Slurm soon."""
        host = self.hosts.get(node)
        if host is None:
            return
        self._returned |= {(host.job, node)}
        self.why_gone[node] = "was given back"
        self._size.num_wanted = max((self._size.num_wanted or 0) - 1, 0)

    def suspect(self, host: NodeId) -> Path:
        """Return the file whose presence means that this machine may be dead and must
        be checked.
        """
        return self._folder / host

    def run(self) -> None:
        """Query Slurm again and again until `close`. While Slurm does not answer, the
        last state stays.
        """
        while not self._closed.wait(self._terms.look_s):
            try:
                self._look()
            except SlurmError as error:
                self._tell_silence(f"Slurm does not answer: {error}")
            except Exception as error:  # noqa: BLE001  # no answer of Slurm's may end this thread
                self._tell_silence(
                    f"Slurm does not answer so that it can be read: "
                    f"{type(error).__name__}: {error}"
                )
            else:
                self._logged = {
                    each
                    for each in self._logged
                    if not each.startswith("Slurm does not")
                }

    def close(self) -> None:
        self._closed.set()

    def _tell_silence(self, what: str) -> None:
        self.trouble = what
        self._tell(what)

    def _look(self) -> None:
        jobs = self._jobs()
        self.trouble = ""
        if self._terms.allocation and not jobs:
            self._tell_end_of(self._terms.allocation)
        running = [job for job in jobs if job.runs]
        machines = self._tools.nodes({host for job in running for host in job.hosts})
        self._give_up_returned(running)
        hosts: dict[NodeId, PoolHost] = {}
        noticed: dict[NodeId, float] = {}
        leaving: set[Place] = set()
        taken: set[NodeId] = set()
        for job in running:
            gpus = self._gpus_of(job)
            for host in job.hosts:
                place = (job.id, host)
                ends = time.time() > end_of(job) - self._terms.leave_s
                machine = machines.get(host)
                if machine is not None and host not in taken:
                    gone_at = self._noticed_at(job, host, machine, ends=ends)
                    if gone_at is not None:
                        # The machine is offered until it is gone, so that jobs leave it
                        # by a change in place. Once it is empty it goes back to Slurm.
                        noticed[host] = gone_at
                        leaving.add(place)
                        taken.add(host)
                        hosts[host] = self._pool_host(job, host, gpus, machine)
                        continue
                # If two allocations are on one machine, the older one counts until it
                # is gone.
                if ends or host in taken or place in self._size.given_up:
                    leaving.add(place)
                elif machine is not None and self._fit(host, machine):
                    hosts[host] = self._pool_host(job, host, gpus, machine)
                taken.add(host)
        self._hosts = hosts
        self.noticed = noticed
        if not self._terms.allocation:
            self._size.adjust(jobs, hosts, leaving)

    def _give_up_returned(self, running: list[SlurmJob]) -> None:
        places = {(job.id, host) for job in running for host in job.hosts}
        self._size.given_up |= self._returned & places

    def _pool_host(
        self, job: SlurmJob, host: NodeId, gpus: Mapping[str, Gpus], machine: SlurmNode
    ) -> PoolHost:
        return PoolHost(
            job=job.id,
            gpus=gpus.get(host, Gpus()),
            address=machine.address,
            renew_at=renew_at(job, self._terms.leave_s),
        )

    def _noticed_at(
        self, job: SlurmJob, host: NodeId, machine: SlurmNode, *, ends: bool
    ) -> float | None:
        """Return when a bought node is taken away, because its allocation ends or Slurm
        drains it. Slurm names no time for a drain, so it counts from now on. None while
        the node stays.
        """
        is_given_up = (job.id, host) in self._size.given_up
        if self._terms.offer is None or is_given_up:
            return None
        if ends:
            return end_of(job)
        if not _drains(machine.state.lower()):
            return None
        return self.noticed.get(host, time.time())

    def _jobs(self) -> list[SlurmJob]:
        if self._terms.allocation:
            return [
                job
                for job in self._tools.jobs("--me")
                if job.id == self._terms.allocation
            ]
        return self._tools.jobs("--me", f"--name={self._name}")

    def _tell_end_of(self, allocation: str) -> None:
        """Report how the one allocation that is used ended."""
        state = self._tools.ended(allocation)
        how = f" ({state})" if state else ", and Slurm knows no more of it"
        why = f"allocation {allocation} has ended{how}"
        self.why_gone |= dict.fromkeys(self.hosts, f"is gone: {why}")
        self._tell_silence(
            f"{why}: no job can run until the scheduler is started with another "
            f"allocation"
        )

    def _gpus_of(self, job: SlurmJob) -> dict[str, Gpus]:
        if self._terms.slots is not None:
            return {}
        key = (job.id, job.hosts)
        if key not in self._gpus:
            self._gpus = {
                each: gpus for each, gpus in self._gpus.items() if each[0] != job.id
            }
            self._gpus[key] = self._tools.gpus(job.id)
        return self._gpus[key]

    def _fit(self, host: NodeId, machine: SlurmNode) -> bool:
        """Return whether a machine can take work. A machine that may be dead must
        answer a connection.
        """
        state = machine.state.lower()
        if not any(flag in state for flag in SILENT):
            self._silent_since.pop(host, None)
        elif (
            time.monotonic() - self._silent_since.setdefault(host, time.monotonic())
            > SILENT_S
        ):
            return False
        if any(flag in state for flag in UNFIT):
            return False
        if self.suspect(host).exists():
            try:
                socket.create_connection(
                    (machine.address, machine.port), PROBE_S
                ).close()
            except OSError as error:
                self._tell(f"node {host} is lost: its daemon does not answer ({error})")
                return False
            self.suspect(host).unlink(missing_ok=True)
            self._logged = {
                each for each in self._logged if not each.startswith(f"node {host} ")
            }
        return True

    def _tell(self, what: str) -> None:
        """Log a message once, until its cause is over."""
        if what not in self._logged:
            self._logged.add(what)
            logger.warning("%s", what)
