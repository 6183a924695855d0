"""A third family of scenarios: nodes are bought, refused, late and taken away; GPUs
have prices, tenants have budgets, and jobs have a max_cost.

The family draws its own random numbers, so a seed of another family still gives the
same scenario.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from coadapt.core.commands import BuyNodes, GiveBack, Size
from coadapt.core.events import (
    Event,
    PricesConfigured,
    SizingFailed,
    SizingReady,
    TenantConfigured,
)
from coadapt.model import Node, Tenant
from coadapt.model.offer import (
    Market,
    Offer,
    OfferId,
    Sizing,
    SizingError,
    SizingView,
    check_sizing,
)
from coadapt.model.prices import Prices
from coadapt.model.tenant import EVERYBODY
from coadapt.policies.sizers import create_sizer
from coadapt.policies.sizers.base import Sizer
from coadapt.runtime.ports import Post
from coadapt.runtime.solver import describe
from coadapt.sim.faults.scenario import (
    ABOUT_NODES,
    APPLICATION,
    CALM_AT_S,
    Family,
    Fault,
    FaultKind,
    Money,
    Scenario,
    draw_conditions,
    draw_faults,
    draw_job,
    largest_pool,
)
from coadapt.sim.faults.wire import FaultyNetwork
from coadapt.sim.market.provider import Provider
from coadapt.sim.market.terms import MarketTerms, OfferTerms, nodes_of
from coadapt.sim.workload import TraceJob

KEEP_CHANCE = 0.4
# A policy that gives each job the GPUs that it requests needs a sizer that buys these.
RIGID = ("fifo", "srtf")
RIGID_SIZERS = (None, "demand(idle_s=120)")
SIZERS = (*RIGID_SIZERS, "castor(value_of_time=2)")
LATE_MAX_S = 200.0
MAX_COSTS = (0.05, 2.0)  # a job of this family costs 0.1 to 3
BUDGETS = (0.0, 3.0)


def draw_bought(seed: int) -> Scenario:
    """Return the scenario of `seed` in this family: up to one node of its own, two or
    three offers, limits of costs, and nodes that their owner takes away.
    """
    rng = random.Random(f"bought {seed}")
    own = tuple(Node(id=f"n{index}", num_gpus=2) for index in range(rng.randint(0, 1)))
    offers = tuple(_offer(rng, index) for index in range(rng.randint(2, 3)))
    all_nodes = own + nodes_of([each.offer for each in offers])
    jobs = tuple(
        _with_max_cost(draw_job(rng, index, all_nodes), rng)
        for index in range(rng.randint(2, 6))
    )
    severity = rng.choice((0.2, 1.0, 1.0, 2.0))
    in_place = rng.random() < 0.7
    policy = rng.choice((None, None, None, "fifo", "srtf", "castor"))
    scheduler, world, rates = draw_conditions(
        rng, severity, in_place=in_place, interference=(0.0, 0.0, 0.3), solver=0.12
    )
    # Node faults affect only the scenario's own nodes, of which there may be none.
    faults = draw_faults(rng, own or all_nodes[:1], jobs, severity)
    if not own:
        faults = tuple(fault for fault in faults if fault.kind not in ABOUT_NODES)
    faults += tuple(_market_fault(rng, offers) for _ in range(rng.randint(2, 8)))
    return Scenario(
        seed=seed,
        family=Family.BOUGHT,
        nodes=own,
        jobs=jobs,
        application=APPLICATION,
        policy=policy,
        scheduler=scheduler,
        world=world,
        rates=rates,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        money=Money(
            market=MarketTerms(offers=offers, seed=seed),
            sizer=rng.choice(RIGID_SIZERS if policy in RIGID else SIZERS),
            settings=_settings(rng),
        ),
    )


def _offer(rng: random.Random, index: int) -> OfferTerms:
    most = rng.randint(1, 3)
    offer = Offer(
        id=f"o{index}",
        num_gpus=rng.randint(1, 4),
        price_per_h=rng.choice((0.5, 1.0, 4.0)),
        gpu_type=rng.choice(("gpu", "gpu", "big")),
        market=rng.choice((Market.SPOT, Market.ON_DEMAND)),
        provision_s=rng.choice((0.0, 60.0, 900.0)),
        billing_s=rng.choice((0.0, 0.0, 1800.0)),
        least=rng.choice((0, 0, 1)),
        most=most,
    )
    prices: tuple[tuple[float, float], ...] = ()
    available: tuple[tuple[float, int], ...] = ()
    if rng.random() < 0.5:
        prices = tuple((at, rng.uniform(0.2, 4.0)) for at in _instants(rng, 3))
    if rng.random() < 0.3:
        # At the end all of them are there again.
        counts = [(at, rng.randint(0, most)) for at in _instants(rng, 3)]
        available = (*counts, (CALM_AT_S - 1.0, most))
    return OfferTerms(offer=offer, prices=prices, available=available)


def _instants(rng: random.Random, most: int) -> list[float]:
    count = rng.randint(1, most)
    return sorted(rng.uniform(1.0, CALM_AT_S - 2.0) for _ in range(count))


def _with_max_cost(job: TraceJob, rng: random.Random) -> TraceJob:
    if rng.random() < 0.6:
        return job
    return replace(job, spec=replace(job.spec, max_cost=rng.uniform(*MAX_COSTS)))


def _market_fault(rng: random.Random, offers: tuple[OfferTerms, ...]) -> Fault:
    kind = rng.choice(
        (FaultKind.NODE_TAKEN, FaultKind.NODE_TAKEN, FaultKind.ORDERS_REFUSED)
    )
    at = rng.uniform(0.0, CALM_AT_S - 1.0)
    lasts_s = min(rng.choice((0.0, 30.0, 600.0)), CALM_AT_S - 1.0 - at)
    target = rng.choice(offers).offer.id
    return Fault(at=at, kind=kind, target=target, lasts_s=lasts_s)


def _settings(rng: random.Random) -> tuple[PricesConfigured | TenantConfigured, ...]:
    """Return the operator's settings of prices and budgets. At the end all budgets are
    lifted.
    """
    settings: list[PricesConfigured | TenantConfigured] = []
    for at in (0.0, *_instants(rng, 2)):
        prices = Prices(
            currency="EUR",
            default=rng.uniform(0.5, 3.0),
            gpus={"big": rng.uniform(1.0, 5.0)},
        )
        named = None if rng.random() < 0.15 else prices
        settings.append(PricesConfigured(at=at, prices=named))
    tenants = ("default", "other", EVERYBODY)
    for name in tenants:
        for at in (0.0, *_instants(rng, 2)):
            budget = rng.choice((None, rng.uniform(*BUDGETS)))
            tenant = Tenant(id=name, budget=budget)
            settings.append(TenantConfigured(at=at, tenant=tenant))
    settings += [
        TenantConfigured(at=CALM_AT_S, tenant=Tenant(id=name)) for name in tenants
    ]
    return tuple(sorted(settings, key=lambda event: event.at))


class ChaosSizer:
    """Chooses valid numbers of nodes at random. From `calm_at` on it chooses each
    offer's largest number while jobs are active, and the least number afterwards.
    """

    def __init__(self, seed: int, calm_at: float) -> None:
        self._random = random.Random(f"sizer {seed}")
        self._calm_at = calm_at

    def size(self, view: SizingView) -> Sizing:
        nodes: dict[OfferId, int] = {}
        for pool in view.pools:
            offer = pool.offer
            count = self._random.randint(offer.least, offer.most)
            if self._random.random() < KEEP_CHANCE:
                count = min(max(pool.num_coming, offer.least), offer.most)
            if view.at >= self._calm_at:
                count = offer.most if view.cluster.jobs else offer.least
            nodes[offer.id] = count
        return Sizing(nodes=nodes, reason="by chance")


def new_sizer(scenario: Scenario) -> Sizer:
    """Return a new sizer, without any state, for a scenario with nodes for sale."""
    assert scenario.money is not None
    name = scenario.money.sizer
    return ChaosSizer(scenario.seed, CALM_AT_S) if name is None else create_sizer(name)


class FaultySizer:
    """Runs a sizer. Now and then it fails, answers late, twice or never, or makes the
    answer invalid. Raises SizingError if the sizer's own answer is invalid.

    The parameters are those of FaultySolver.
    """

    def __init__(
        self,
        sizer: Sizer,
        rng: random.Random,
        chance: float,
        hostile: Callable[[], bool],
        send: Callable[[Event, float], None],
    ) -> None:
        self._sizer = sizer
        self._random = rng
        self._chance = chance
        self._hostile = hostile
        self._send = send

    def __call__(self, command: Size, _post: object) -> None:
        view = command.view
        rng = self._random
        sizing = self._sizer.size(view)
        check_sizing(view, sizing)
        ready = SizingReady(at=view.at, number=command.number, sizing=sizing)
        if not self._hostile() or rng.random() >= self._chance:
            self._send(ready, 0.0)
            return
        answer: SizingReady | SizingFailed = ready
        what = rng.choice(("raise", "spoil", "stale", "good", "good"))
        if what == "raise":
            error = describe(RuntimeError("out of ideas"))
            answer = SizingFailed(at=view.at, number=command.number, error=error)
        elif what == "spoil":
            answer = replace(ready, sizing=_spoiled(sizing, view, rng))
        elif what == "stale":
            answer = replace(ready, number=command.number - rng.randint(1, 3))
        when = rng.choice(("now", "late", "late", "twice", "never"))
        if when != "never":
            self._send(answer, rng.uniform(1.0, LATE_MAX_S) if when == "late" else 0.0)
        if when == "twice":
            self._send(answer, rng.uniform(0.0, LATE_MAX_S))


def _spoiled(sizing: Sizing, view: SizingView, rng: random.Random) -> Sizing:
    """Return an answer that the offers do not allow."""
    offer = rng.choice(view.pools).offer
    spoils = (
        replace(sizing, nodes={**sizing.nodes, "nowhere": 1}),
        replace(sizing, nodes={**sizing.nodes, offer.id: offer.most + 1}),
        replace(sizing, reason=" "),
    )
    spoiled = rng.choice(spoils)
    try:
        check_sizing(view, spoiled)
    except SizingError:
        return spoiled
    raise AssertionError(f"{spoiled} is lawful")


class FaultyMarket:
    """The provider of nodes behind the faulty network. At times it refuses orders."""

    def __init__(
        self, provider: Provider, wire: FaultyNetwork, terms: MarketTerms
    ) -> None:
        self.provider = provider
        self._wire = wire
        self._offers = tuple(each.offer.id for each in terms.offers)
        self._refused_until: dict[OfferId, float] = {}

    def buy(self, command: BuyNodes, _post: Post) -> None:
        self._wire.order(command, lambda: self._buy(command))

    def give_back(self, command: GiveBack, _post: Post) -> None:
        self._wire.order(
            command, lambda: self.provider.give_back(command, self._wire.from_world)
        )

    def strike(self, fault: Fault) -> None:
        """Take a node away, or provide no further node for a while without any
        message.
        """
        if fault.kind is FaultKind.NODE_TAKEN:
            self.provider.take(fault.target, fault.lasts_s, self._wire.from_world)
        else:
            self._refused_until[fault.target] = fault.at + fault.lasts_s

    def _buy(self, command: BuyNodes) -> None:
        now = self._wire.clock.now()
        nodes = dict(command.nodes)
        for offer, count in command.nodes.items():
            if now < self._refused_until.get(offer, 0.0):
                nodes[offer] = min(count, self.provider.num_coming(offer))
        self.provider.buy(replace(command, nodes=nodes), self._wire.from_world)

    @property
    def at_rest(self) -> bool:
        """Whether no node is present or ordered beyond the least number of each
        offer.
        """
        return all(self.provider.is_least(offer) for offer in self._offers)


def largest_to_come(scenario: Scenario, nodes: tuple[Node, ...]) -> int:
    """Return the GPUs of the largest type, with the nodes that can be bought."""
    own = [node for node in nodes if not node.offer]
    if scenario.money is not None:
        own += nodes_of([each.offer for each in scenario.money.market.offers])
    return largest_pool(own)
