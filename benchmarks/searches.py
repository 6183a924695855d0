"""A search on a cluster: 100 trials, 4 at once, as in table 4 of Pollux (OSDI'21).

`python -m benchmarks.searches [--trials N] [--no-store]`; figures go to
benchmarks/results/searches.json.
"""

# Trials train ResNet-18 on CIFAR-10 by its built-in profile, which is synthetic, on 2
# nodes of 8 GPUs. When a trial ends the next one comes. Baselines: a fixed 4 GPUs with
# the initial batch, and with the batch that is fastest on 4 GPUs. Parameters have no
# influence on how long a trial takes here: the profile knows of one setting only. So
# which sampler chooses them makes no difference to these figures, and no accuracy is
# computed.

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from benchmarks.stored import load_results, store_results
from coadapt.core.commands import Command
from coadapt.core.events import Event, JobSubmitted
from coadapt.core.lifecycle import ENDED
from coadapt.core.state import SchedulerState
from coadapt.goodput.batch import split_total
from coadapt.model import JobId, JobSpec, Node, ReplicaLimits, RescaleContract
from coadapt.sim.applications import packed, step_s
from coadapt.sim.experiment import ExperimentConfig, Simulation, compose, new_policy
from coadapt.sim.library.profiles import BUILTIN_APPLICATIONS
from coadapt.sim.workload import TraceJob, Workload

RESULTS = Path(__file__).parent / "results" / "searches.json"
APPLICATION = "resnet18-cifar10"
NODES = 2
GPUS_PER_NODE = 8
AT_ONCE = 4
FIXED_GPUS = 4
NEVER_S = 10_000_000.0
PAPER = {
    "pollux": {"makespan_h": 10.0, "trial_min": 25.0},
    "fixed": {"makespan_h": 14.0, "trial_min": 34.0},
}


class ClosedLoop:
    """Submits a trial whenever one ends, so that `AT_ONCE` are there; an observer."""

    def __init__(self, simulation: Simulation, trials: Sequence[TraceJob]) -> None:
        self._simulation = simulation
        self._waiting = list(trials)
        self.began_at: dict[JobId, float] = {}
        self.ended_at: dict[JobId, float] = {}
        self.num_rescales = 0

    def begin(self) -> None:
        for _ in range(AT_ONCE):
            self._submit_next()

    def __call__(
        self,
        event: Event,  # noqa: ARG002 - an observer's
        commands: Sequence[Command],  # noqa: ARG002 - an observer's
        state: SchedulerState,
    ) -> None:
        for job in list(state.jobs.values()):
            if job.state in ENDED and job.id not in self.ended_at:
                self.ended_at[job.id] = state.at
                self.num_rescales += job.usage.num_rescales
                self._submit_next()

    def _submit_next(self) -> None:
        if not self._waiting:
            return
        trial = self._waiting.pop(0)
        now = self._simulation.clock.now()
        self.began_at[trial.id] = now
        submitted = JobSubmitted(at=now, job=trial.id, spec=trial.spec)
        self._simulation.runtime.post(submitted)


def play(policy: str, specs: Sequence[JobSpec], name: str) -> dict[str, float]:
    """Return the makespan (h) and the mean time of a trial (min)."""
    trials = tuple(
        TraceJob(id=spec.name, at=NEVER_S, application=APPLICATION, spec=spec)
        for spec in specs
    )
    cluster = tuple(
        Node(id=f"node-{index}", num_gpus=GPUS_PER_NODE) for index in range(NODES)
    )
    workload = Workload(name=name, jobs=trials)
    simulation = compose(
        workload,
        BUILTIN_APPLICATIONS,
        cluster,
        new_policy(policy, 0),
        ExperimentConfig(figures_only=True),
    )
    loop = ClosedLoop(simulation, trials)
    simulation.runtime.observers.append(loop)
    simulation.clock.call_at(0.0, loop.begin)
    until = 0.0
    while len(loop.ended_at) < len(trials) and until < NEVER_S / 2:
        until += 3_600.0
        simulation.clock.run(until=until)
    assert len(loop.ended_at) == len(trials), f"{name}: trials have not ended"
    times = [loop.ended_at[job] - loop.began_at[job] for job in loop.ended_at]
    figures = {
        "makespan_h": round(max(loop.ended_at.values()) / 3600.0, 3),
        "trial_min": round(mean(times) / 60.0, 2),
        "rescales_per_trial": round(loop.num_rescales / len(trials), 2),
    }
    print(name, json.dumps(figures), flush=True)
    return figures


def fastest_total() -> int:
    """Return the total batch with which a trial alone ends first on 4 GPUs, among
    doublings of the initial batch.
    """
    application = BUILTIN_APPLICATIONS[APPLICATION]
    limits = application.limits
    setting = packed(FIXED_GPUS, GPUS_PER_NODE)
    totals = [limits.initial]
    while totals[-1] * 2 <= limits.max_total:
        totals.append(totals[-1] * 2)
    times = {
        total: application.steps(total, application.num_epochs)
        * step_s(application, setting, split_total(total, FIXED_GPUS, limits))
        for total in totals
        if total >= FIXED_GPUS * limits.min_atomic
    }
    return min(times, key=times.__getitem__)


def elastic_specs(num_trials: int) -> list[JobSpec]:
    """Return trials on 1 to 16 GPUs whose batch adapts."""
    limits = BUILTIN_APPLICATIONS[APPLICATION].limits
    most = NODES * GPUS_PER_NODE
    return [
        JobSpec(
            name=f"trial-{index:03d}",
            application=APPLICATION,
            batch=limits,
            replicas=ReplicaLimits(min=1, max=most, requested=FIXED_GPUS),
            contract=RescaleContract.ADAPTIVE,
        )
        for index in range(num_trials)
    ]


def fixed(spec: JobSpec, total: int) -> JobSpec:
    """Return the trial on a fixed 4 GPUs, with a fixed batch of `total` samples."""
    return replace(
        spec,
        batch=replace(spec.batch, requested=total),
        replicas=ReplicaLimits(min=FIXED_GPUS, max=FIXED_GPUS, requested=FIXED_GPUS),
        contract=RescaleContract.FIXED,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--no-store", action="store_true")
    given = parser.parse_args()
    elastic = elastic_specs(given.trials)
    initial = elastic[0].batch.initial
    fastest = fastest_total()
    rows = {
        "fixed": play("fifo", [fixed(each, initial) for each in elastic], "fixed"),
        "fixed-fastest-batch": play(
            "fifo", [fixed(each, fastest) for each in elastic], "fixed-fastest-batch"
        ),
        "pollux": play("pollux", elastic, "pollux"),
        "castor": play("castor", elastic, "castor"),
    }
    ratios = {
        f"{name} to {baseline}": {
            figure: round(rows[name][figure] / rows[baseline][figure], 3)
            for figure in ("makespan_h", "trial_min")
        }
        for name in ("pollux", "castor")
        for baseline in ("fixed", "fixed-fastest-batch")
    }
    batches = {"fixed": initial, "fixed-fastest-batch": fastest}
    found = {"trials": given.trials, "runs": rows, "ratios": ratios, "batch": batches}
    print(json.dumps(ratios))
    if not given.no_store:
        store_results(RESULTS, {**load_results(RESULTS), **found, "paper": PAPER})


if __name__ == "__main__":
    main()
