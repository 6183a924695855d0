"""Fault simulation: a seed -> a cluster in which everything that may break does, and
what must hold anyway.

python -m coadapt.sim.faults --seed N    tells the whole story of one seed
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    NodeJoined,
    NodeLost,
    Outcome,
    SchedulerRestarted,
    TimerFired,
    TrainingReported,
)
from coadapt.core.lifecycle import ENDED, JobState, Reason
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import JobId, RescaleContract
from coadapt.policies import Policy, create_policy
from coadapt.sim.agent import Oracle
from coadapt.sim.clock import VirtualClock
from coadapt.sim.faults.bought import (
    FaultyMarket,
    FaultySizer,
    draw_bought,
    largest_to_come,
    new_sizer,
)
from coadapt.sim.faults.chaos import ChaosPolicy, FaultySolver, spoiled
from coadapt.sim.faults.host import Host
from coadapt.sim.faults.invariants import InvariantError, check_world
from coadapt.sim.faults.mixed import MixedChaosPolicy, draw_mixed, spoiled_mixed
from coadapt.sim.faults.replay import check_replay
from coadapt.sim.faults.scenario import (
    CALM_AT_S,
    DEADLINE_S,
    Family,
    Fault,
    FaultKind,
    Money,
    Scenario,
    draw_scenario,
)
from coadapt.sim.faults.wire import FaultyNetwork, Tell
from coadapt.sim.market.provider import Provider
from coadapt.sim.market.terms import nodes_of
from coadapt.sim.world import World

MakeScheduler = Callable[[SchedulerConfig, SchedulerState | None], Scheduler]

DRAW: dict[Family, Callable[[int], Scenario]] = {
    Family.FIRST: draw_scenario,
    Family.MIXED: draw_mixed,
    Family.BOUGHT: draw_bought,
}

POISON_S = 10.0  # from the start of a poisoned job to the failure of its script
# from the start of replicas to their loss; shorter than a rescale, so that they make no
# progress
VANISH_S = 5.0


@dataclass(slots=True, kw_only=True)
class Seen:
    """Counts of rare situations that a run contained: starts beside another job on one
    GPU, GPU types and racks trained on, batches chosen by scripts; nodes bought, taken
    away and given back; jobs stopped for their cost, and jobs that waited for a budget.
    """

    num_pairs: int = 0
    gpu_types: set[str] = field(default_factory=set)
    racks: set[str] = field(default_factory=set)
    own_batches: set[int] = field(default_factory=set)
    num_bought: int = 0
    num_taken: int = 0
    num_given_back: int = 0
    num_max_cost: int = 0
    num_waited: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """The events of a run that broke no invariant."""

    num_events: int
    num_deaths: int
    ends: dict[JobId, JobState]
    seen: Seen


def run_seed(
    seed: int,
    make: MakeScheduler = Scheduler,
    tell: Tell | None = None,
    *,
    family: Family = Family.FIRST,
) -> FaultReport:
    """Run the scenario of `seed` to its end. Raises InvariantError, with the command
    that runs it again.

    make: returns the scheduler under test. tell: called as `tell(at, text)` for
    everything that happens. family: the scenario's family.
    """
    scenario = DRAW[family](seed)
    try:
        return FaultRun(scenario, make, tell).run()
    except AssertionError as error:
        option = "" if family is Family.FIRST else f"--{family} "
        rerun = f"python -m coadapt.sim.faults {option}--seed {seed}"
        raise InvariantError(
            f"seed {seed}: {error}\nits whole story: {rerun}"
        ) from error


class FaultRun:
    """A running scenario: the world, and the scheduler that dies and starts again."""

    def __init__(
        self, scenario: Scenario, make: MakeScheduler, tell: Tell | None
    ) -> None:
        rng = random.Random(scenario.seed)
        self.scenario = scenario
        self.clock = clock = VirtualClock()
        self.make = partial(make, scenario.scheduler)
        self.wire = wire = FaultyNetwork(clock, rng, scenario.rates, tell)
        applications = {scenario.application.name: scenario.application}
        nodes = scenario.nodes
        if scenario.money is not None:
            nodes += nodes_of([each.offer for each in scenario.money.market.offers])
        num_gpus = sum(node.num_gpus for node in nodes)
        self.world = World(
            clock,
            scenario.jobs,
            applications,
            Oracle(4, num_gpus, nodes[0].gpu_type),
            scenario.world,
        )
        spoil = spoiled_mixed if scenario.family is Family.MIXED else spoiled
        policy = _policy(scenario)
        chance = scenario.rates.solver
        solver = FaultySolver(
            policy, rng, chance, wire.hostile, wire.answer, spoil=spoil
        )
        self.market = _market(scenario.money, clock, self.world, wire)
        self.host = Host(
            self.make,
            self.world,
            wire,
            solver,
            rng,
            buyer=partial(self._buyer, self.market, rng) if self.market else None,
        )
        self._cursed: dict[JobId, tuple[float, Outcome]] = {}
        self._most_replicas: dict[JobId, int] = {}
        self._seen = Seen()
        wire.connect(self.world, self.host.deliver, self._started)

    def _buyer(
        self, market: FaultyMarket, rng: random.Random
    ) -> tuple[FaultySizer, FaultyMarket]:
        wire = self.wire
        chance = self.scenario.rates.solver
        sizer = new_sizer(self.scenario)
        return FaultySizer(sizer, rng, chance, wire.hostile, wire.answer), market

    def run(self) -> FaultReport:
        scenario = self.scenario
        clock = self.clock
        for node in scenario.nodes:
            self.world.restore_node(node, self.wire.from_world)
        if self.market is not None:
            self.market.provider.open(self.wire.from_world)
        if scenario.money is not None:
            for event in scenario.money.settings:
                clock.call_at(event.at, partial(self.host.deliver, event))
        for job in scenario.jobs:
            submitted = JobSubmitted(at=job.at, job=job.id, spec=job.spec)
            clock.call_at(job.at, partial(self.wire.from_user, submitted))
        for fault in scenario.faults:
            clock.call_at(fault.at, partial(self._strike, fault))
        clock.call_at(CALM_AT_S, self._cancel_impossible)
        clock.run(until=CALM_AT_S)
        while not self._at_rest() and clock.now() < DEADLINE_S:
            clock.run(until=clock.now() + scenario.scheduler.round_s)
        return self._verdict()

    def _at_rest(self) -> bool:
        """Return whether all jobs have ended, all bought nodes are given back, and the
        scheduler was notified of that.
        """
        if not self.host.all_ended(len(self.scenario.jobs)):
            return False
        return self.market is None or (self.market.at_rest and self.wire.all_nodes_told)

    # -- what goes wrong
    # --------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:  # noqa: C901, PLR0912  # one case per fault
        target = fault.target
        now = self.clock.now()
        self.wire.tell(f"FAULT {fault.kind} {target} {fault.lasts_s or ''}")
        match fault.kind:
            case FaultKind.CRASH:
                self._crash(target, Outcome.LOST)
            case FaultKind.SCRIPT_FAILS:
                self._crash(target, Outcome.FAILED)
            case FaultKind.POISON:
                self._cursed[target] = (POISON_S, Outcome.FAILED)
            case FaultKind.VANISH:
                if self.scenario.world.rescale_s > VANISH_S:
                    self._cursed[target] = (VANISH_S, Outcome.LOST)
            case FaultKind.HANG:
                self._hang(target)
            case FaultKind.GROWTH_BREAKS:
                self._limit_growth(target)
            case FaultKind.JOINERS_FAIL:
                self.world.joiners_fail.add(target)
            case FaultKind.NODE_LOST:
                self._lose_node(target, fault.lasts_s)
            case FaultKind.NODE_REPLACED:
                self._replace_node(target)
            case FaultKind.NODE_REPEATED:
                if target in self.world.ledger.nodes:
                    self.wire.from_world(
                        NodeJoined(at=now, node=self.world.ledger.nodes[target])
                    )
            case FaultKind.NODE_TAKEN | FaultKind.ORDERS_REFUSED:
                assert self.market is not None
                self.market.strike(fault)
            case FaultKind.CANCEL:
                self.wire.from_user(CancelRequested(at=now, job=target))
            case FaultKind.SCHEDULER_DIES:
                self.host.die(fault.lasts_s)
            case FaultKind.STRAY_ALARM:
                self.host.deliver(TimerFired(at=now))
            case FaultKind.SUBMITTED_TWICE:
                spec = next(job.spec for job in self.scenario.jobs if job.id == target)
                self.wire.from_user(JobSubmitted(at=now, job=target, spec=spec))

    def _hang(self, job_id: JobId) -> None:
        """Let the replicas hang as soon as the scheduler has a report of theirs. Before
        the first report it does not expect any.
        """
        job = self.host.state.jobs.get(job_id)
        generation = self.world.alive().get(job_id)
        if generation is None or job is None or job.running.reported_at is None:
            soon = self.clock.now() + self.scenario.world.report_s
            if soon < CALM_AT_S:
                self.clock.call_at(soon, partial(self._hang, job_id))
        elif job.running.generation == generation == job.generation:
            self.world.hang(job_id)
            self.wire.note_hang(job_id, generation)

    def _limit_growth(self, job_id: JobId) -> None:
        """Let the script fail on more replicas than it trains with, once the scheduler
        has recorded that it trains.
        """
        job = self.host.state.jobs.get(job_id)
        trained = None if job is None else job.growth.trained
        if trained is None or self.world.num_replicas(job_id) != trained.num_replicas:
            soon = self.clock.now() + self.scenario.world.report_s
            if soon < CALM_AT_S:
                self.clock.call_at(soon, partial(self._limit_growth, job_id))
        else:
            self._most_replicas[job_id] = trained.num_replicas

    def _lose_node(self, node_id: str, lasts_s: float) -> None:
        node = self.world.ledger.nodes.get(node_id)
        if node is not None:
            self.world.lose_node(node_id, self.wire.from_world)
            now = self.clock.now()
            again: Callable[[], None] = partial(
                self.wire.from_world, NodeLost(at=now, node=node_id)
            )
            restore: Callable[[], None] = partial(
                self.world.restore_node, node, self.wire.from_world
            )
            self.clock.call_at(now + lasts_s / 2.0, again)
            self.clock.call_at(now + lasts_s, restore)

    def _replace_node(self, node_id: str) -> None:
        node = self.world.ledger.nodes.get(node_id)
        if node is not None:
            self.world.lose_node(node_id, self._say_nothing_of_nodes)
            self.world.restore_node(
                replace(node, num_gpus=node.num_gpus + 1), self.wire.from_world
            )

    def _say_nothing_of_nodes(self, event: Event) -> None:
        assert isinstance(event, NodeLost)

    def _started(self, job_id: JobId) -> None:
        self._look_at(job_id)
        if job_id in self._cursed:
            after_s, outcome = self._cursed[job_id]
            self.clock.call_at(
                self.clock.now() + after_s, partial(self._crash, job_id, outcome)
            )

        most = self._most_replicas.get(job_id)
        if most is not None and self.world.num_replicas(job_id) > most:
            soon = self.clock.now() + VANISH_S
            self.clock.call_at(soon, partial(self._crash_if_larger, job_id, most))

    def _crash_if_larger(self, job_id: JobId, most: int) -> None:
        if self.world.num_replicas(job_id) > most:
            self._crash(job_id, Outcome.FAILED)

    def _look_at(self, job_id: JobId) -> None:
        ledger = self.world.ledger
        seen = self._seen
        for node in ledger.nodes.values():
            if job_id in ledger.jobs_on(node.id):
                seen.gpu_types.add(node.gpu_type)
                seen.racks.add(node.rack)
        seen.num_pairs += any(len(jobs) > 1 for jobs in ledger.sharers(job_id))

    def _crash(self, job_id: JobId, outcome: Outcome) -> None:
        self.world.crash(job_id, outcome)

    def _cancel_impossible(self) -> None:
        """Cancel the jobs that need more replicas than the cluster or their batch
        allows, as their users would in the end.
        """
        nodes = tuple(self.world.ledger.nodes.values())
        largest = largest_to_come(self.scenario, nodes)
        for job in self.scenario.jobs:
            limits = job.spec.batch
            least = job.spec.replicas.min
            adaptive = job.spec.contract is RescaleContract.ADAPTIVE
            total = limits.max_total if adaptive else limits.requested
            if least > largest or least * limits.min_atomic > total:
                self.wire.from_user(CancelRequested(at=self.clock.now(), job=job.id))

    # -- what must hold at the end
    # ----------------------------------------------------------------------

    def _verdict(self) -> FaultReport:
        state = self.host.state
        left = {
            job.id: str(job.state)
            for job in state.jobs.values()
            if job.state not in ENDED
        }
        ended = self.wire.ended
        missing = {job.id for job in self.scenario.jobs} - ended.keys()
        if left or missing:
            raise InvariantError(
                f"by {self.clock.now()} these jobs had not ended: "
                f"{left or sorted(missing)}"
            )
        check_world(self.world, state)
        self.wire.check_exits()
        if self.market is not None:
            self._check_bill(self.market)
        events = list(self.host.store.events())
        check_replay(events, self.make, state, self.scenario.seed)
        own = {
            job.id
            for job in self.scenario.jobs
            if job.spec.contract is RescaleContract.SELF
        }
        for event in events:
            if (
                isinstance(event, TrainingReported)
                and event.job in own
                and event.report.batch is not None
            ):
                self._seen.own_batches.add(event.report.batch.total)
        self._seen.num_max_cost = sum(
            job.reason is Reason.MAX_COST for job in ended.values()
        )
        self._seen.num_waited = len(self.host.ledger.waited)
        return FaultReport(
            num_events=len(events),
            num_deaths=sum(isinstance(event, SchedulerRestarted) for event in events),
            ends={job.id: job.state for job in ended.values()},
            seen=self._seen,
        )

    def _check_bill(self, market: FaultyMarket) -> None:
        """Raise InvariantError unless the provider and the core agree on the nodes and
        on their cost.
        """
        state = self.host.state
        buying = state.buying
        assert buying is not None
        lives = market.provider.lives
        live = {life.node.id for life in lives if life.left_at is None}
        if not market.at_rest or live != set(buying.nodes) or live - state.nodes.keys():
            raise InvariantError(
                f"by {self.clock.now()} nodes {sorted(live)} are paid for, the books "
                f"know {sorted(buying.nodes)}"
            )
        self._seen.num_bought = len(lives)
        self._seen.num_taken = sum(life.taken for life in lives)
        self._seen.num_given_back = len(lives) - len(live) - self._seen.num_taken
        ledger = self.host.ledger
        paid = market.provider.cost_at(state.at)
        booked = ledger.nodes_cost
        if abs(paid - booked) > ledger.slack + 1e-6 * max(paid, 1.0):
            raise InvariantError(
                f"the provider's bill is {paid}, booked are {booked}; the delays of "
                f"news explain {ledger.slack} of the difference"
            )


def _market(
    money: Money | None, clock: VirtualClock, world: World, wire: FaultyNetwork
) -> FaultyMarket | None:
    if money is None:
        return None
    provider = Provider(clock, money.market, world.restore_node, world.lose_node)
    return FaultyMarket(provider, wire, money.market)


def _policy(scenario: Scenario) -> Policy:
    if scenario.policy is not None:
        return create_policy(scenario.policy)
    chaos = MixedChaosPolicy if scenario.family is Family.MIXED else ChaosPolicy
    return chaos(scenario.seed, CALM_AT_S)
