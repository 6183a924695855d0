"""One simulated run: the live service's scheduler and runtime on a virtual clock and a
simulated cluster.
"""

import gc
import math
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted, TenantConfigured
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord
from coadapt.model import Node
from coadapt.policies import create_policy, policy_draws
from coadapt.policies.base import Policy, reaction_of
from coadapt.policies.sizers import create_sizer
from coadapt.runtime.history import History, Recorder
from coadapt.runtime.memory_store import NullStore
from coadapt.runtime.ports import Store
from coadapt.runtime.runtime import Runtime
from coadapt.runtime.sizing import InlineSizer
from coadapt.runtime.solver import InlineSolver
from coadapt.sim.agent import Oracle
from coadapt.sim.applications import Application
from coadapt.sim.clock import ClockStandsError, VirtualClock
from coadapt.sim.foresight import Foresight, Foretold
from coadapt.sim.market.costs import Costs, costs_of, with_costs
from coadapt.sim.market.provider import Provider
from coadapt.sim.market.terms import MarketTerms
from coadapt.sim.metrics import (
    JobOutcome,
    Metrics,
    RoundOutcome,
    RunFacts,
    commonest_type,
    gpus_by_type,
    gpus_per_node,
    job_outcomes,
    measure,
    round_outcomes,
)
from coadapt.sim.workload import LENGTH_MAX_S, Workload
from coadapt.sim.world import World
from coadapt.sim.world_config import WorldConfig

# Period, in virtual time, at which a run reports its progress and checks that it can
# still end, s.
CHECK_PERIOD_S = 3600.0
# Period at which a run with nodes for sale checks whether its last job has ended, s.
LOOK_PERIOD_S = 60.0
# A run may last this long after its last arrival, s: a hundred times as long as
# published workloads take.
HORIZON_S = LENGTH_MAX_S
# If jobs wait for a day and none runs, the policy will never start them, s.
IDLE_MAX_S = 86_400.0
# Number of new objects between garbage collections, about 10 MB. With Python's default
# of 700 collections take a twelfth of a run.
GARBAGE_AFTER = 50_000

OnProgress = Callable[[float, int], None]  # virtual instant, jobs ended so far


class SimulationError(RuntimeError):
    """A run cannot end, because jobs are never started or never finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """Settings of a run. Durations in seconds; see SchedulerConfig and WorldConfig.

    reaction_s: time from an arrival or exit to an additional round (infinity: no such
    rounds; None: as the policy asks).
    report_s: period of jobs' reports (None: once in a round). Jobs save a checkpoint
    when they report.
    checkpoint_s, save_s: least time between checkpoints, and their cost (WorldConfig).
    horizon_s: a run that has not ended this long after its last arrival is an error.
    figures_only: whether the history leaves out points and sentences of jobs, which
    grow with each report and each round.
    market: nodes for sale. The cluster is then the largest that can be bought, and
    starts with the fewest nodes of the offers. None: all nodes are there from the
    start.
    """

    round_s: float = 60.0
    rescale_s: float = 30.0
    interference: float = 0.0
    rescales_in_place: bool = True
    reaction_s: float | None = None
    report_s: float | None = None
    checkpoint_s: float = 0.0
    save_s: float = 0.0
    horizon_s: float = HORIZON_S
    figures_only: bool = False
    market: MarketTerms | None = None

    @property
    def scheduler(self) -> SchedulerConfig:
        defaults = SchedulerConfig()
        return replace(
            defaults,
            round_s=self.round_s,
            reaction_s=None if self.reaction_s == math.inf else self.reaction_s,
            # If jobs report seldom, a silent job is no sign of a failure.
            silence_s=max(
                defaults.silence_s, 3 * self.round_s, 3 * (self.report_s or 0.0)
            ),
            rescale_default_s=self.rescale_s,
            rescale_in_place=self.rescales_in_place,
        )

    @property
    def world(self) -> WorldConfig:
        return WorldConfig(
            report_s=self.round_s if self.report_s is None else self.report_s,
            rescale_s=self.rescale_s,
            checkpoint_s=self.checkpoint_s,
            save_s=self.save_s,
            interference=self.interference,
            rescales_in_place=self.rescales_in_place,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run. cpu_s: CPU seconds of this process, without computing the
    metrics.

    peak_rss_mb: highest resident memory of the process during the run, MiB, including
    what it held before. foretold: the policy's predictions of ends, if it makes any;
    empty if `figures_only`. reaction_s: time from an arrival or exit to an additional
    round; None: there were none. costs, sizer: cost of bought nodes, and the sizer that
    decided.
    """

    trace: str
    policy: str
    seed: int
    metrics: Metrics
    jobs: tuple[JobOutcome, ...]
    history: History
    cpu_s: float
    peak_rss_mb: float
    num_plans_failed: int = 0
    plan_error: str = ""
    foretold: tuple[Foretold, ...] = ()
    rounds: tuple[RoundOutcome, ...] = ()
    reaction_s: float | None = None
    costs: Costs | None = None
    sizer: str = ""


@dataclass(slots=True)
class Simulation:
    """The parts of a run. `run` plays it."""

    workload: Workload
    clock: VirtualClock
    world: World
    runtime: Runtime
    recorder: Recorder
    solver: InlineSolver
    foresight: Foresight
    config: ExperimentConfig = field(default_factory=ExperimentConfig)
    provider: Provider | None = None

    def run(self, on_progress: OnProgress | None = None) -> None:
        """Play until all jobs have ended. Raises SimulationError if they cannot."""
        arrivals = [job.at for job in self.workload.jobs] or [0.0]
        ends_by_s = max(arrivals) + self.config.horizon_s
        # Arrivals may be seconds since 1970: half a million periods without a job.
        num_periods = int(min(arrivals) / CHECK_PERIOD_S)
        self._play(self.clock.run, num_periods * CHECK_PERIOD_S)
        busy_at = self.clock.now()
        while not self.clock.idle and not self._ended():
            self._play(self._run_until, self.clock.now() + CHECK_PERIOD_S)
            now = self.clock.now()
            num_live = len(self._live())
            if on_progress is not None:
                on_progress(now, len(self.recorder.history.jobs) - num_live)
            if not num_live or self.world.alive():
                busy_at = now
            if now - busy_at > IDLE_MAX_S or now > ends_by_s:
                raise self._endless(now)
        if self._live():
            raise self._endless(self.clock.now())

    def _play(self, run: Callable[[float], None], until: float) -> None:
        try:
            run(until)
        except ClockStandsError as error:
            raise SimulationError(f"{self.workload.name}: {error}") from error

    def _run_until(self, until: float) -> None:
        """Play up to an instant. If nodes are bought, stop when the last job has
        ended.
        """
        if self.provider is None:
            self.clock.run(until=until)
            return
        while self.clock.now() < until and not self._ended():
            self.clock.run(until=min(self.clock.now() + LOOK_PERIOD_S, until))

    def _ended(self) -> bool:
        """Return whether nodes are bought and all jobs have ended."""
        if self.provider is None:
            return False
        known = len(self.recorder.history.jobs)
        return known == len(self.workload.jobs) and not self._live()

    def _live(self) -> list[JobRecord]:
        jobs = self.runtime.scheduler.state.jobs.values()
        return [job for job in jobs if job.state not in ENDED]

    def _endless(self, now: float) -> SimulationError:
        waiting = self._live()
        scheduler = self.runtime.scheduler
        scheduler.explain_waiting()
        why = scheduler.state.plan_error or waiting[0].explanation
        return SimulationError(
            f"{self.workload.name}: after {now:.0f} s of virtual time {len(waiting)} "
            f"jobs have not ended, "
            f"the first is {waiting[0].id!r} ({why})"
        )


def compose(
    workload: Workload,
    applications: Mapping[str, Application],
    cluster: tuple[Node, ...],
    policy: Policy,
    config: ExperimentConfig | None = None,
    *,
    store: Store | None = None,
) -> Simulation:
    """Return a simulation that is ready to run, with nodes and arrivals on its clock.

    store: where the journal is written; None: nowhere.
    """
    config = config or ExperimentConfig()
    if config.reaction_s is None:
        config = replace(config, reaction_s=reaction_of(policy))
    clock = VirtualClock()
    gpu_type = commonest_type(cluster)
    oracle = Oracle(
        gpus_per_node(cluster, gpu_type), gpus_by_type(cluster)[gpu_type], gpu_type
    )
    world = World(clock, workload.jobs, applications, oracle, config.world)
    recorder = Recorder(figures_only=config.figures_only)
    foresight = Foresight()
    solver = InlineSolver(
        policy,
        time.process_time,
        on_decided=None if config.figures_only else foresight.note,
    )
    scheduler = Scheduler(config.scheduler)
    scheduler.explains = not config.figures_only
    runtime = Runtime(
        scheduler,
        clock=clock,
        executor=world,
        store=NullStore() if store is None else store,
        solver=solver,
        observers=(recorder,),
    )
    world.application_times_of = runtime.application_times_of
    world.hazard_of = runtime.hazard_of
    provider = None
    if config.market is None:
        for node in cluster:
            clock.call_at(0.0, partial(world.restore_node, node, runtime.post))
    else:
        provider = Provider(clock, config.market, world.restore_node, world.lose_node)
        runtime.buy_nodes(InlineSizer(create_sizer(config.market.sizer)), provider)
        clock.call_at(0.0, partial(provider.open, runtime.post))
    for tenant in workload.tenants:
        configured = TenantConfigured(at=0.0, tenant=tenant)
        clock.call_at(0.0, partial(runtime.post, configured))
    for job in workload.jobs:
        submitted = JobSubmitted(
            at=job.at,
            job=job.id,
            spec=job.spec,
            forecast=oracle(applications[job.application], job.spec, epoch=0),
        )
        clock.call_at(job.at, partial(runtime.post, submitted))
    return Simulation(
        workload,
        clock,
        world,
        runtime,
        recorder,
        solver,
        foresight,
        config,
        provider,
    )


def simulate(
    workload: Workload,
    applications: Mapping[str, Application],
    cluster: tuple[Node, ...],
    policy_name: str,
    *,
    seed: int = 0,
    config: ExperimentConfig | None = None,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """Run `workload` on `cluster` under a policy, and return the result.

    seed: for policies that use random numbers. Raises InputError for an unknown policy,
    and SimulationError for a run that cannot end.
    """
    return simulate_policy(
        workload,
        applications,
        cluster,
        lambda: new_policy(policy_name, seed),
        policy_name=policy_name,
        seed=seed,
        config=config,
        on_progress=on_progress,
    )


def simulate_policy(
    workload: Workload,
    applications: Mapping[str, Application],
    cluster: tuple[Node, ...],
    create: Callable[[], Policy],
    *,
    policy_name: str,
    seed: int = 0,
    config: ExperimentConfig | None = None,
    on_progress: OnProgress | None = None,
) -> RunResult:
    """Like `simulate`, with the policy that `create` returns. policy_name, seed: for
    the result.
    """
    _reset_peak_rss()
    started_s = time.process_time()
    policy = create()
    simulation = compose(workload, applications, cluster, policy, config)
    facts = RunFacts(
        workload=workload,
        applications=applications,
        cluster=cluster,
        round_s=simulation.config.round_s,
        rescale_s=simulation.config.rescale_s,
    )
    with _garbage_seldom():
        simulation.run(on_progress)
        history = simulation.recorder.history
        cpu_s = time.process_time() - started_s
        peak_rss_mb = _peak_rss_mb()
        jobs = job_outcomes(history, facts)
        decision_s = simulation.solver.decision_s
        metrics = measure(history, jobs, decision_s, facts)
        costs = None
        if simulation.provider is not None:
            ended_at = max(job.ended_at or 0.0 for job in history.jobs.values())
            lives = simulation.provider.close(max(ended_at, simulation.clock.now()))
            costs = costs_of(history, lives)
            jobs = tuple(replace(job, cost=costs.jobs[job.id]) for job in jobs)
            metrics = with_costs(metrics, costs)
        rounds = round_outcomes(history, decision_s, facts)
    errors = [each.error for each in history.rounds if each.error]
    return RunResult(
        trace=workload.name,
        policy=policy_name,
        seed=seed,
        metrics=metrics,
        jobs=jobs,
        history=history,
        cpu_s=cpu_s,
        peak_rss_mb=peak_rss_mb,
        num_plans_failed=len(errors),
        plan_error=errors[0] if errors else "",
        foretold=simulation.foresight.fell_due(history.jobs),
        rounds=rounds,
        reaction_s=simulation.config.scheduler.reaction_s,
        costs=costs,
        sizer=""
        if simulation.config.market is None
        else simulation.config.market.sizer,
    )


def new_policy(name: str, seed: int) -> Policy:
    """Return a new policy, seeded if it uses random numbers and its name has no seed.

    Raises InputError for an unknown name.
    """
    return create_policy(name, seed=seed) if policy_draws(name) else create_policy(name)


@contextmanager
def _garbage_seldom() -> Iterator[None]:
    """Collect garbage less often inside this context: a run makes millions of objects,
    but hardly any cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(GARBAGE_AFTER, *before[1:])
    # Earlier objects, mostly the workload, are left out of later collections.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _reset_peak_rss() -> None:
    """Reset the peak memory of the process. Only Linux can; elsewhere the peak includes
    earlier runs.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _peak_rss_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak_kib = next(
        line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")
    )
    return int(peak_kib) / 1024
