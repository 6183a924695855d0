"""The size of the pool: more nodes are requested while jobs wait, and idle nodes are
given back.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from coadapt.executors.slurm.terms import LEAVE_MARGIN_S, PoolTerms
from coadapt.executors.slurm.tools import Gpus, SlurmError, SlurmJob, SlurmTools
from coadapt.model import NodeId

# The time before an allocation's end at which its successor is requested, as a part of
# the allocation's whole time. The request may have to wait in the queue.
AHEAD_PART = 0.1
AHEAD_MAX_S = 1800.0
# The pause after a request that Slurm refused. It doubles each time.
RETRY_S = 5.0
RETRY_MAX_S = 600.0

HOLD = (
    "#!/bin/sh\n# Held by Coadapt, which runs its jobs' replicas in here as "
    "steps.\nexec sleep infinity\n"
)

Place = tuple[str, NodeId]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHost:
    """A machine of the pool, in one allocation. renew_at: when the machine needs a
    successor.
    """

    job: str
    gpus: Gpus
    address: str
    renew_at: float


class _Pause:
    """The pause between requests. It also keeps allocations that end as soon as they
    begin from being requested again and again.
    """

    def __init__(self) -> None:
        self._seconds = RETRY_S
        self._until = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._until

    def refused(self) -> None:
        self._until = time.monotonic() + self._seconds
        self._seconds = min(2 * self._seconds, RETRY_MAX_S)

    def granted(self) -> None:
        # The length of the next pause stays the same. It is reset only when an
        # allocation takes work.
        self._until = max(self._until, time.monotonic() + RETRY_S)

    def served(self) -> None:
        self._seconds = RETRY_S


class PoolSize:
    """Keeps the pool at the wanted size. One thread calls `adjust` after each query."""

    def __init__(
        self,
        terms: PoolTerms,
        name: str,
        wanted_slots: Callable[[], int],
        tell: Callable[[str], None],
    ) -> None:
        """name: the name of the pool's allocations. tell: shows a message to the
        operator, once.
        """
        self.given_up: set[Place] = set()
        # The ordered number of bought nodes, None before the first order.
        self.num_wanted: int | None = None
        self._had: set[Place] = set()
        self._terms = terms
        self._name = name
        self._wanted_slots = wanted_slots
        self._tell = tell
        self._tools = SlurmTools()
        self._idle_since: dict[Place, float] = {}
        self._left: set[Place] = set()
        self._pause = _Pause()
        self._first = True
        # Allocations that could take work in at least one query.
        self._served: set[str] = set()

    def adjust(
        self,
        jobs: list[SlurmJob],
        hosts: Mapping[NodeId, PoolHost],
        leaving: set[Place],
    ) -> None:
        """Give back what is not needed, and ask for what is missing.

        jobs: the pool's allocations. hosts: the machines that take work. leaving: the
        machines that take no work any more. Raises SlurmError if Slurm does not answer,
        or refuses the very first request.
        """
        serving = {held.job for held in hosts.values()}
        if serving:
            self._pause.served()
        self._served = (self._served & {job.id for job in jobs}) | serving
        self._note_losses(hosts)
        self._give_back([job for job in jobs if job.runs], hosts, leaving)
        held = {(job.id, host) for job in jobs if job.runs for host in job.hosts}
        # Slurm may not know yet that one of these machines is dead, and might give the
        # same machine again.
        unfit = {host for job, host in held - leaving if host not in hosts}
        self._ask_for_more(jobs, hosts, unfit)
        self._first = False

    def _note_losses(self, hosts: Mapping[NodeId, PoolHost]) -> None:
        """Reduce the order of bought nodes by those that were lost. The sizer decides
        whether to replace them.
        """
        there = {(held.job, host) for host, held in hosts.items()}
        if self.num_wanted is not None:
            lost = self._had - there - self.given_up
            self.num_wanted = max(self.num_wanted - len(lost), 0)
        self._had = there

    def _goal(self, staying: list[NodeId]) -> int:
        """Return the wanted number of nodes."""
        if self._terms.offer is not None:
            return min(self._terms.max_nodes, self.num_wanted or 0)
        growth = math.ceil(max(self._wanted_slots(), 0) / self._terms.slots_per_node)
        return min(self._terms.max_nodes, max(self._terms.nodes, len(staying) + growth))

    def _ask_for_more(
        self, jobs: list[SlurmJob], hosts: Mapping[NodeId, PoolHost], unfit: set[NodeId]
    ) -> None:
        is_bought = self._terms.offer is not None
        if is_bought and self.num_wanted is None:
            return  # the request of an earlier scheduler stays
        # Bought nodes are not renewed. After a notice the sizer orders others.
        staying = sorted(hosts) if is_bought else _staying(hosts)
        waiting = [job for job in jobs if job.waits]
        coming = sum(job.num_nodes for job in waiting)
        goal = self._goal(staying)
        for job in reversed(waiting):
            if (
                coming > self._terms.nodes
                and len(staying) + coming - job.num_nodes >= goal
            ):
                self._tools.cancel(job.id)
                coming -= job.num_nodes
            else:
                self._tell(
                    f"waits for {job.num_nodes} nodes of Slurm: job {job.id}, {job.why}"
                )
        lacking = goal - len(staying) - coming
        if lacking > 0 and self._pause.over:
            # Bought nodes are given back one by one, so they are requested one by one,
            # too.
            whole = not (is_bought or staying or coming)
            self._submit(
                [lacking] if whole else [1] * lacking, sorted({*staying, *unfit})
            )

    def _submit(self, sizes: list[int], others: list[NodeId]) -> None:
        """others: the machines that are already held."""
        elsewhere = [f"--exclude={','.join(others)}"] if others else []
        for num_nodes in sizes:
            options = [
                f"--job-name={self._name}",
                f"--nodes={num_nodes}",
                *elsewhere,
                *self._terms.sbatch,
            ]
            try:
                job = self._tools.submit(options, HOLD)
            except SlurmError as error:
                self._pause.refused()
                if self._first and not others:
                    raise
                self._tell(f"Slurm refuses {num_nodes} more nodes: {error}")
                return
            self._pause.granted()
            logger.info("requested %d nodes from Slurm: Slurm job %s", num_nodes, job)

    def _give_back(
        self,
        running: list[SlurmJob],
        hosts: Mapping[NodeId, PoolHost],
        leaving: set[Place],
    ) -> None:
        """Give back machines that have left the pool and are empty. Also give up
        machines that are idle for long, above the number that is always held.
        """
        now = time.monotonic()
        busy = self._tools.busy_hosts(job.id for job in running)
        places = {(job.id, host) for job in running for host in job.hosts}
        idle = {place for place in places if place[1] not in busy[place[0]]}
        self._idle_since = {place: self._idle_since.get(place, now) for place in idle}
        for job in running:
            free = {
                host
                for host in job.hosts
                if (job.id, host) in leaving & self._left & idle
            }
            if free == set(job.hosts):
                if job.id not in self._served:
                    self._pause.refused()
                    self._tell(self._over_at_once(job))
                self._let_go(job, "all of its nodes are")
            elif free & {host for number, host in self.given_up if number == job.id}:
                self._let_go(job, ", ".join(sorted(free)), set(job.hosts) - free)
        self._left = leaving
        self.given_up &= places
        if self._terms.offer is not None or self._wanted_slots() > 0:
            return
        old = [
            (held.job, host)
            for host, held in hosts.items()
            if now - self._idle_since.get((held.job, host), now) >= self._terms.idle_s
        ]
        old.sort(key=lambda place: (-int(place[0]), place[1]))
        # These machines leave the pool with the next query. The query after that gives
        # them back, if nothing has begun on them.
        self.given_up |= set(old[: max(len(hosts) - self._terms.nodes, 0)])

    def _over_at_once(self, job: SlurmJob) -> str:
        """Return why an allocation never took work. The text is the same each time, so
        it is logged once.
        """
        span = end_of(job) - (job.starts_at or 0.0)
        if job.starts_at is not None and span > self._terms.leave_s:
            why = (
                "this machine's clock is ahead of Slurm's: set both right (NTP), "
                "Slurm's is that of slurmctld"
            )
        else:
            why = "give it a longer time_limit, or the scheduler a shorter --grace"
        return (
            "Slurm's allocations are over as they begin: nodes leave "
            f"{self._terms.leave_s:.0f} s before the end (grace and "
            f"{LEAVE_MARGIN_S:.0f} s); {why}. "
            "It is asked for more at growing intervals"
        )

    def _let_go(self, job: SlurmJob, what: str, kept: set[str] | None = None) -> None:
        logger.info("returned to Slurm: Slurm job %s, %s free", job.id, what)
        with suppress(SlurmError):  # it has just ended, or the next query tries again
            self._tools.keep_hosts(job.id, kept) if kept else self._tools.cancel(job.id)


def _staying(hosts: Mapping[NodeId, PoolHost]) -> list[NodeId]:
    """Return the machines for which no successor is needed yet."""
    return sorted(host for host, held in hosts.items() if time.time() < held.renew_at)


def renew_at(job: SlurmJob, leave_s: float) -> float:
    """Return when an allocation needs a successor. Its nodes leave it `leave_s` seconds
    before its end.
    """
    span = end_of(job) - (job.starts_at or 0.0)
    return end_of(job) - max(leave_s, min(AHEAD_PART * span, AHEAD_MAX_S))


def end_of(job: SlurmJob) -> float:
    """Return the end of an allocation in seconds since 1970, infinity if it has
    none.
    """
    return math.inf if job.ends_at is None else job.ends_at
