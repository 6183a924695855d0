"""What a scheduler can add to a search under ASHA, in simulation: trials that are
narrow until their first rung, and trials that count more with each rung that they pass.

`python -m benchmarks.studies.rungs [--seeds N] [--no-store]`; figures go to
benchmarks/results/rungs.json.
"""

# Trials train ResNet-18 on CIFAR-10 by its built-in profile, which is synthetic, on 2
# nodes of 8 GPUs. The final value of a trial is drawn from N(0, 1). At a fraction f of
# its epochs its value is the final one plus noise of N(0, 1) * NOISE * (1 - f): the
# synthetic learning curve. At each rung a trial is compared with all values reported
# there, by the rule of Optuna's SuccessiveHalvingPruner, and cancelled if it is not in
# the best third.
#
# Ways: `plain`: a trial may have 1 to 16 GPUs throughout. `narrow`: one GPU until its
# first rung. `priority`: one step of priority more with each rung, which doubles its
# weight under castor; its chance to reach the end triples.

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.searches import APPLICATION, NODES, elastic_specs
from benchmarks.stored import store_results
from coadapt.core.commands import Command
from coadapt.core.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    PriorityChanged,
    TrainingReported,
)
from coadapt.core.lifecycle import ENDED, JobState
from coadapt.core.state import SchedulerState
from coadapt.model import ClusterView, JobId, JobSpec, Node, Plan
from coadapt.policies.base import Policy
from coadapt.sim.experiment import ExperimentConfig, Simulation, compose, new_policy
from coadapt.sim.library.profiles import BUILTIN_APPLICATIONS
from coadapt.sim.workload import TraceJob, Workload

RESULTS = Path(__file__).parents[1] / "results" / "rungs.json"
GPUS_PER_NODE = 8
TRIALS = 81
FACTOR = 3
RUNGS = (1 / 9, 1 / 3)  # parts of the epochs
NOISE = 0.6
REPORT_S = 10.0
NEVER_S = 10_000_000.0
POLICY = "castor"
WAYS = ("plain", "narrow", "priority")
AT_ONCE = (4, 16)
HOUR_S = 3_600.0
TRAINED = BUILTIN_APPLICATIONS[APPLICATION]
# In samples, as jobs report their progress.
RUNG_PROGRESS = tuple(
    TRAINED.limits.initial * TRAINED.progress_at(round(part * TRAINED.num_epochs))
    for part in RUNGS
)


class NarrowFirst:
    """A policy that sees trials before their first rung as jobs of one GPU."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.card = getattr(policy, "card", None)

    @property
    def reaction_s(self) -> float | None:
        found: float | None = getattr(self._policy, "reaction_s", None)
        return found

    def allocate(self, view: ClusterView) -> Plan:
        jobs = []
        for job in view.jobs:
            if job.measured.progress < RUNG_PROGRESS[0]:
                replicas = replace(job.spec.replicas, max=1, requested=1)
                job = replace(job, spec=replace(job.spec, replicas=replicas))  # noqa: PLW2901 - as the policy sees it
            jobs.append(job)
        return self._policy.allocate(replace(view, jobs=tuple(jobs)))


@dataclass(slots=True, kw_only=True)
class Search:
    """The trials of a search, submitted as others end and pruned at rungs; an
    observer.
    """

    simulation: Simulation
    waiting: list[TraceJob]
    at_once: int
    final: dict[JobId, float]
    noise: dict[JobId, tuple[float, ...]]
    by_priority: bool
    passed: dict[JobId, int] = field(default_factory=dict)
    reported: list[list[float]] = field(default_factory=lambda: [[] for _ in RUNGS])
    ended_at: dict[JobId, float] = field(default_factory=dict)
    gpu_s: dict[JobId, float] = field(default_factory=dict)
    complete: set[JobId] = field(default_factory=set)

    def begin(self) -> None:
        for _ in range(self.at_once):
            self._submit_next()

    def __call__(
        self,
        event: Event,
        commands: Sequence[Command],  # noqa: ARG002 - an observer's
        state: SchedulerState,
    ) -> None:
        if isinstance(event, TrainingReported) and event.job in state.jobs:
            self._report(event.job, state.jobs[event.job].measured.progress, state.at)
        for job in list(state.jobs.values()):
            if job.state in ENDED and job.id not in self.ended_at:
                self.ended_at[job.id] = state.at
                self.gpu_s[job.id] = job.usage.attained_service_gpu_s
                if job.state is JobState.SUCCEEDED:
                    self.complete.add(job.id)
                self._submit_next()

    def _report(self, job: JobId, progress: float, at: float) -> None:
        rung = self.passed.get(job, 0)
        if rung >= len(RUNGS) or progress < RUNG_PROGRESS[rung]:
            return
        self.passed[job] = rung + 1
        value = self.final[job] + self.noise[job][rung]
        rows = self.reported[rung]
        rows.append(value)
        rows.sort(reverse=True)
        if value < rows[max(len(rows) // FACTOR - 1, 0)]:
            self.simulation.runtime.post(CancelRequested(at=at, job=job, why="pruned"))
        elif self.by_priority:
            changed = PriorityChanged(at=at, job=job, priority=rung + 1)
            self.simulation.runtime.post(changed)

    def _submit_next(self) -> None:
        if self.waiting:
            trial = self.waiting.pop(0)
            now = self.simulation.clock.now()
            submitted = JobSubmitted(at=now, job=trial.id, spec=trial.spec)
            self.simulation.runtime.post(submitted)


def play(way: str, at_once: int, seed: int) -> dict[str, float]:
    """Return the makespan (h), the time until the best trial that is completed (h), and
    the GPU-hours.
    """
    specs: list[JobSpec] = elastic_specs(TRIALS)
    trials = tuple(
        TraceJob(id=spec.name, at=NEVER_S, application=APPLICATION, spec=spec)
        for spec in specs
    )
    draw = random.Random(seed)
    final = {trial.id: draw.gauss(0.0, 1.0) for trial in trials}
    noise = {
        trial.id: tuple(draw.gauss(0.0, NOISE * (1.0 - part)) for part in RUNGS)
        for trial in trials
    }
    cluster = tuple(
        Node(id=f"node-{index}", num_gpus=GPUS_PER_NODE) for index in range(NODES)
    )
    chosen = new_policy(POLICY, 0)
    simulation = compose(
        Workload(name=way, jobs=trials),
        BUILTIN_APPLICATIONS,
        cluster,
        NarrowFirst(chosen) if way == "narrow" else chosen,
        ExperimentConfig(figures_only=True, report_s=REPORT_S),
    )
    search = Search(
        simulation=simulation,
        waiting=list(trials),
        at_once=at_once,
        final=final,
        noise=noise,
        by_priority=way == "priority",
    )
    simulation.runtime.observers.append(search)
    simulation.clock.call_at(0.0, search.begin)
    until = 0.0
    while len(search.ended_at) < len(trials) and until < NEVER_S / 2:
        until += HOUR_S
        simulation.clock.run(until=until)
    assert len(search.ended_at) == len(trials), "trials have not ended"
    best = max(search.complete, key=final.__getitem__)
    return {
        "makespan_h": max(search.ended_at.values()) / HOUR_S,
        "best_h": search.ended_at[best] / HOUR_S,
        "gpu_h": sum(search.gpu_s.values()) / HOUR_S,
        "complete": float(len(search.complete)),
        "best": final[best],
    }


def means(way: str, at_once: int, seeds: int) -> dict[str, float]:
    runs = [play(way, at_once, seed) for seed in range(seeds)]
    figures = {key: round(mean(run[key] for run in runs), 3) for key in runs[0]}
    print(at_once, way, json.dumps(figures), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-store", action="store_true")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for at_once in AT_ONCE:
        for way in WAYS:
            found[f"{at_once} at once, {way}"] = means(way, at_once, given.seeds)
    if not given.no_store:
        figures = {"trials": TRIALS, "seeds": given.seeds, "policy": POLICY}
        store_results(RESULTS, {**figures, "runs": found})


if __name__ == "__main__":
    main()
