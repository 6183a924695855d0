"""One simulated run: the live service's scheduler and runtime, on a virtual clock and in a virtual world."""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from coadapt.core.config import SchedulerConfig
from coadapt.core.events import JobSubmitted
from coadapt.core.lifecycle import ENDED
from coadapt.core.scheduler import Scheduler
from coadapt.model import Node
from coadapt.policies import create_policy, policy_options
from coadapt.policies.base import Policy
from coadapt.runtime.history import History, Recorder
from coadapt.runtime.memory_store import NullStore
from coadapt.runtime.runtime import Runtime
from coadapt.runtime.solver import InlineSolver
from coadapt.sim.agent import Oracle
from coadapt.sim.applications import Application
from coadapt.sim.clock import VirtualClock
from coadapt.sim.metrics import Metrics, Setting, measure
from coadapt.sim.workload import Workload
from coadapt.sim.world import World, WorldConfig

# How often, in virtual time, a run looks whether it is still worth going on, and tells how far it came.
CHECK_PERIOD_S = 3600.0
# A hundred times as long as a published workload takes.
HORIZON_S = 100 * 86_400.0
# A day without a running job while some wait: the policy will never start them.
IDLE_MAX_S = 86_400.0

OnProgress = Callable[[float, int], None]  # virtual instant, jobs ended so far


class SimulationError(RuntimeError):
    """A run that cannot end: jobs that are never started or never finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentConfig:
    """Settings of a run. Durations in seconds; see SchedulerConfig and WorldConfig.

    horizon_s: virtual time after which a run that has not ended is an error.
    """

    round_s: float = 60.0
    rescale_s: float = 30.0
    interference: float = 0.0
    resizes_in_place: bool = True
    horizon_s: float = HORIZON_S

    @property
    def scheduler(self) -> SchedulerConfig:
        defaults = SchedulerConfig()
        return replace(
            defaults,
            round_s=self.round_s,
            # Jobs report once a round: with long rounds silence is no sign of trouble.
            silence_s=max(defaults.silence_s, 3 * self.round_s),
            rescale_default_s=self.rescale_s,
            resize_in_place=self.resizes_in_place,
        )

    @property
    def world(self) -> WorldConfig:
        return WorldConfig(
            report_s=self.round_s,
            rescale_s=self.rescale_s,
            interference=self.interference,
            resizes_in_place=self.resizes_in_place,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run gave. cpu_s: CPU seconds of this process, the figures not counted.

    peak_rss_mb: highest resident memory of the process during the run, in MiB, with all that it held before.
    """

    trace: str
    policy: str
    seed: int
    metrics: Metrics
    history: History
    cpu_s: float
    peak_rss_mb: float
    num_plans_failed: int = 0
    plan_error: str = ""


@dataclass(slots=True)
class Simulation:
    """All parts of a run, wired together; `run` plays it."""

    workload: Workload
    clock: VirtualClock
    world: World
    runtime: Runtime
    recorder: Recorder
    solver: InlineSolver
    config: ExperimentConfig = field(default_factory=ExperimentConfig)

    def run(self, on_progress: OnProgress | None = None) -> None:
        """Play until every job has ended. Raises SimulationError if that will never be."""
        busy_at = self.clock.now()
        while not self.clock.idle:
            self.clock.run(until=self.clock.now() + CHECK_PERIOD_S)
            now, jobs = self.clock.now(), self.runtime.scheduler.state.jobs
            num_ended = sum(job.state in ENDED for job in jobs.values())
            if on_progress is not None:
                on_progress(now, num_ended)
            if num_ended == len(jobs) or self.world.alive():
                busy_at = now
            if now - busy_at > IDLE_MAX_S or now > self.config.horizon_s:
                raise self._endless(now)
        unfinished = [job for job in self.runtime.scheduler.state.jobs.values() if job.state not in ENDED]
        if unfinished:
            raise self._endless(self.clock.now())

    def _endless(self, now: float) -> SimulationError:
        state = self.runtime.scheduler.state
        waiting = [job for job in state.jobs.values() if job.state not in ENDED]
        why = state.plan_error or waiting[0].explanation
        return SimulationError(
            f"{self.workload.name}: after {now:.0f} s of virtual time {len(waiting)} jobs have not ended, "
            f"the first is {waiting[0].id!r} ({why})"
        )


def compose(
    workload: Workload,
    applications: Mapping[str, Application],
    cluster: tuple[Node, ...],
    policy: Policy,
    config: ExperimentConfig | None = None,
) -> Simulation:
    """Return a simulation that is ready to run: nodes and arrivals are on its clock."""
    config = config or ExperimentConfig()
    clock = VirtualClock()
    oracle = Oracle(max(node.num_gpus for node in cluster), sum(node.num_gpus for node in cluster))
    world = World(clock, workload.jobs, applications, oracle, config.world)
    recorder = Recorder()
    solver = InlineSolver(policy, time.process_time)
    runtime = Runtime(
        Scheduler(config.scheduler),
        clock=clock,
        executor=world,
        store=NullStore(),
        solver=solver,
        observers=(recorder,),
    )
    for node in cluster:
        clock.call_at(0.0, partial(world.restore_node, node, runtime.post))
    for job in workload.jobs:
        submitted = JobSubmitted(
            at=job.at,
            job=job.id,
            spec=job.spec,
            forecast=oracle(applications[job.application], job.spec, epoch=0),
        )
        clock.call_at(job.at, partial(runtime.post, submitted))
    return Simulation(workload, clock, world, runtime, recorder, solver, config)


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
    """Run `workload` on `cluster` under a policy, and return what happened and what it cost.

    `seed` goes to policies that draw. Raises InputError for an unknown policy, SimulationError for a run that
    cannot end.
    """
    _reset_peak_rss()
    started_s = time.process_time()
    policy = new_policy(policy_name, seed)
    simulation = compose(workload, applications, cluster, policy, config)
    simulation.run(on_progress)
    history = simulation.recorder.history
    cpu_s, peak_rss_mb = time.process_time() - started_s, _peak_rss_mb()
    setting = Setting(
        workload=workload,
        applications=applications,
        cluster=cluster,
        round_s=simulation.config.round_s,
        rescale_s=simulation.config.rescale_s,
    )
    errors = [each.error for each in history.rounds if each.error]
    return RunResult(
        trace=workload.name,
        policy=policy_name,
        seed=seed,
        metrics=measure(history, simulation.solver.decision_s, setting),
        history=history,
        cpu_s=cpu_s,
        peak_rss_mb=peak_rss_mb,
        num_plans_failed=len(errors),
        plan_error=errors[0] if errors else "",
    )


def new_policy(name: str, seed: int) -> Policy:
    """Return a fresh policy, seeded if it draws. Raises InputError for an unknown name."""
    options = {"seed": seed} if "seed" in policy_options(name) else {}
    return create_policy(name, **options)


def _reset_peak_rss() -> None:
    """Forget earlier runs' peak where the kernel allows it (Linux); elsewhere the process's peak stands."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _peak_rss_mb() -> float:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    peak_kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak_kib) / 1024
