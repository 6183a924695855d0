"""How often starts and ends lie within the interval of nine in ten.

    python -m benchmarks.service.estimates [--only NAME ...] [--policy NAME ...]

Simulated runs of the OSDI'21 workloads ($COADAPT_TRACES), built-in mixes and mixes of
jobs that never change size. Each run comes after others of its kind, of which the
service knows the jobs that ended and its scores. At some moments of each run the state
of that moment is rolled forward, as `coadapt explain` does it. What is said then is
compared with what came. Four ways are beside each other: the interval as it was
computed (`rolled`), the one that is corrected by the scores of estimates whose outcome
was known at that moment (`corrected`), and two that need no model:

- `limits`: Slurm's way. Running jobs end at their limits, those that wait start in
  order of submission on the GPUs that they requested. It is an upper end; the lower one
  is now. A limit is twice what the job took on its requested GPUs, in whole hours.
- `naive`: the 5 % and 95 % quantiles of the waits, and of the times from submission to
  end, of the jobs before it.
"""

import argparse
import heapq
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.stored import load_results, store_results
from coadapt.core.lifecycle import JobState
from coadapt.core.state import SchedulerState
from coadapt.model import JobId, Node
from coadapt.policies import create_policy
from coadapt.runtime.background_snapshots import picture_of
from coadapt.runtime.history import JobHistory
from coadapt.sim.ahead.calibration import Calibration
from coadapt.sim.ahead.estimate import Estimate, Range, estimates
from coadapt.sim.ahead.remainder import EndedWork
from coadapt.sim.ahead.roll import Question
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, Simulation, compose
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.traces import load_trace
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parents[1] / "results" / "estimates.json"
POLICIES = ("fifo", "tiresias", "pollux", "castor", "gavel")
GPUS_PER_NODE = 4
MOMENTS = 8
ROLLS = 20
# Of the drawn mixes before the one that counts.
SEEDS = (2, 3, 4)
HOUR_S = 3_600.0
# Reports and rounds are a minute apart: nobody can say a start more exactly.
SLACK_S = 60.0
NO_RANGE = Range(median=0.0, low=0.0, high=math.inf)

Mix = tuple[Workload, Mapping[str, Application], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a job at `at` (s) in each way, s from then."""

    at: float
    job: JobId
    kind: str
    ranges: Mapping[str, Range]


@dataclass(slots=True)
class Scores:
    """Estimates whose outcome is not known yet, and the scores of the others."""

    open: list[Said] = field(default_factory=list)
    kinds: dict[str, Calibration] = field(
        default_factory=lambda: {"starts": Calibration(), "ends": Calibration()}
    )

    def look(self, jobs: Mapping[JobId, JobHistory], at: float) -> None:
        """Take in what has come by `at` (s)."""
        left = []
        for said in self.open:
            truth = came_at(jobs[said.job], said.kind)
            if truth <= at:
                self.kinds[said.kind].add(
                    said.ranges["rolled"], truth - said.at, said.at
                )
            else:
                left.append(said)
        self.open = left


def came_at(job: JobHistory, kind: str) -> float:
    """Return when a job started, or ended, s; infinity where it has not."""
    when = job.usage.started_at if kind == "starts" else job.ended_at
    return math.inf if when is None else when


@dataclass(slots=True)
class Past:
    """What a service knows of the weeks before: jobs that ended, and its scores."""

    jobs: dict[JobId, JobHistory] = field(default_factory=dict)
    scores: Scores = field(default_factory=Scores)


def played(
    policy: str, before: Sequence[Mix], mix: Mix, moments: int, rolls: int
) -> dict[str, object]:
    """Return the figures of one run, after runs of `before`."""
    past = Past()
    for number, each in enumerate(before):
        _, jobs = week(policy, each, past, moments, rolls)
        past.scores.look(jobs, math.inf)
        past.jobs |= {f"before {number} {name}": job for name, job in jobs.items()}
    begun = time.process_time()
    said, truth = week(policy, mix, past, moments, rolls)
    found: dict[str, object] = {
        kind: figures([each for each in said if each.kind == kind], truth)
        for kind in ("starts", "ends")
    }
    found["cpu_s_per_moment"] = round((time.process_time() - begun) / moments, 2)
    return found


def week(
    policy: str, mix: Mix, past: Past, moments: int, rolls: int
) -> tuple[list[Said], Mapping[JobId, JobHistory]]:
    """Return what was said in one run, and what came."""
    workload, applications, num_gpus = mix
    cluster = tuple(
        Node(id=f"node-{number:02d}", num_gpus=min(GPUS_PER_NODE, num_gpus))
        for number in range(max(num_gpus // GPUS_PER_NODE, 1))
    )
    new = partial(compose, workload, applications, cluster, config=ExperimentConfig())
    truth = run_to_its_end(new(create_policy(policy)))
    last_at = max(job.ended_at or 0.0 for job in truth.values())
    apart_s = 0.95 * last_at / moments
    simulation = new(create_policy(policy))
    scores = past.scores
    said: list[Said] = []
    for number in range(moments):
        at = apart_s * (number + 0.5)
        simulation.clock.run(until=at)
        jobs = {**past.jobs, **simulation.recorder.history.jobs}
        scores.look({**jobs, **truth}, at)
        state = picture_of(simulation.runtime.scheduler.state)
        state.config = simulation.runtime.scheduler.config
        if not state.active:
            continue
        question = Question(
            state=state, at=at, policy=policy, ended=ended_work(jobs.values())
        )
        [found] = estimates(question, [Scenario()], rolls, 1)
        new_said = said_now(state, at, found, scores, jobs, truth)
        said += new_said
        scores.open += new_said
    return said, truth


def run_to_its_end(simulation: Simulation) -> Mapping[JobId, JobHistory]:
    """Return what became of each job."""
    while not simulation.clock.idle:
        simulation.clock.run(until=simulation.clock.now() + HOUR_S)
    return simulation.recorder.history.jobs


def ended_work(jobs: Iterable[JobHistory]) -> EndedWork:
    """Return the GPU-seconds of the jobs that succeeded so far."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for job in jobs:
        if job.state is JobState.SUCCEEDED:
            for name in {"", job.spec.application}:
                found[name].append(job.usage.attained_service_gpu_s)
    return EndedWork(gpu_s=dict(found))


def said_now(
    state: SchedulerState,
    at: float,
    found: Estimate,
    scores: Scores,
    jobs: Mapping[JobId, JobHistory],
    truth: Mapping[JobId, JobHistory],
) -> list[Said]:
    """Return what is said of each live job in each way."""
    limits = by_limits(state, at, truth)
    waits = [
        job.usage.started_at - job.submitted_at
        for job in jobs.values()
        if job.usage.started_at is not None
    ]
    spans = [
        job.ended_at - job.submitted_at
        for job in jobs.values()
        if job.ended_at is not None
    ]
    said = []
    for job in state.active:
        estimate = found.jobs.get(job.id)
        if estimate is None:
            continue
        age = at - job.submitted_at
        kinds = [("ends", estimate.ends, spans, 1)]
        if job.usage.started_at is None:
            kinds.append(("starts", estimate.starts, waits, 0))
        for kind, rolled, past, place in kinds:
            ranges = {
                "rolled": rolled,
                "corrected": scores.kinds[kind].corrected(rolled),
                "limits": Range(
                    median=limits[job.id][place], low=0.0, high=limits[job.id][place]
                ),
                "naive": naive(past, age),
            }
            said.append(Said(at=at, job=job.id, kind=kind, ranges=ranges))
    return said


def naive(past: Sequence[float], age: float) -> Range:
    """Return what is left of the mean of the past, and of its quantiles."""
    if not past:
        return NO_RANGE
    found = Range.of(past)
    mean = sum(past) / len(past)
    low, middle, high = (max(each - age, 0.0) for each in (found.low, mean, found.high))
    return Range(low=low, median=middle, high=high)


def by_limits(
    state: SchedulerState, at: float, truth: Mapping[JobId, JobHistory]
) -> dict[JobId, tuple[float, float]]:
    """Return start and end of each live job if all take their limits, s from now."""
    free = sum(node.num_gpus for node in state.nodes.values())
    ends: list[tuple[float, int]] = []
    found: dict[JobId, tuple[float, float]] = {}
    waiting = []
    for job in state.active:
        requested = job.spec.replicas.requested
        used_s = truth[job.id].usage.attained_service_gpu_s / requested
        limit_s = math.ceil(2.0 * used_s / HOUR_S) * HOUR_S
        gpus = job.ordered.num_replicas
        if gpus and job.usage.started_at is not None:
            end = max(job.usage.started_at + limit_s - at, 0.0)
            found[job.id] = (0.0, end)
            heapq.heappush(ends, (end, gpus))
            free -= gpus
        else:
            waiting.append((job.id, requested, limit_s))
    now = 0.0
    for job_id, gpus, limit_s in waiting:
        while free < gpus and ends:
            now, more = heapq.heappop(ends)
            free += more
        found[job_id] = (now, now + limit_s)
        free -= gpus
        heapq.heappush(ends, (now + limit_s, gpus))
    return found


def figures(
    said: Sequence[Said], truth: Mapping[JobId, JobHistory]
) -> dict[str, object]:
    """Return, for each way, how often the truth lay within, and how wide it was."""
    found: dict[str, object] = {"number": len(said)}
    if not said:
        return found
    came = [came_at(truth[each.job], each.kind) - each.at for each in said]
    found["truth_min"] = round(median(came) / 60.0, 1)
    for way in said[0].ranges:
        ranges = [each.ranges[way] for each in said]
        pairs = list(zip(ranges, came, strict=True))
        found[way] = {
            "within": share(r.low - SLACK_S <= t <= r.high + SLACK_S for r, t in pairs),
            "later": share(t > r.high + SLACK_S for r, t in pairs),
            "width_min": round(median(r.high - r.low for r in ranges) / 60.0, 1),
            "error_min": round(median(abs(r.median - t) for r, t in pairs) / 60.0, 1),
        }
    return found


def share(flags: Iterable[bool]) -> float:
    """Return how many of them are true, of one."""
    known = list(flags)
    return round(sum(known) / len(known), 3)


def osdi21(traces: Path, number: int) -> Mix:
    folder = traces / "osdi21"
    path = folder / "workloads" / f"workload-{number}.csv"
    workload, applications = load_trace(path, folder / "traces")
    return workload, applications, 64


def builtin(name: str, num_jobs: int, seed: int) -> Mix:
    """Return a mix for 64 GPUs on a quarter of them, where jobs come four times as
    seldom.
    """
    workload, applications = builtin_workload(
        name, num_jobs=num_jobs, seed=seed, num_gpus=16
    )
    slower = [replace(job, at=4.0 * job.at) for job in workload.jobs]
    return replace(workload, jobs=tuple(slower)), applications, 16


def rigid(num_jobs: int, num_gpus: int, seed: int) -> Mix:
    """Return jobs of 1 to 8 GPUs that never change size, with lengths that vary."""
    import tempfile

    import numpy as np

    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(420.0, num_jobs))
    gpus = random.choice([1, 1, 2, 4, 8], num_jobs)
    lengths = np.clip(random.lognormal(7.3, 1.0, num_jobs), 120.0, 40_000.0)
    rows = ["arrival_s,gpus,curve,length_s"]
    rows += [
        f"{when:.0f},{count},{count}:100,{length:.0f}"
        for when, count, length in zip(at, gpus, lengths, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rigid.csv"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        workload, applications = load_trace(path)
    return workload, applications, num_gpus


def of_file(path: Path, num_gpus: int) -> Mix:
    workload, applications = load_trace(path)
    return workload, applications, num_gpus


Weeks = tuple[Sequence[Callable[[], Mix]], Callable[[], Mix]]


def mixes(traces: Path | None, files: Sequence[Path]) -> dict[str, Weeks]:
    """Return how to make each mix, by name, and the one that came before it."""
    found: dict[str, Weeks] = {
        "rigid": ([partial(rigid, 60, 16, n) for n in SEEDS], partial(rigid, 60, 16, 7))
    }
    for name in ("default", "busy"):
        found[f"builtin {name}"] = (
            [partial(builtin, name, 40, seed) for seed in SEEDS],
            partial(builtin, name, 40, 1),
        )
    for path in files:
        found[path.stem] = ([], partial(of_file, path, 2))
    if traces is not None:
        numbers = (1, 2, 3, 6)
        for number in numbers:
            found[f"osdi21/{number}"] = (
                [partial(osdi21, traces, n) for n in numbers if n != number],
                partial(osdi21, traces, number),
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*", default=POLICIES)
    parser.add_argument("--only", nargs="*", help="Names of mixes, or beginnings.")
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--file", type=Path, nargs="*", default=(), help="Tables, on 2 GPUs."
    )
    parser.add_argument("--moments", type=int, default=MOMENTS)
    parser.add_argument("--rolls", type=int, default=ROLLS)
    parser.add_argument("--no-store", action="store_true")
    arguments = parser.parse_args()
    found = load_results(RESULTS)
    for name, (before, make) in mixes(arguments.traces, arguments.file).items():
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        for policy in arguments.policy:
            begun = time.process_time()
            row = played(
                policy,
                [each() for each in before],
                make(),
                arguments.moments,
                arguments.rolls,
            )
            row["cpu_s"] = round(time.process_time() - begun)
            found.setdefault(name, {})[policy] = row
            print(name, policy, json.dumps(row), flush=True)
            if not arguments.no_store:
                store_results(RESULTS, found)


if __name__ == "__main__":
    main()
