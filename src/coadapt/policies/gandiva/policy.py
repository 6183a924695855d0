"""The policy: the home of each job, whose turn it is, and moves that are undone because
they did not help.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from coadapt.model import (
    Allocation,
    ClusterView,
    JobId,
    JobView,
    NodeId,
    Plan,
    RescaleContract,
)
from coadapt.policies.allocation.capacity import Capacity, FreeNodes, useful_span
from coadapt.policies.allocation.counted_plan import requested_batch
from coadapt.policies.allocation.gpu_sharing import fits_share
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import gets
from coadapt.policies.base import PolicyCard
from coadapt.policies.gandiva.explain import note, why_not
from coadapt.policies.gandiva.packing import Packing, may_share
from coadapt.policies.gandiva.servers import Servers

QUANTUM_S = 60.0  # of the paper, whose jobs are suspended and resumed within a second
TRIAL_TURNS = 2  # before a pair is judged
MOVE_AFTER_S = 600.0  # how long a job that trains stays at least where it is; ours
GROW_AFTER_S = 300.0  # time without waiting jobs before jobs grow; ours
# free GPUs of a server from which its jobs are moved away: 3 of 4 in the paper
EMPTY_PART = 0.75


@dataclass(slots=True)
class _Round:
    """One round while it is decided."""

    view: ClusterView
    capacity: Capacity
    servers: Servers
    turn_begins: bool
    turn_s: float
    jobs: dict[JobId, JobView]
    queued: list[JobView] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class GandivaOptions:
    """See Gandiva."""

    quantum_s: float
    switch_part: float
    load_max: float
    same_affinity: bool
    pack: bool
    pack_gain: float
    migrate: bool
    grow: bool

    def __post_init__(self) -> None:
        if not (math.isfinite(self.quantum_s) and self.quantum_s >= 0.0):
            raise ValueError(f"quantum_s must be finite and >= 0, got {self.quantum_s}")
        if not 0.0 < self.switch_part <= 1.0:
            raise ValueError(f"switch_part must be in (0, 1], got {self.switch_part}")
        if not self.load_max >= 1.0:
            raise ValueError(f"load_max must be >= 1, got {self.load_max}")


@dataclass(slots=True)
class _Kept:
    """What is kept from round to round. Losing it costs moves, and turns that jobs are
    due.

    received_s: time of each job on GPUs, from the level that it met where it lives.
    labels: of pairs, by the job whose home it is. affinity: see Servers. calm_since:
    since when no job has waited, s.
    """

    homes: dict[JobId, Allocation] = field(default_factory=dict)
    moved_at: dict[JobId, float] = field(default_factory=dict)
    received_s: dict[JobId, float] = field(default_factory=dict)
    labels: dict[JobId, tuple[int, ...]] = field(default_factory=dict)
    affinity: dict[NodeId, int] = field(default_factory=dict)
    turn_at: float = -math.inf
    seen_at: float = -math.inf
    calm_since: float = math.inf


class Gandiva:
    """Jobs live on servers and take turns there; they are packed, moved and grown where
    it is seen to help.

    quantum_s: a turn; it lasts longer where starts are costly. switch_part: the most of
    a turn that starts may take. load_max: the largest load of a server on which jobs
    take turns. same_affinity: whether jobs
    take turns with others of as many GPUs only, as in the paper, and queue otherwise.
    pack, migrate, grow:
    whether jobs share GPUs, move and get idle GPUs of their server. pack_gain: what a
    pair must get done, time slices being 1.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Xiao et al., Gandiva, OSDI 2018",
        decides="turns on servers, places, pairs that share GPUs; GPU counts where GPUs "
        "are idle",
    )

    def __init__(
        self,
        *,
        quantum_s: float = QUANTUM_S,
        switch_part: float = 0.1,
        load_max: float = 4.0,
        same_affinity: bool = False,
        pack: bool = True,
        pack_gain: float = 1.0,
        migrate: bool = True,
        grow: bool = True,
    ) -> None:
        self._options = GandivaOptions(
            quantum_s=quantum_s,
            switch_part=switch_part,
            load_max=load_max,
            same_affinity=same_affinity,
            pack=pack,
            pack_gain=pack_gain,
            migrate=migrate,
            grow=grow,
        )
        self._kept = _Kept()
        self._packing = Packing()

    def allocate(self, view: ClusterView) -> Plan:
        now = self._begin(view)
        if self._options.pack:
            for job_id in self._packing.judge(
                view, TRIAL_TURNS * now.turn_s, self._options.pack_gain
            ):
                del self._kept.homes[job_id]
        self._place_all(now)
        if self._options.migrate:
            self._move(now)
        if self._options.pack and now.turn_begins:
            self._try_pairs(now)
        if self._options.grow:
            self._grow_all(now)
        return self._plan(now, self._take_turns(now))

    # -- which jobs live on which servers
    # ----------------------------------------------------------------------------------

    def _begin(self, view: ClusterView) -> _Round:
        """Bring what is kept up to the view: time received, jobs and homes that are
        gone, turns.
        """
        capacity = Capacity(view)
        jobs = {job.id: job for job in view.jobs}
        elapsed_s = (
            max(view.at - self._kept.seen_at, 0.0)
            if math.isfinite(self._kept.seen_at)
            else 0.0
        )
        self._kept.seen_at = view.at
        self._packing.observe(view)
        for gone in [job_id for job_id in self._kept.homes if job_id not in jobs]:
            self._leave(gone)
        self._kept.received_s = {
            job.id: self._kept.received_s.get(job.id, 0.0)
            + (elapsed_s if job.allocation else 0.0)
            for job in view.jobs
        }
        pinned: dict[NodeId, int] = {}
        for job in view.jobs:
            if job.id in capacity.counts:
                self._leave(job.id)
                for name, count in job.allocation.slots:
                    pinned[name] = pinned.get(name, 0) + count
        servers = Servers(view.nodes, self._kept.affinity, pinned)
        self._adopt(view, servers, capacity)
        for job_id in [
            job_id for job_id in self._kept.homes if self._packing.leads(job_id)
        ]:
            servers.settle(self._kept.homes[job_id])
        servers.forget_empty()
        mean_s = sum(job.rescale_s for job in view.jobs) / max(len(view.jobs), 1)
        turn_s = max(self._options.quantum_s, mean_s / self._options.switch_part)
        begins = view.at - self._kept.turn_at >= turn_s
        if begins:
            self._kept.turn_at = view.at
        return _Round(view, capacity, servers, begins, turn_s, jobs)

    def _adopt(self, view: ClusterView, servers: Servers, capacity: Capacity) -> None:
        """Drop homes that cannot be any more; take over what jobs hold of which nothing
        is known.
        """
        quota_left = {tenant: float(gpus) for tenant, gpus in view.quotas().items()}
        for job in view.jobs:
            if job.id in capacity.counts and job.spec.tenant in quota_left:
                quota_left[job.spec.tenant] -= job.allocation.num_gpus
        for job in view.jobs:
            home = self._kept.homes.get(job.id)
            if (
                home is None
                and not job.allocation.shared
                and job.id not in capacity.counts
            ):
                home = job.allocation
            if not home or not self._packing.leads(job.id):
                continue
            kind = (
                servers.nodes[home.slots[0][0]].gpu_type
                if servers.can_hold(home)
                else None
            )
            fits = home.num_replicas in range(
                requested_gpus(job), useful_span(job)[1] + 1
            )
            stranded = job.spec.contract is RescaleContract.FROZEN and bool(
                job.allocation
            )
            left = quota_left.get(job.spec.tenant, math.inf)
            if kind is None or not fits or stranded or left < home.num_replicas:
                self._leave(job.id)
            elif job.spec.replicas.allows_type(kind):
                self._kept.homes[job.id] = home
                quota_left[job.spec.tenant] = left - home.num_replicas
            else:
                self._leave(job.id)

    def _leave(self, job_id: JobId) -> None:
        """Take the home of a job. One that shared it inherits it."""
        home = self._kept.homes.pop(job_id, None)
        partner = self._packing.partner.get(job_id)
        self._packing.part(job_id)
        if home is not None and partner is not None:
            self._kept.homes[partner] = home

    def _settle(self, now: _Round, job: JobView, home: Allocation) -> None:
        """Let `job` live at `home` from now on. It has had as much time as the job that
        had least there.
        """
        others = [
            self._kept.received_s[job_id]
            for job_id, each in self._kept.homes.items()
            if job_id != job.id and any(each.on(name) for name, _ in home.slots)
        ]
        self._kept.received_s[job.id] = min(
            others, default=self._kept.received_s[job.id]
        )
        self._kept.homes[job.id] = home
        self._kept.moved_at[job.id] = now.view.at
        now.servers.settle(home)

    def _place_all(self, now: _Round) -> None:
        """Find homes for the jobs without one; those that grew shrink as soon as one
        needs their GPUs.
        """
        homeless = [
            job
            for job in now.view.jobs
            if job.id not in self._kept.homes
            and job.id not in now.capacity.counts
            and self._allowed(now, job)
        ]
        homeless.sort(key=lambda job: -job.spec.priority)
        self._kept.moved_at = {
            job_id: at
            for job_id, at in self._kept.moved_at.items()
            if job_id in now.jobs
        }
        waiting = [job for job in homeless if not self._place(now, job, None)]
        if waiting:
            self._shrink_all(now)
        now.queued = [
            job for job in waiting if not self._place(now, job, self._options.load_max)
        ]

    def _place(self, now: _Round, job: JobView, limit: float | None) -> bool:
        """Let `job` live somewhere. limit: as in Servers.find."""
        count = requested_gpus(job)
        same = self._options.same_affinity
        home = (
            now.servers.find(job, count, limit, same_affinity=same)
            if self._allowed(now, job)
            else None
        )
        if home is not None:
            self._settle(now, job, home)
        return home is not None

    def _allowed(self, now: _Round, job: JobView) -> bool:
        """Return whether one more home of `job` stays within its tenant's quota, and it
        may start at all.
        """
        if job.spec.contract is RescaleContract.FROZEN and job.allocation:
            return False
        living = sum(
            home.num_replicas
            for job_id, home in self._kept.homes.items()
            if self._packing.leads(job_id)
            and now.jobs[job_id].spec.tenant == job.spec.tenant
        )
        return living + requested_gpus(job) <= now.capacity.quota_left(job)

    # -- moves, pairs, growth
    # -----------------------------------------------------------------------------

    def _move(self, now: _Round) -> None:
        """Move suspended jobs and pairs to free GPUs, bring spread jobs together, empty
        servers.
        """
        for job in now.view.jobs:
            home = self._kept.homes.get(job.id)
            if home is None:
                continue
            second = not self._packing.leads(job.id)
            if (second and self._allowed(now, job)) or (
                now.servers.crowded(home) and not job.allocation
            ):
                place = now.servers.find(job, requested_gpus(job))
                if place is not None:
                    self._rehome(now, job, home, place)
        for job, home in self._settled(now):
            if home.num_nodes > 1:
                place = now.servers.find_together(home)
                if place is not None:
                    self._rehome(now, job, home, place)
        needy = bool(now.queued) or any(
            home.num_nodes > 1 for home in self._kept.homes.values()
        )
        for job, home in self._settled(now) if needy else ():
            name = home.slots[0][0]
            if now.servers.free(name) >= EMPTY_PART * now.servers.nodes[name].num_gpus:
                place = (
                    now.servers.find_elsewhere(home) if home.num_nodes == 1 else None
                )
                if place is not None:
                    self._rehome(now, job, home, place)

    def _settled(self, now: _Round) -> Iterator[tuple[JobView, Allocation]]:
        """Yield the jobs, without partners, that have been long enough where they live
        to be moved.
        """
        for job in now.view.jobs:
            home = self._kept.homes.get(job.id)
            stayed_s = now.view.at - self._kept.moved_at.get(job.id, -math.inf)
            if (
                home is not None
                and job.id not in self._packing.partner
                and stayed_s >= MOVE_AFTER_S
            ):
                yield job, home

    def _rehome(
        self, now: _Round, job: JobView, home: Allocation, place: Allocation
    ) -> None:
        if job.id not in self._packing.partner:
            now.servers.leave(home)
        elif self._packing.leads(job.id):
            return  # its partner moves, and it stays
        self._packing.part(job.id)
        self._settle(now, job, place)

    def _try_pairs(self, now: _Round) -> None:
        """Pair jobs that take turns with others of as many GPUs, the most promising
        ones first.
        """
        quotas = now.view.quotas()
        lone = [
            job
            for job in now.view.jobs
            if job.id in self._kept.homes
            and job.id not in self._packing.partner
            and job.spec.contract is not RescaleContract.FROZEN
            and now.servers.crowded(self._kept.homes[job.id])
            and self._kept.homes[job.id].num_replicas == requested_gpus(job)
            and fits_share(job, requested_gpus(job), 2)
        ]
        found: list[tuple[float, int, int]] = []
        for i, first in enumerate(lone):
            for k, second in enumerate(lone[i + 1 :], i + 1):
                if self._may_pair(now, first, second, quotas):
                    promise = self._packing.promise(
                        first, second, self._options.pack_gain
                    )
                    if promise is not None:
                        found.append((-promise, i, k))
        for _, i, k in sorted(found):
            first = lone[i]
            second = lone[k]
            if first.id in self._packing.partner or second.id in self._packing.partner:
                continue
            now.servers.leave(self._kept.homes[second.id])
            self._kept.homes[second.id] = self._kept.homes[first.id]
            self._packing.pair(first.id, second.id, now.view.at)
            self._kept.labels[first.id] = self._free_labels(now, first.id)

    def _free_labels(self, now: _Round, leader: JobId) -> tuple[int, ...]:
        """Return labels for the GPUs of the pair of `leader` that no other pair has on
        its servers.
        """
        home = self._kept.homes[leader]
        self._kept.labels = {
            job_id: labels
            for job_id, labels in self._kept.labels.items()
            if job_id != leader
            and job_id in self._packing.partner
            and self._packing.leads(job_id)
        }
        others = [
            shared(self._kept.homes[job_id], labels)
            for job_id, labels in self._kept.labels.items()
        ]
        others += [now.jobs[job_id].allocation for job_id in now.capacity.counts]
        labels: list[int] = []
        for name, count in home.slots:
            used = {label for each in others for label in each.labels_on(name)}
            labels += [
                label for label in range(count + len(used)) if label not in used
            ][:count]
        return tuple(labels)

    def _may_pair(
        self, now: _Round, first: JobView, second: JobView, quotas: Mapping[str, int]
    ) -> bool:
        name = self._kept.homes[first.id].slots[0][0]
        kind = now.servers.nodes[name].gpu_type
        return (
            requested_gpus(first) == requested_gpus(second)
            and second.spec.replicas.allows_type(kind)
            and may_share(first, second, quotas)
        )

    def _grow_all(self, now: _Round) -> None:
        """Let jobs grow onto the idle GPUs of their server, if no job has waited for
        GROW_AFTER_S.
        """
        if now.queued or any(
            now.servers.crowded(home) for home in self._kept.homes.values()
        ):
            self._kept.calm_since = math.inf
            return
        self._kept.calm_since = min(self._kept.calm_since, now.view.at)
        if now.view.at - self._kept.calm_since < GROW_AFTER_S:
            return
        for job in now.view.jobs:
            home = self._kept.homes.get(job.id)
            if home is None or home.num_nodes > 1 or job.id in self._packing.partner:
                continue
            (name, count) = home.slots[0]
            most = useful_span(job)[1]
            quota_left = now.capacity.quota_left(job) - sum(
                each.num_replicas
                for job_id, each in self._kept.homes.items()
                if now.jobs[job_id].spec.tenant == job.spec.tenant
            )
            more = int(min(now.servers.free(name), most - count, quota_left))
            if more > 0 and job.spec.contract is not RescaleContract.FROZEN:
                self._resize(now, job, Allocation(slots=((name, count + more),)))

    def _shrink_all(self, now: _Round) -> None:
        for job in now.view.jobs:
            home = self._kept.homes.get(job.id)
            count = requested_gpus(job)
            if home is not None and home.num_replicas > count:
                if home.num_nodes > 1:
                    now.servers.leave(self._kept.homes.pop(job.id))
                    self._place(now, job, None)
                else:
                    self._resize(
                        now, job, Allocation(slots=((home.slots[0][0], count),))
                    )
        self._kept.calm_since = math.inf

    def _resize(self, now: _Round, job: JobView, home: Allocation) -> None:
        now.servers.leave(self._kept.homes[job.id])
        self._kept.homes[job.id] = home
        now.servers.settle(home)

    # -- turns
    # ----------------------------------------------------------------------------------

    def _take_turns(self, now: _Round) -> dict[JobId, Allocation]:
        """Return the homes of the jobs whose turn it is: those that had least time,
        priorities first.
        """
        free = FreeNodes(now.servers.nodes)
        for job_id in now.capacity.counts:
            free.take(now.jobs[job_id].allocation)

        def turn(job: JobView) -> tuple[float, bool, float, bool]:
            runs = bool(job.allocation)
            stays = runs and not now.turn_begins
            return (-job.spec.priority, not stays, self._kept.received_s[job.id], runs)

        running: dict[JobId, Allocation] = {}
        order = sorted(now.view.jobs, key=turn)
        for job in order:
            home = self._kept.homes.get(job.id)
            if home is not None and job.id not in running and free.take(home):
                self._run(now, running, job)
        for job in order if self._options.migrate else ():
            home = self._kept.homes.get(job.id)
            if home is None or job.id in running or job.id in self._packing.partner:
                continue
            place = now.servers.find_idle(
                job, requested_gpus(job), free.gpus, self._options.load_max
            )
            if place is not None and not job.allocation:
                self._rehome(now, job, home, place)
                free.take(place)
                self._run(now, running, job)
        return running

    def _run(self, now: _Round, running: dict[JobId, Allocation], job: JobView) -> None:
        """Give `job`, and its partner with it, the GPUs of its home, if its tenant's
        quota allows it.
        """
        home = self._kept.homes[job.id]
        partner = self._packing.partner.get(job.id)
        leader = (
            job if partner is None or self._packing.leads(job.id) else now.jobs[partner]
        )
        if now.capacity.give(
            leader, home.num_replicas, now.servers.nodes[home.slots[0][0]].gpu_type
        ):
            running |= (
                {job.id: home} if partner is None else {job.id: home, partner: home}
            )

    def _plan(self, now: _Round, running: Mapping[JobId, Allocation]) -> Plan:
        frozen = {
            job_id: now.jobs[job_id].allocation
            for job_id in now.capacity.counts
            if job_id not in running
        }
        allocations = frozen | self._labelled(running)
        batches = {}
        reasons = {}
        for job in now.view.jobs:
            given = allocations.get(job.id)
            if given is None:
                reasons[job.id] = why_not(job, self._kept.homes, now.capacity)
                continue
            partner = self._packing.partner.get(job.id)
            also = "" if partner is None else now.jobs[partner].spec.name
            where = note(
                job, self._kept.homes, now.servers, also, self._packing.score_of(job.id)
            )
            reasons[job.id] = gets(job, given) + (f"; {where}" if where else "")
            batch = requested_batch(job, given.num_replicas)
            if batch is not None:
                batches[job.id] = batch
        crowds = [now.servers.load(name) for name in now.servers.nodes]
        figures = {
            "load_max": max(crowds, default=0.0),
            "pairs": len(self._packing.partner) / 2,
        }
        return Plan(
            allocations=allocations,
            batches=batches,
            reasons=reasons,
            diagnostics=figures,
        )

    def _labelled(self, running: Mapping[JobId, Allocation]) -> dict[JobId, Allocation]:
        """Return what the jobs of `running` hold: pairs by halves, on labels that stay
        theirs.
        """
        given: dict[JobId, Allocation] = {}
        for job_id, home in running.items():
            partner = self._packing.partner.get(job_id)
            leader = (
                job_id if partner is None or self._packing.leads(job_id) else partner
            )
            given[job_id] = (
                home if partner is None else shared(home, self._kept.labels[leader])
            )
        return given


def shared(home: Allocation, labels: tuple[int, ...]) -> Allocation:
    """Return what both of a pair hold that lives at `home`: halves of its GPUs."""
    return Allocation(slots=home.slots, gpu_share=0.5, shared=labels)
