"""Draws a scenario from a seed: a small cluster, its jobs, and the faults that happen
to them. Values only.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import PricesConfigured, TenantConfigured
from coadapt.model import (
    BatchLimits,
    JobSpec,
    Launch,
    Node,
    ReplicaLimits,
    RescaleContract,
    ThroughputParams,
)
from coadapt.sim.library.profiles import NoiseCurve, ParametricApplication
from coadapt.sim.market.terms import MarketTerms
from coadapt.sim.workload import TraceJob
from coadapt.sim.world_config import WorldConfig

CALM_AT_S = 3600.0  # from here on nothing breaks any more, so that every job can end
DEADLINE_S = (
    CALM_AT_S + 8 * 3600.0
)  # by then every job must have ended; the longest lone run takes 1.5 h


class FaultKind(StrEnum):
    CRASH = "crash"  # replicas die of something that is not the script's fault
    SCRIPT_FAILS = "script_fails"
    POISON = "poison"  # from here on the script fails soon after every start
    VANISH = "vanish"  # from here on the replicas vanish before their first step
    # after a report the replicas hang; only for jobs with a hang_timeout
    HANG = "hang"
    # once it trains, the script fails on more replicas than it trains with
    GROWTH_BREAKS = "growth_breaks"
    JOINERS_FAIL = "joiners_fail"  # from here on replicas that join in place fail
    NODE_LOST = "node_lost"  # for `lasts_s`
    NODE_REPLACED = (
        "node_replaced"  # by a node of another size, and the loss is not reported
    )
    NODE_REPEATED = "node_repeated"  # a node that is there says once more that it is
    CANCEL = "cancel"
    SCHEDULER_DIES = "scheduler_dies"  # for `lasts_s`
    STRAY_ALARM = "stray_alarm"
    SUBMITTED_TWICE = "submitted_twice"
    # of an offer: its owner takes one away, after a notice of `lasts_s`, 0: without one
    NODE_TAKEN = "node_taken"
    ORDERS_REFUSED = "orders_refused"  # no node of an offer comes, for `lasts_s`


# The contracts and fault kinds that scenarios draw from. A further value here would
# change the scenario of every seed, and reports quote seeds.
DRAWN_CONTRACTS = (
    RescaleContract.FIXED,
    RescaleContract.ADAPTIVE,
    RescaleContract.SELF,
    RescaleContract.FROZEN,
)
DRAWN_APART = (
    FaultKind.HANG,
    FaultKind.GROWTH_BREAKS,
    FaultKind.NODE_TAKEN,
    FaultKind.ORDERS_REFUSED,
)
DRAWN_KINDS = tuple(kind for kind in FaultKind if kind not in DRAWN_APART)
# The share of scenarios with jobs that hang. It is drawn separately, so that older
# seeds keep their scenarios.
HANGING_SHARE = 0.5
HANG_TIMEOUTS_S = (300.0, 900.0)
ABOUT_NODES = (FaultKind.NODE_LOST, FaultKind.NODE_REPLACED, FaultKind.NODE_REPEATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. target: a job, a node or an offer, depending on the kind."""

    at: float
    kind: FaultKind
    target: str = ""
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Chances, each in [0, 1]. lose, double, delay: that a message is lost, sent twice
    or late. solver: that the solver's answer is bad. power_cut: that the scheduler's
    machine loses power at an order. delay_max_s: the largest delay of a message.
    """

    lose: float
    double: float
    delay: float
    delay_max_s: float
    solver: float
    power_cut: float


class Family(StrEnum):
    """The subject of a scenario, besides lost messages and failing jobs and nodes."""

    FIRST = "first"
    MIXED = "mixed"  # GPU types, racks, shared GPUs: mixed.py
    BOUGHT = "bought"  # nodes for sale, prices, limits of costs: bought.py


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """Nodes for sale, and the operator's settings of prices and budgets, in order.

    sizer: its name; None: one that chooses at random.
    """

    market: MarketTerms
    sizer: str | None
    settings: tuple[PricesConfigured | TenantConfigured, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that a fault simulation is made of. Equal seeds give equal scenarios."""

    seed: int
    family: Family = Family.FIRST
    nodes: tuple[Node, ...]
    jobs: tuple[TraceJob, ...]
    application: ParametricApplication
    policy: str | None  # None: one that plans at random
    scheduler: SchedulerConfig
    world: WorldConfig
    rates: Rates
    faults: tuple[Fault, ...]
    money: Money | None = None


# An invented model: a step takes 0.3 s to 1.3 s, so a job takes 5 to 60 GPU-minutes.
APPLICATION = ParametricApplication(
    name="toy",
    limits=BatchLimits(initial=32, max_total=256, min_atomic=4, max_atomic=64),
    num_epochs=4,
    samples_per_epoch=40_000,
    params=ThroughputParams(
        alpha_c=0.1,
        beta_c=0.01,
        alpha_r=0.05,
        beta_r=0.005,
        alpha_n=0.2,
        beta_n=0.01,
        alpha_k=0.2,
        beta_k=0.01,
        gamma=1.5,
    ),
    noise=NoiseCurve(first=50.0, growth=10.0),
)


def draw_scenario(seed: int, *, hangs: bool = True) -> Scenario:
    """Return the scenario of `seed`. Some seeds have few faults, so that rare faults
    also happen to an otherwise undisturbed cluster.

    hangs: in half of the scenarios, replicas also hang.
    """
    rng = random.Random(seed)
    nodes = _nodes(rng)
    jobs = tuple(draw_job(rng, index, nodes) for index in range(rng.randint(2, 6)))
    severity = rng.choice((0.2, 1.0, 1.0, 2.0))
    in_place = rng.random() < 0.7
    policy = rng.choice((None, None, None, None, "fifo", "tiresias", "srtf", "optimus"))
    scheduler, world, rates = draw_conditions(
        rng, severity, in_place=in_place, interference=(0.0, 0.0, 0.3), solver=0.12
    )
    scenario = Scenario(
        seed=seed,
        nodes=nodes,
        jobs=jobs,
        application=APPLICATION,
        policy=policy,
        scheduler=scheduler,
        world=world,
        rates=rates,
        faults=draw_faults(rng, nodes, jobs, severity),
    )
    return with_hangs(scenario) if hangs else scenario


def with_broken_growth(scenario: Scenario) -> Scenario:
    """Return the scenario with one kind of fault only: each job fails when it gets more
    replicas than it trains with.

    Its jobs may not fail even once.
    """
    jobs = tuple(
        replace(job, spec=replace(job.spec, max_failures=0)) for job in scenario.jobs
    )
    faults = tuple(
        Fault(at=job.at, kind=FaultKind.GROWTH_BREAKS, target=job.id) for job in jobs
    )
    return replace(scenario, jobs=jobs, faults=faults)


def with_hangs(scenario: Scenario) -> Scenario:
    """Return the scenario unchanged, or with a hang_timeout for its first job or two,
    which then hang.
    """
    rng = random.Random(f"hangs of {scenario.seed}")
    if rng.random() >= HANGING_SHARE:
        return scenario
    jobs = list(scenario.jobs)
    faults = list(scenario.faults)
    for index, job in enumerate(jobs[: rng.randint(1, 2)]):
        launch = Launch(run="train", hang_timeout_s=rng.choice(HANG_TIMEOUTS_S))
        jobs[index] = replace(job, spec=replace(job.spec, launch=launch))
        faults.append(
            Fault(
                at=rng.uniform(job.at, CALM_AT_S - 1.0),
                kind=FaultKind.HANG,
                target=job.id,
            )
        )
    return replace(
        scenario,
        jobs=tuple(jobs),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def draw_conditions(
    rng: random.Random,
    severity: float,
    *,
    in_place: bool,
    interference: Sequence[float],
    solver: float,
) -> tuple[SchedulerConfig, WorldConfig, Rates]:
    """Return the scheduler's settings, and the chance of each kind of fault.

    interference: what to choose from. solver: how often it fails at severity 1.
    """
    scheduler = SchedulerConfig(
        reaction_s=rng.choice((None, 1.0, 20.0)),
        retry_s=rng.choice((60.0, 120.0)),
        rescale_in_place=in_place,
    )
    world = WorldConfig(
        rescale_s=rng.choice((0.0, 10.0, 30.0)),
        prepare_s=rng.choice((0.0, 20.0, 100.0)),
        checkpoint_s=rng.choice((0.0, 200.0)),
        interference=rng.choice(interference),
        rescales_in_place=in_place,
    )
    rates = Rates(
        lose=0.06 * severity,
        double=0.06 * severity,
        delay=0.2 * severity,
        delay_max_s=rng.choice((2.0, 90.0, 300.0)),
        solver=solver * severity,
        power_cut=rng.choice((0.0, 0.02)) * severity,
    )
    return scheduler, world, rates


def _nodes(rng: random.Random) -> tuple[Node, ...]:
    types = rng.choice((("a", "a", "a"), ("a", "a", "b")))
    return tuple(
        Node(
            id=f"n{index}",
            num_gpus=rng.randint(1, 4),
            gpu_type=types[index],
            rack=rng.choice(("", "r1")),
        )
        for index in range(rng.randint(1, 3))
    )


def largest_pool(nodes: Iterable[Node]) -> int:
    """Return the GPUs of the type that the nodes have most of."""
    pools: dict[str, int] = {}
    for node in nodes:
        pools[node.gpu_type] = pools.get(node.gpu_type, 0) + node.num_gpus
    return max(pools.values(), default=0)


def draw_job(rng: random.Random, index: int, nodes: tuple[Node, ...]) -> TraceJob:
    """Return a job that fits `nodes`, or is a GPU too large for them."""
    largest = largest_pool(nodes)
    least = rng.choice(
        (
            1,
            1,
            1,
            1,
            rng.randint(1, largest),
            rng.randint(1, largest),
            largest,
            largest + 1,
        )
    )
    most = rng.randint(least, max(largest, least))
    limits = APPLICATION.limits
    name = f"j{index}"
    spec = JobSpec(
        name=name,
        application=APPLICATION.name,
        batch=BatchLimits(
            initial=limits.initial,
            requested=rng.choice((32, 64, 128)),
            max_total=limits.max_total,
            min_atomic=limits.min_atomic,
            max_atomic=limits.max_atomic,
        ),
        replicas=ReplicaLimits(min=least, max=most, requested=rng.randint(least, most)),
        contract=rng.choice(DRAWN_CONTRACTS),
        tenant=rng.choice(("default", "other")),
        max_failures=rng.randint(0, 3),
    )
    return TraceJob(
        id=name, at=float(rng.randint(0, 1200)), application=APPLICATION.name, spec=spec
    )


def draw_faults(
    rng: random.Random,
    nodes: tuple[Node, ...],
    jobs: tuple[TraceJob, ...],
    severity: float,
) -> tuple[Fault, ...]:
    """Return the faults of `nodes` and `jobs`, in order of time. All happen before
    CALM_AT_S.
    """
    faults = []
    for _ in range(round(rng.randint(3, 12) * severity)):
        kind = rng.choice(DRAWN_KINDS)
        about_node = kind in ABOUT_NODES
        target = rng.choice(nodes).id if about_node else rng.choice(jobs).id
        at = rng.uniform(0.0, CALM_AT_S - 1.0)
        if rng.random() < 0.3:
            at = 60.0 * (at // 60.0)  # at the very instant of a round
        lasts_s = min(rng.choice((0.0, 5.0, 400.0)), CALM_AT_S - 1.0 - at)
        faults.append(Fault(at=at, kind=kind, target=target, lasts_s=lasts_s))
    return tuple(sorted(faults, key=lambda fault: fault.at))
