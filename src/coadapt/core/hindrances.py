"""The reasons why a job has no GPUs or fewer, derived from the plan and the cluster
alone, in the same way for every policy.
"""

# What a sentence claims, and what it does not.
#
# A job could start if, beside what the plan gives to the others, as many whole GPUs of
# one type that it allows were free as its minimum, on nodes that it can use, and if its
# tenant (and all jobs together) might hold so many more. What of this is not so is a
# hindrance. Each hindrance that is named holds by itself: with all the others out of
# the way the job still could not start. All of them together are enough: without them
# it could. Where nothing of this kind is in the way, the sentence says that the policy
# leaves GPUs free or gives them to others, and the policy's own words follow.
#
# The holders of GPUs are named with what can be counted: that they came earlier, or
# have a higher priority. That this is *why* they hold them only the policy can know.

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coadapt.core.growth import plural
from coadapt.model import (
    Allocation,
    ClusterView,
    FreeGpus,
    JobId,
    JobView,
    Node,
    NodeId,
    TenantId,
)
from coadapt.model.tenant import EVERYBODY, SHARE_SLACK_GPUS

HOLDERS_NAMED = 3  # more jobs are counted
# Number of nodes that are kept after they went away.
AWAY_KEPT = 20
_NO_NODES: Mapping[NodeId, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayNode:
    """A node that went away. why: for instance `was lost`."""

    node: Node
    why: str


class Waiting(NamedTuple):
    """Why a job waits. impossible: it cannot start while the others end, either."""

    impossible: bool
    text: str


@dataclass(slots=True)
class _Pool:
    """The GPUs of one type that a job can use."""

    gpu_type: str
    total: int = 0
    free: int = 0


@dataclass(slots=True)
class _Holders:
    """The jobs that hold GPUs of one type: sorted figures, to count in."""

    gpus: list[tuple[JobId, float]] = field(default_factory=list)
    came_at: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    by_tenant: dict[TenantId, list[int]] = field(default_factory=dict)

    def add(self, job: JobView, rank: int, gpus: float) -> None:
        self.gpus.append((job.id, gpus))
        self.came_at.append(job.submitted_at)
        self.ranks.append(rank)
        self.by_tenant.setdefault(job.spec.tenant, []).append(job.spec.priority)

    def sort(self) -> None:
        self.gpus.sort(key=lambda each: (-each[1], each[0]))
        self.came_at.sort()
        self.ranks.sort()
        for priorities in self.by_tenant.values():
            priorities.sort()

    def earlier(self, job: JobView) -> int:
        """Return how many came before `job`."""
        return bisect_left(self.came_at, job.submitted_at)

    def higher(self, job: JobView, rank: int) -> int:
        """Return how many have a higher priority than `job`: that of the tenant, or
        among the jobs of one tenant the job's.
        """
        of_tenants = len(self.ranks) - bisect_right(self.ranks, rank)
        own = self.by_tenant.get(job.spec.tenant, [])
        return of_tenants + len(own) - bisect_right(own, job.spec.priority)


class Hindrances:
    """What a plan leaves free, and which jobs hold the rest.

    view: the cluster. given: what each job of it is to hold now, if anything. away:
    nodes that went away. last_lost: what became of the last node, where none is left.
    """

    def __init__(
        self,
        view: ClusterView,
        given: Iterable[tuple[JobView, Allocation]],
        away: Mapping[NodeId, AwayNode] | None = None,
        last_lost: str = "",
    ) -> None:
        self._view = view
        self._away = away or {}
        self._last_lost = last_lost
        self._quotas = view.quotas()
        self._held_by: dict[TenantId, float] = {}
        self._holders: dict[str, _Holders] = {}
        self._free = FreeGpus(view.nodes)
        self._found: dict[tuple[int, tuple[str, ...], TenantId], _Found] = {}
        nodes = view.inventory.by_id
        for job, allocation in given:
            if not allocation.slots or allocation.slots[0][0] not in nodes:
                continue
            self._free.take_allocation(allocation)
            gpu_type = nodes[allocation.slots[0][0]].gpu_type
            holders = self._holders.setdefault(gpu_type, _Holders())
            gpus = allocation.num_gpus
            holders.add(job, view.tenant(job.spec.tenant).priority, gpus)
            for name in (job.spec.tenant, EVERYBODY):
                self._held_by[name] = self._held_by.get(name, 0.0) + gpus
        for each in self._holders.values():
            each.sort()

    def of_waiting(
        self, job: JobView, unfit: Mapping[NodeId, str] = _NO_NODES
    ) -> Waiting:
        """Return why `job`, which gets nothing, cannot have its fewest GPUs.

        unfit: nodes that it cannot use, each with the reason.
        """
        limits = job.spec.replicas
        key = (limits.min, limits.gpu_types, job.spec.tenant)
        found = None if unfit else self._found.get(key)
        if found is None:
            found = self._find(job, unfit)
            if not unfit:
                self._found[key] = found
        held = job.allocation.num_replicas
        start = f"gives up its {plural(held, 'GPU')} and waits" if held else "waits"
        return Waiting(
            found.impossible,
            f"{start}: {found.before}{self._relation(job, found.pool)}{found.after}",
        )

    def of_smaller(self, job: JobView, allocation: Allocation) -> str:
        """Return why `job` gets fewer GPUs than it holds (at least one); "" where no
        reason can be derived: it changes the type, or holds shares of GPUs.
        """
        count = allocation.num_replicas
        held = job.allocation.num_replicas
        nodes = self._view.inventory.by_id
        types = {
            nodes[node].gpu_type if node in nodes else ""
            for node, _ in (*job.allocation.slots, *allocation.slots)
        }
        whole = not (job.allocation.shared or allocation.shared)
        if len(types) > 1 or "" in types or not whole:
            return ""
        lacking = held - count
        [pool] = self._pools(types, _NO_NODES)
        parts = []
        if pool.free < lacking:
            free = f"{self._free_of(pool)}{self._who(pool)}{self._relation(job, pool)}"
            parts.append(free)
        parts += self._over_quota(job.spec.tenant, lacking)
        if not parts:
            parts.append(f"{self._free_of(pool)}, and the policy gives it no more")
        return f"{shrinks(held, count)}: {'; '.join(parts)}"

    def _find(self, job: JobView, unfit: Mapping[NodeId, str]) -> "_Found":
        limits = job.spec.replicas
        least = limits.min
        allowed = {
            name for name in self._view.inventory.by_type if limits.allows_type(name)
        }
        pools = self._pools(allowed, unfit)
        enough = [pool for pool in pools if pool.total >= least]
        needs = f"needs at least {plural(least, 'GPU')}"
        if limits.gpu_types:
            needs += f" of {limits.types_in_words}"
        quota = self._over_quota(job.spec.tenant, least)
        barred = any(least > most for most in self._mosts(job.spec.tenant))
        if not enough:
            pool = max(pools, key=lambda each: each.total, default=_Pool(""))
            size = f"{needs}, {self._size(job, pools, unfit)}"
            busy = pool if pool.free < pool.total else None
            who = f"; {self._free_of(pool)}{self._who(pool)}" if busy else ""
            return _Found(True, size + who, _after(quota), busy)
        pool = max(enough, key=lambda each: (each.free, each.total))
        cannot_use = _unusable(unfit, self._view)
        if pool.free < least:
            held = f"{self._free_of(pool)}{self._who(pool)}"
            if barred:
                # First what keeps it out for good: a list cuts long sentences.
                before = f"{needs}, {'; '.join(quota)}; {held}"
                return _Found(True, before, cannot_use, pool)
            before = f"{needs}, {held}"
            return _Found(False, before, cannot_use + _after(quota), pool)
        if quota:
            return _Found(barred, f"{needs}, {'; '.join(quota)}", "", None)
        return self._by_policy(job, needs, pool)

    def _by_policy(self, job: JobView, needs: str, pool: _Pool) -> "_Found":
        """Return that the policy alone keeps the job from its fewest GPUs; the text
        also says what the requested number lacks, as many policies give no fewer.
        """
        limits = job.spec.replicas
        before = f"{needs}, {self._free_of(pool)}"
        none = ", and the policy gives it none"
        asked = f"; it requested {limits.requested}"
        quota = self._over_quota(job.spec.tenant, limits.requested)
        if pool.free < limits.requested:
            before += self._who(pool)
            return _Found(False, before, none + asked + _after(quota), pool)
        after = none + (asked + _after(quota) if quota else "")
        return _Found(False, before, after, None)

    def _pools(
        self, gpu_types: Iterable[str], unfit: Mapping[NodeId, str]
    ) -> list[_Pool]:
        pools = {name: _Pool(name) for name in sorted(gpu_types)}
        if not unfit:
            return [self._whole_pool(name) for name in pools]
        for node in self._view.nodes:
            if node.gpu_type in pools and node.id not in unfit:
                pools[node.gpu_type].total += node.num_gpus
                pools[node.gpu_type].free += max(self._free.whole[node.id], 0)
        return list(pools.values())

    def _whole_pool(self, gpu_type: str) -> _Pool:
        racks = self._view.inventory.groups[gpu_type]
        whole = self._free.whole
        return _Pool(
            gpu_type,
            self._view.inventory.by_type[gpu_type],
            sum(max(whole[node], 0) for rack in racks.values() for _, node in rack),
        )

    def _size(
        self, job: JobView, pools: Sequence[_Pool], unfit: Mapping[NodeId, str]
    ) -> str:
        limits = job.spec.replicas
        if not self._view.nodes:
            lost = f": {self._last_lost}" if self._last_lost else ""
            return f"the cluster has no node{lost}"
        largest = max((pool.total for pool in pools), default=0)
        has = f"the cluster has {largest} of {limits.types_in_words}"
        if unfit:
            has += " that it can use" + _unusable(unfit, self._view)
        return has + self._of_away(job, pools, unfit)

    def _of_away(
        self, job: JobView, pools: Sequence[_Pool], unfit: Collection[NodeId]
    ) -> str:
        """Return which nodes that went away would make the cluster large enough."""
        least = job.spec.replicas.min
        total = {pool.gpu_type: pool.total for pool in pools}
        for gpu_type in sorted({each.node.gpu_type for each in self._away.values()}):
            nodes = [
                each
                for each in self._away.values()
                if each.node.gpu_type == gpu_type and each.node.id not in unfit
            ]
            has = total.get(gpu_type, 0)
            more = sum(each.node.num_gpus for each in nodes)
            # The text names the largest pool, so both figures must be of it.
            alike = has == max(total.values(), default=0)
            if (
                alike
                and job.spec.replicas.allows_type(gpu_type)
                and has + more >= least
            ):
                named = [
                    f"node {each.node.id} with {each.node.num_gpus} {each.why}"
                    for each in nodes
                ]
                return f"; {', '.join(named)}"
        return ""

    def _free_of(self, pool: _Pool) -> str:
        verb = "is" if pool.free == 1 else "are"
        several = len(self._view.inventory.by_type) > 1
        of_type = f" of type {pool.gpu_type}" if several else ""
        return f"{pool.free} of {pool.total}{of_type} {verb} free"

    def _who(self, pool: _Pool) -> str:
        holders = self._holders.get(pool.gpu_type)
        if holders is None:
            return ""
        if len(holders.gpus) > HOLDERS_NAMED:
            return f", {len(holders.gpus)} jobs hold the others"
        named = [f"{job} has {gpus:g}" for job, gpus in holders.gpus]
        return f", {' and '.join(named)}"

    def _relation(self, job: JobView, pool: _Pool | None) -> str:
        holders = self._holders.get(pool.gpu_type) if pool is not None else None
        if holders is None:
            return ""
        rank = self._view.tenant(job.spec.tenant).priority
        parts = []
        if earlier := holders.earlier(job):
            parts.append(f"{earlier} came earlier")
        if higher := holders.higher(job, rank):
            verb = "has" if higher == 1 else "have"
            parts.append(f"{higher} {verb} a higher priority")
        return f" ({', '.join(parts)})" if parts else ""

    def _mosts(self, tenant: TenantId) -> Sequence[int]:
        return [
            self._quotas[name] for name in (tenant, EVERYBODY) if name in self._quotas
        ]

    def _over_quota(self, tenant: TenantId, more: int) -> list[str]:
        """Return the quotas that `more` GPUs of the tenant would exceed."""
        parts = []
        for name in (tenant, EVERYBODY):
            quota = self._quotas.get(name)
            held = self._held_by.get(name, 0.0)
            if quota is None or held + more <= quota + SHARE_SLACK_GPUS:
                continue
            if name == EVERYBODY:
                part = f"all jobs together hold {held:g}, and may hold {quota}"
                if more > quota:
                    part += "; it cannot start until that quota is raised"
                parts.append(part)
            elif more > quota:
                parts.append(
                    f"the quota of tenant {name} is {quota}; it cannot start until "
                    f"the quota is raised"
                )
            else:
                parts.append(f"tenant {name} holds {held:g} of its quota of {quota}")
        return parts


class _Found(NamedTuple):
    """A sentence in two parts; the relation of the holders to the job goes between."""

    impossible: bool
    before: str
    after: str
    pool: _Pool | None


def shrinks(held: int, count: int) -> str:
    """Return `shrinks from 4 to 2 GPUs`."""
    return f"shrinks from {held} to {plural(count, 'GPU')}"


def with_own_words(proven: str, own: str) -> str:
    """Return the proven reason, followed by what the policy adds.

    Both may begin with the same change of size, which is kept once.
    """
    head, _, _ = proven.partition(":")
    return "; ".join(filter(None, (proven, own.removeprefix(head).lstrip(":; "))))


def _after(parts: Sequence[str]) -> str:
    return "".join(f"; {part}" for part in parts)


def _unusable(unfit: Mapping[NodeId, str], view: ClusterView) -> str:
    there = view.inventory.by_id
    parts = [f"not on {node}: {why}" for node, why in unfit.items() if node in there]
    return _after(parts)
