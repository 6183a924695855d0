"""Fault simulation: a seed -> a cluster in which everything that may break does, and what must hold anyway.

python -m coadapt.sim.faults --seed N    tells the whole story of one seed
"""

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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
)
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.model import JobId
from coadapt.policies import Policy, create_policy
from coadapt.sim.agent import Oracle
from coadapt.sim.chaos import ChaosPolicy, FaultySolver
from coadapt.sim.clock import VirtualClock
from coadapt.sim.fault_host import Host
from coadapt.sim.fault_wire import Tell, Wire
from coadapt.sim.invariants import InvariantError, check_world
from coadapt.sim.replay import check_replay
from coadapt.sim.scenario import (
    CALM_AT_S,
    DEADLINE_S,
    Disaster,
    DisasterKind,
    Scenario,
    draw_scenario,
    largest_pool,
)
from coadapt.sim.world import World

MakeScheduler = Callable[[SchedulerConfig, SchedulerState | None], Scheduler]

POISON_S = 10.0  # from the start of a poisoned job to the failure of its script
VANISH_S = 5.0  # likewise to the loss of replicas; shorter than a rescale, so that they get nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Survived:
    """What a seed that kept all invariants went through."""

    num_events: int
    num_deaths: int
    ends: dict[JobId, JobState]


def run_seed(seed: int, make: MakeScheduler = Scheduler, tell: Tell | None = None) -> Survived:
    """Run the scenario of `seed` to its end. Raises InvariantError, with the way to rerun it.

    `make` builds the scheduler under test; `tell(at, text)` hears everything that happens.
    """
    try:
        return Ordeal(draw_scenario(seed), make, tell).run()
    except AssertionError as error:
        rerun = f"python -m coadapt.sim.faults --seed {seed}"
        raise InvariantError(f"seed {seed}: {error}\nits whole story: {rerun}") from error


class Ordeal:
    """One scenario under way: the world, and the scheduler that dies and comes back."""

    def __init__(self, scenario: Scenario, make: MakeScheduler, tell: Tell | None) -> None:
        rng = random.Random(scenario.seed)
        self.scenario = scenario
        self.clock = clock = VirtualClock()
        self.make = partial(make, scenario.scheduler)
        self.wire = wire = Wire(clock, rng, scenario.rates, tell)
        applications = {scenario.application.name: scenario.application}
        num_gpus = sum(node.num_gpus for node in scenario.nodes)
        self.world = World(clock, scenario.jobs, applications, Oracle(4, num_gpus), scenario.world)
        solver = FaultySolver(_policy(scenario), rng, scenario.rates.solver, wire.hostile, wire.answer)
        self.host = Host(self.make, self.world, wire, solver, rng)
        self._cursed: dict[JobId, tuple[float, Outcome]] = {}
        wire.connect(self.world, self.host.deliver, self._started)

    def run(self) -> Survived:
        scenario, clock = self.scenario, self.clock
        for node in scenario.nodes:
            self.world.restore_node(node, self.wire.from_world)
        for job in scenario.jobs:
            submitted = JobSubmitted(at=job.at, job=job.id, spec=job.spec)
            clock.call_at(job.at, partial(self.wire.from_user, submitted))
        for disaster in scenario.disasters:
            clock.call_at(disaster.at, partial(self._strike, disaster))
        clock.call_at(CALM_AT_S, self._cancel_impossible)
        clock.run(until=CALM_AT_S)
        while not self.host.all_ended(len(scenario.jobs)) and clock.now() < DEADLINE_S:
            clock.run(until=clock.now() + scenario.scheduler.round_s)
        return self._verdict()

    # -- what goes wrong --------------------------------------------------------------------------------

    def _strike(self, disaster: Disaster) -> None:
        target, now = disaster.target, self.clock.now()
        self.wire.tell(f"DISASTER {disaster.kind} {target} {disaster.lasts_s or ''}")
        match disaster.kind:
            case DisasterKind.CRASH:
                self._crash(target, Outcome.LOST)
            case DisasterKind.SCRIPT_FAILS:
                self._crash(target, Outcome.FAILED)
            case DisasterKind.POISON:
                self._cursed[target] = (POISON_S, Outcome.FAILED)
            case DisasterKind.VANISH:
                if self.scenario.world.rescale_s > VANISH_S:
                    self._cursed[target] = (VANISH_S, Outcome.LOST)
            case DisasterKind.JOINERS_FAIL:
                self.world.joiners_fail.add(target)
            case DisasterKind.NODE_LOST:
                self._lose_node(target, disaster.lasts_s)
            case DisasterKind.NODE_REPLACED:
                self._replace_node(target)
            case DisasterKind.NODE_REPEATED:
                if target in self.world.ledger.nodes:
                    self.wire.from_world(NodeJoined(at=now, node=self.world.ledger.nodes[target]))
            case DisasterKind.CANCEL:
                self.wire.from_user(CancelRequested(at=now, job=target))
            case DisasterKind.SCHEDULER_DIES:
                self.host.die(disaster.lasts_s)
            case DisasterKind.STRAY_ALARM:
                self.host.deliver(TimerFired(at=now))
            case DisasterKind.SUBMITTED_TWICE:
                spec = next(job.spec for job in self.scenario.jobs if job.id == target)
                self.wire.from_user(JobSubmitted(at=now, job=target, spec=spec))

    def _lose_node(self, node_id: str, lasts_s: float) -> None:
        node = self.world.ledger.nodes.get(node_id)
        if node is not None:
            self.world.lose_node(node_id, self.wire.from_world)
            now = self.clock.now()
            again: Callable[[], None] = partial(self.wire.from_world, NodeLost(at=now, node=node_id))
            restore: Callable[[], None] = partial(self.world.restore_node, node, self.wire.from_world)
            self.clock.call_at(now + lasts_s / 2.0, again)
            self.clock.call_at(now + lasts_s, restore)

    def _replace_node(self, node_id: str) -> None:
        node = self.world.ledger.nodes.get(node_id)
        if node is not None:
            self.world.lose_node(node_id, self._say_nothing_of_nodes)
            self.world.restore_node(replace(node, num_gpus=node.num_gpus + 1), self.wire.from_world)

    def _say_nothing_of_nodes(self, event: Event) -> None:
        assert isinstance(event, NodeLost)

    def _started(self, job_id: JobId) -> None:
        if job_id in self._cursed:
            after_s, outcome = self._cursed[job_id]
            self.clock.call_at(self.clock.now() + after_s, partial(self._crash, job_id, outcome))

    def _crash(self, job_id: JobId, outcome: Outcome) -> None:
        self.world.crash(job_id, outcome)

    def _cancel_impossible(self) -> None:
        """Cancel the jobs that the whole cluster cannot run: their users got tired."""
        largest = largest_pool(self.world.ledger.nodes.values())
        for job in self.scenario.jobs:
            if job.spec.replicas.min > largest:
                self.wire.from_user(CancelRequested(at=self.clock.now(), job=job.id))

    # -- what must hold at the end ----------------------------------------------------------------------

    def _verdict(self) -> Survived:
        state = self.host.state
        left = {job.id: str(job.state) for job in state.jobs.values() if job.state not in ENDED}
        missing = {job.id for job in self.scenario.jobs} - state.jobs.keys()
        if left or missing:
            raise InvariantError(f"by {self.clock.now()} these jobs had not ended: {left or sorted(missing)}")
        check_world(self.world, state)
        self.wire.check_fates(state)
        events = list(self.host.store.events())
        check_replay(events, self.make, state, self.scenario.seed)
        return Survived(
            num_events=len(events),
            num_deaths=sum(isinstance(event, SchedulerRestarted) for event in events),
            ends={job.id: job.state for job in state.jobs.values()},
        )


def _policy(scenario: Scenario) -> Policy:
    if scenario.policy is None:
        return ChaosPolicy(scenario.seed, CALM_AT_S)
    return create_policy(scenario.policy)


def main(arguments: list[str]) -> int:
    """Tell the story of one seed, or say which of many fail; return 0, or 1 if one does."""
    parser = argparse.ArgumentParser(prog="python -m coadapt.sim.faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="so many seeds, without their stories")
    given = parser.parse_args(arguments)
    num_failed = 0
    for seed in range(given.seed, given.seed + given.count):
        try:
            if given.count == 1:
                sys.stdout.write(f"{draw_scenario(seed)}\n")
            survived = run_seed(seed, tell=_write if given.count == 1 else None)
            if given.count == 1:
                sys.stdout.write(f"{survived}\n")
        except InvariantError as error:
            num_failed += 1
            sys.stdout.write(f"FAILED {error}\n")
    sys.stdout.write(f"{given.count - num_failed} of {given.count} seeds survived\n")
    return int(num_failed > 0)


def _write(at: float, text: str) -> None:
    sys.stdout.write(f"{at:10.2f}  {text}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
