"""Random clusters under any policy, and an oracle that reads what is said of jobs that
wait or shrink, and finds out by trying whether it is true.
"""

# How a sentence is tried.
#
# The sentence is read as a user reads it, from its text. What it names is then changed
# in the cluster, and `check_plan`, the law that every plan is held to, says whether the
# job could have its GPUs beside what the plan gives to the others:
#
#   - as things are: only where the sentence says that the policy alone keeps it waiting
#   - with all that is named out of the way: always
#   - with one thing left and everything else relaxed: never
#
# Numbers and names of holders are counted anew.

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator

from coadapt.core.commands import Rescale, Solve, Start, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Outcome,
    PlanReady,
    ReplicasExited,
    ReplicasStarted,
    TenantConfigured,
    TimerFired,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord
from coadapt.model import (
    NO_GRANT,
    Allocation,
    BatchLimits,
    ClusterView,
    FreeGpus,
    JobId,
    JobSpec,
    JobView,
    Node,
    Plan,
    PlanError,
    ReplicaLimits,
    RescaleContract,
    Tenant,
    check_plan,
)
from coadapt.model.tenant import EVERYBODY
from coadapt.policies import Policy
from coadapt.runtime.solver import decide

TYPES = ("a100", "t4", "v100")
ROUNDS = 4
ROUND_S = 60.0
TENANTS = ("default", "vision", "speech")
MANY = 10_000

WAITS = re.compile(
    r"(?:gives up its (?P<held>\d+) GPUs? and )?waits: "
    r"needs at least (?P<least>\d+) GPUs?(?: of type [a-z0-9]+(?: or [a-z0-9]+)*)?, "
    r"(?P<rest>.+)"
)
SHRINKS = re.compile(
    r"shrinks from (?P<held>\d+) to (?P<count>\d+) GPUs?: (?P<rest>.+)"
)
FREE = re.compile(r"(\d+) of (\d+)(?: of type (\w+))? (?:is|are) free")
HAS = re.compile(r"(job-\d+) has ([\d.]+)")
HOLD = re.compile(r"(\d+) jobs hold the others")
EARLIER = re.compile(r"(\d+) came earlier")
HIGHER = re.compile(r"(\d+) (?:has|have) a higher priority")
SIZE = re.compile(r"the cluster has (\d+) of|the cluster has (no) node")
AWAY = re.compile(r"node (n\d+) with (\d+) was (?:set aside: for a test|lost)")
QUOTA = re.compile(r"tenant (\w+) holds ([\d.]+) of its quota of (\d+)")
QUOTA_LOW = re.compile(r"the quota of tenant (\w+) is (\d+); it cannot start until")
TOGETHER = re.compile(r"all jobs together hold ([\d.]+), and may hold (\d+)")
UNFIT = re.compile(r"not on (n\d+): it lacks a mount")
POLICY = ("and the policy gives it none", "and the policy gives it no more")


@dataclass(kw_only=True)
class Situation:
    """What is true of a cluster in which the plan is taken."""

    view: ClusterView
    given: Mapping[JobId, Allocation]
    unfit: Mapping[JobId, frozenset[str]]
    away: Mapping[str, Node] = field(default_factory=dict)

    def type_of(self, allocation: Allocation) -> str:
        nodes = {node.id: node for node in self.view.nodes}
        return nodes[allocation.slots[0][0]].gpu_type

    def holders(self, gpu_type: str) -> list[JobView]:
        return [
            job
            for job in self.view.jobs
            if (held := self.given.get(job.id)) and self.type_of(held) == gpu_type
        ]

    def usable(self, job: JobId, gpu_type: str) -> list[Node]:
        barred = self.unfit.get(job, frozenset())
        return [
            node
            for node in self.view.nodes
            if node.gpu_type == gpu_type and node.id not in barred
        ]

    def free(self, job: JobId, gpu_type: str) -> int:
        free = FreeGpus(self.view.nodes)
        for allocation in self.given.values():
            free.take_allocation(allocation)
        return sum(free.whole[node.id] for node in self.usable(job, gpu_type))

    def held_by(self, tenant: str) -> float:
        return sum(
            self.given[job.id].num_gpus
            for job in self.view.jobs
            if job.id in self.given and tenant in (job.spec.tenant, EVERYBODY)
        )

    def with_quota(self, quotas: Mapping[str, int | None]) -> "Situation":
        tenants = dict(self.view.tenants)
        for name, quota in quotas.items():
            tenants[name] = replace(tenants[name], quota_gpus=quota)
        return replace(self, view=replace(self.view, tenants=tenants))

    def without_quotas(self, but: str = "") -> "Situation":
        return self.with_quota(
            {name: None for name in self.view.tenants if name != but}
        )

    def with_gpus(self, gpu_type: str, count: int) -> "Situation":
        node = Node(id=f"more-{gpu_type}", num_gpus=count, gpu_type=gpu_type)
        return replace(self, view=replace(self.view, nodes=(*self.view.nodes, node)))

    def with_nobody_else(self, job: JobId) -> "Situation":
        kept = {name: held for name, held in self.given.items() if name == job}
        return replace(self, given=kept)

    def could_have(self, job: JobId, count: int) -> bool:
        """Try whether `job` could hold `count` whole GPUs beside the others."""
        mine = self.given.get(job)
        others = {name: held for name, held in self.given.items() if name != job}
        free = FreeGpus(self.view.nodes)
        for allocation in others.values():
            free.take_allocation(allocation)
        jobs = tuple(replace(each, grant=NO_GRANT) for each in self.view.jobs)
        view = replace(self.view, jobs=jobs)
        types = (
            [self.type_of(mine)] if mine else sorted({n.gpu_type for n in view.nodes})
        )
        for gpu_type in types:
            slots: list[tuple[str, int]] = []
            left = count
            for node in self.usable(job, gpu_type):
                taken = min(free.whole[node.id], left)
                if taken > 0:
                    slots.append((node.id, taken))
                    left -= taken
            if left:
                continue
            wanted = {**others, job: Allocation(slots=tuple(slots))}
            try:
                check_plan(view, Plan(allocations=wanted))
            except PlanError:
                continue
            return True
        return False


class FalseReasonError(AssertionError):
    """A sentence that is not true."""


def tried(text: str, job: JobView, now: Situation) -> list[str]:
    """Return the kinds of what `text` claims of `job`. Raises FalseReasonError."""

    def must(fact: object, what: str) -> None:
        if not fact:
            raise FalseReasonError(f"{job.id}: {what} is not so: {text!r}")

    waits = WAITS.fullmatch(text)
    shrinks = SHRINKS.fullmatch(text)
    found = waits or shrinks
    must(found, "the form")
    assert found is not None
    rest = found["rest"]
    held = job.allocation.num_replicas
    if waits is not None:
        need = job.spec.replicas.min
        must(int(waits["least"]) == need, "the minimum")
        must(int(waits["held"] or 0) == held, "what it gives up")
    else:
        need = held
        must(int(found["held"]) == held, "what it had")
        must(int(found["count"]) == now.given[job.id].num_replicas, "what it gets")
    claims = _claims(rest, job, now, must)
    blocked = [claim for claim in claims if claim.bars(job.id, need, now)]
    by_policy = any(words in rest for words in POLICY)
    must(now.could_have(job.id, need) == by_policy, "what bars it now")
    must(by_policy != bool(blocked), "what is named")
    cleared = now
    for claim in blocked:
        cleared = claim.cleared(job.id, need, cleared, now)
    must(cleared.could_have(job.id, need), "what would be enough")
    for claim in blocked:
        alone = claim.alone(job.id, need, now)
        must(not alone.could_have(job.id, need), f"that {claim.kind} bars it")
    return [claim.kind for claim in blocked] or ["policy"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that a sentence names. name: a GPU type, or a tenant."""

    kind: str
    name: str

    def bars(self, job: JobId, need: int, now: Situation) -> bool:
        if self.kind == "quota":
            quota = now.view.tenants[self.name].quota_gpus
            mine = now.given[job].num_gpus if job in now.given else 0
            assert quota is not None
            return now.held_by(self.name) - mine + need > quota + 1e-9
        if self.kind == "size":
            return True
        mine = now.given[job].num_replicas if job in now.given else 0
        return now.free(job, self.name) + mine < need

    def cleared(
        self, job: JobId, need: int, to_clear: Situation, now: Situation
    ) -> Situation:
        """Return `to_clear` with exactly so much changed as the job needs."""
        mine = now.given[job].num_replicas if job in now.given else 0
        if self.kind == "quota":
            held = now.held_by(self.name) - (now.given[job].num_gpus if mine else 0)
            return to_clear.with_quota({self.name: int(np.ceil(held)) + need})
        total = sum(node.num_gpus for node in now.usable(job, self.name))
        free = now.free(job, self.name)
        if self.kind == "size":
            # What is held of it is another claim's.
            extra = need - total
        else:
            extra = min(need, total) - free - mine
        grown = next(
            (n.num_gpus for n in to_clear.view.nodes if n.id == f"more-{self.name}"), 0
        )
        nodes = [n for n in to_clear.view.nodes if n.id != f"more-{self.name}"]
        bare = replace(to_clear, view=replace(to_clear.view, nodes=tuple(nodes)))
        return bare.with_gpus(self.name, grown + extra)

    def alone(self, job: JobId, need: int, now: Situation) -> Situation:
        """Return `now` with all but this relaxed."""
        if self.kind == "quota":
            relaxed = now.without_quotas(but=self.name)
            for gpu_type in TYPES:
                relaxed = relaxed.with_gpus(gpu_type, MANY)
            return relaxed
        relaxed = now.without_quotas()
        if self.kind == "size":
            return relaxed.with_nobody_else(job)
        total = sum(node.num_gpus for node in now.usable(job, self.name))
        return relaxed.with_gpus(self.name, need - total) if total < need else relaxed


def _claims(rest: str, job: JobView, now: Situation, must: object) -> list[Claim]:
    assert callable(must)
    claims: list[Claim] = []
    types = sorted({node.gpu_type for node in now.view.nodes})
    free = FREE.search(rest)
    allowed = [name for name in types if job.spec.replicas.allows_type(name)]
    if free is not None:
        gpu_type = free[3] or types[0]
        must(free[3] or len(types) == 1, "the type")
        must(gpu_type in allowed, "the type")
        total = sum(node.num_gpus for node in now.usable(job.id, gpu_type))
        must(int(free[2]) == total, "the number of GPUs")
        must(int(free[1]) == now.free(job.id, gpu_type), "the number of free GPUs")
        _check_holders(rest, job, now, gpu_type, must)
        claims.append(Claim(kind="held", name=gpu_type))
    if (size := SIZE.search(rest)) is not None:
        totals = {
            name: sum(node.num_gpus for node in now.usable(job.id, name))
            for name in allowed
        }
        largest = max(totals, key=lambda name: totals[name], default="")
        must(int(size[1] or 0) == totals.get(largest, 0), "the size")
        must(size[2] is None or not now.view.nodes, "that there is no node")
        must(totals.get(largest, 0) < job.spec.replicas.min, "that it is too small")
        named = free[3] or types[0] if free is not None else largest
        named = named or next(iter(job.spec.replicas.gpu_types), TYPES[0])
        claims.append(Claim(kind="size", name=named))
        if away := AWAY.findall(rest):
            back = [now.away[name] for name, _ in away]
            must(all(int(n) == now.away[name].num_gpus for name, n in away), "a node")
            kinds = {node.gpu_type for node in back}
            must(len(kinds) == 1, "one type")
            more = sum(node.num_gpus for node in back)
            at_home = sum(n.num_gpus for n in now.usable(job.id, kinds.pop()))
            must(at_home + more >= job.spec.replicas.min, "that they would do")
    for name, held, quota in QUOTA.findall(rest):
        must(now.view.tenants[name].quota_gpus == int(quota), "the quota")
        must(abs(now.held_by(name) - float(held)) < 1e-3, "what the tenant holds")
        claims.append(Claim(kind="quota", name=name))
    for name, quota in QUOTA_LOW.findall(rest):
        must(now.view.tenants[name].quota_gpus == int(quota), "the quota")
        claims.append(Claim(kind="quota", name=name))
    for held, quota in TOGETHER.findall(rest):
        must(now.view.tenants[EVERYBODY].quota_gpus == int(quota), "the quota of all")
        must(abs(now.held_by(EVERYBODY) - float(held)) < 1e-3, "what all hold")
        claims.append(Claim(kind="quota", name=EVERYBODY))
    for name in UNFIT.findall(rest):
        must(name in now.unfit.get(job.id, ()), "that it cannot use the node")
    return claims


def _check_holders(
    rest: str, job: JobView, now: Situation, gpu_type: str, must: object
) -> None:
    assert callable(must)
    holders = now.holders(gpu_type)
    for name, gpus in HAS.findall(rest):
        must(name in {each.id for each in holders}, f"that {name} holds any")
        must(abs(now.given[name].num_gpus - float(gpus)) < 1e-3, f"what {name} has")
    if named := HAS.findall(rest):
        must(len(named) == len(holders), "who holds them")
    if (hold := HOLD.search(rest)) is not None:
        must(int(hold[1]) == len(holders), "how many hold them")
    if (earlier := EARLIER.search(rest)) is not None:
        came = sum(each.submitted_at < job.submitted_at for each in holders)
        must(int(earlier[1]) == came, "how many came earlier")
    if (higher := HIGHER.search(rest)) is not None:
        must(
            int(higher[1])
            == sum(_goes_before(each, job, now.view) for each in holders),
            "how many have a higher priority",
        )


def _goes_before(other: JobView, job: JobView, view: ClusterView) -> bool:
    theirs = view.tenant(other.spec.tenant).priority
    mine = view.tenant(job.spec.tenant).priority
    same = other.spec.tenant == job.spec.tenant
    return theirs > mine or (same and other.spec.priority > job.spec.priority)


# -- clusters --------------------------------------------------------------------------


def sentences(policy: Policy, seed: int) -> Iterator[tuple[str, JobView, Situation]]:
    """Yield what a random cluster's scheduler says of its jobs, round after round."""
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(SchedulerConfig(round_s=ROUND_S, settle_s=0.0))
    away: dict[str, Node] = {}
    at = 0.0
    _set_up(scheduler, rng)
    for number in range(ROUNDS):
        at = (number + 1) * ROUND_S
        if number:
            _disturb(scheduler, rng, at - 20.0, away)
        _submit(scheduler, rng, number, at - 10.0)
        commands = scheduler.handle(TimerFired(at=at))
        solve = next((each for each in commands if isinstance(each, Solve)), None)
        if solve is None:
            continue
        plan = replace(decide(policy, solve.view), reasons={})
        for job in scheduler.state.active:
            if rng.random() < 0.1 and scheduler.state.nodes:
                node = sorted(scheduler.state.nodes)[0]
                job.unfit_nodes = {node: "it lacks a mount"}
        orders = scheduler.handle(PlanReady(at=at, round=solve.round, plan=plan))
        assert not scheduler.state.plan_error, scheduler.state.plan_error
        yield from _said(scheduler, solve.view, plan, away)
        _answer(scheduler, orders, at + 1.0)


def _said(
    scheduler: Scheduler, view: ClusterView, plan: Plan, away: Mapping[str, Node]
) -> Iterator[tuple[str, JobView, Situation]]:
    records = scheduler.state.jobs
    now = Situation(
        view=view,
        given={
            job.id: records[job.id].target.allocation
            for job in view.jobs
            if records[job.id].target
        },
        unfit={job.id: frozenset(records[job.id].unfit_nodes) for job in view.jobs},
        away=away,
    )
    for job in view.jobs:
        text = records[job.id].explanation
        is_explained = job.id not in now.given or text.startswith("shrinks")
        if is_explained and not _went_aside(records[job.id], plan):
            yield text, job, now


def _went_aside(job: JobRecord, plan: Plan) -> bool:
    """Return whether a node that the job cannot use was all that the plan gave it, so
    that what is said is about that node.
    """
    return bool(job.unfit_nodes) and bool(plan.allocations.get(job.id))


def _set_up(scheduler: Scheduler, rng: Generator) -> None:
    types = TYPES[: int(rng.integers(1, 4))]
    for number in range(int(rng.integers(0 if rng.random() < 0.1 else 1, 6))):
        node = Node(
            id=f"n{number}",
            num_gpus=int(rng.choice([1, 2, 4, 8])),
            gpu_type=str(rng.choice(types)),
        )
        scheduler.handle(NodeJoined(at=0.0, node=node))
    for name in (*TENANTS[1:], EVERYBODY):
        _configure(scheduler, rng, name, 0.0)


def _configure(scheduler: Scheduler, rng: Generator, name: str, at: float) -> None:
    quota = int(rng.integers(0, 9)) if rng.random() < 0.6 else None
    if name == EVERYBODY:
        quota = int(rng.integers(2, 20)) if rng.random() < 0.3 else None
    priority = 0 if name == EVERYBODY else int(rng.integers(0, 3))
    tenant = Tenant(id=name, quota_gpus=quota, priority=priority)
    scheduler.handle(TenantConfigured(at=at, tenant=tenant))


def _disturb(
    scheduler: Scheduler, rng: Generator, at: float, away: dict[str, Node]
) -> None:
    nodes = scheduler.state.nodes
    if nodes and rng.random() < 0.3:
        gone = sorted(nodes)[int(rng.integers(len(nodes)))]
        away[gone] = nodes[gone]
        why = "was set aside: for a test" if rng.random() < 0.5 else "was lost"
        orders = scheduler.handle(NodeLost(at=at, node=gone, why=why))
        _answer(scheduler, orders, at + 1.0)
    elif away and rng.random() < 0.5:
        back = sorted(away)[0]
        scheduler.handle(NodeJoined(at=at, node=away.pop(back)))
    if rng.random() < 0.4:
        _configure(scheduler, rng, str(rng.choice(TENANTS[1:])), at)


def _submit(scheduler: Scheduler, rng: Generator, round_: int, at: float) -> None:
    for index in range(int(rng.integers(1, 7))):
        spec = _spec(rng, at)
        came = at + index * float(rng.integers(0, 2))
        name = f"job-{round_}{index}"
        scheduler.handle(JobSubmitted(at=came, job=name, spec=spec))


def _spec(rng: Generator, at: float) -> JobSpec:
    least = int(rng.choice([1, 1, 2, 4, 8]))
    most = least * int(rng.choice([1, 1, 2, 4]))
    allowed = tuple(name for name in TYPES if rng.random() < 0.5)
    return JobSpec(
        name="job",
        batch=BatchLimits(initial=64, max_total=512),
        replicas=ReplicaLimits(
            min=least,
            max=most,
            requested=int(rng.integers(least, most + 1)),
            gpu_types=allowed if rng.random() < 0.3 else (),
        ),
        contract=RescaleContract(rng.choice(["fixed", "adaptive", "frozen"])),
        tenant=str(rng.choice(TENANTS)),
        priority=int(rng.integers(0, 3)),
        deadline_at=at + 3_600.0 if rng.random() < 0.2 else None,
    )


def _answer(scheduler: Scheduler, orders: list[object], at: float) -> None:
    """Carry out orders, and those that follow from the answers."""
    todo = list(orders)
    while todo:
        order = todo.pop(0)
        match order:
            case Start() | Rescale():
                event = ReplicasStarted(
                    at=at, job=order.job, generation=order.generation
                )
                todo += scheduler.handle(event)
            case Stop():
                gone = ReplicasExited(
                    at=at,
                    job=order.job,
                    generation=order.generation,
                    outcome=Outcome.STOPPED,
                )
                todo += scheduler.handle(gone)
            case _:
                continue


def try_clusters(policy_name: str, seeds: range, create: object) -> Counter[str]:
    """Return how many sentences of each kind were tried. Raises FalseReasonError."""
    assert callable(create)
    kinds: Counter[str] = Counter()
    for seed in seeds:
        for text, job, now in sentences(create(policy_name), seed):
            kinds.update(tried(text, job, now))
            kinds["sentences"] += 1
    return kinds
