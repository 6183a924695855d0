"""How often starts and ends lie within the interval of nine in ten.

    python -m benchmarks.service.estimates [--only NAME ...] [--policy NAME ...]

Each row is a simulated cluster on which jobs are submitted for eight hours of each day,
day after day: drawn days first, then the days that count. Those are the OSDI'21
workloads ($COADAPT_TRACES), or drawn ones of other seeds: built-in jobs, jobs that
never change size, and days drawn from the OSDI'21 workloads. At some moments of each
day the state of that moment is rolled forward, as `coadapt explain` does it. What is
said then is compared with what came. Moments are asked in a random order until the
time of the row is up (`--budget`).

Four ways are beside each other: the interval as it was computed (`rolled`), the one
that is corrected by the scores of estimates whose outcome was known at that moment
(`corrected`), and two that need no model:

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
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.stored import store_row
from coadapt.core.commands import Command
from coadapt.core.events import Event
from coadapt.core.lifecycle import JobState
from coadapt.core.state import SchedulerState
from coadapt.model import ClusterView, JobId, Node
from coadapt.policies import create_policy
from coadapt.runtime.background_snapshots import picture_of
from coadapt.runtime.history import JobHistory
from coadapt.runtime.journaled_scheduler import EVENTS_PER_SNAPSHOT
from coadapt.sim.ahead.arrivals import Arrivals, Submission
from coadapt.sim.ahead.calibration import Calibration, Past
from coadapt.sim.ahead.estimate import Range, estimates
from coadapt.sim.ahead.past_rounds import PastRounds
from coadapt.sim.ahead.remainder import EndedWork, Work
from coadapt.sim.ahead.roll import Question
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, compose
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.traces import load_trace
from coadapt.sim.workload import TraceJob, Workload

RESULTS = Path(__file__).parents[1] / "results" / "estimates.json"
POLICIES = ("fifo", "tiresias", "pollux", "castor", "gavel")
GPUS_PER_NODE = 4
MOMENTS = 6
ROLLS = 20
# Of the futures of one row, s: five policies take less than ten minutes.
BUDGET_S = 100.0
DRAWN_DAYS = 2
# Of the drawn days that count; the ones before have others, and parameters were chosen
# on days of seeds above 100.
SEEDS = (1, 2, 3, 4)
OSDI21 = (1, 2, 3, 6)
HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
# In which moments are drawn.
DAY_WATCHED_S = 10 * HOUR_S
# Reports and rounds are a minute apart: nobody can say a start more exactly.
SLACK_S = 60.0
NO_RANGE = Range(median=0.0, low=0.0, high=math.inf)

Mix = tuple[Workload, Mapping[str, Application]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Days of jobs, of which the last `num_counted` count."""

    days: Sequence[Mix]
    num_counted: int
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a job at `at` (s) in each way, and what came, s from then."""

    at: float
    job: JobId
    kind: str
    ranges: dict[str, Range]
    came: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a row may cost. moments: of each day. rolls: futures of each moment.

    wall_s: no further moment is asked after so long, s. processes: that ask moments at
    the same time.
    """

    moments: int = MOMENTS
    rolls: int = ROLLS
    wall_s: float = BUDGET_S
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A simulated stream, and what became of the jobs.

    states: at each moment (s), with what the policy saw in its last rounds.
    """

    policy: str
    states: Sequence[tuple[float, SchedulerState, Sequence[ClusterView]]]
    jobs: Mapping[JobId, JobHistory]
    arrivals: bool

    def said_at(self, number: int, rolls: int) -> list[Said]:
        """Return what is said at a moment, without corrections."""
        at, state, past = self.states[number]
        jobs = self.jobs
        question = Question(
            state=state,
            at=at,
            policy=self.policy,
            past=past,
            ended=ended_work(jobs.values(), at),
            arrivals=submissions(jobs.values(), at) if self.arrivals else Arrivals(),
        )
        return said_now(question, jobs, rolls)


def played(policy: str, stream: Stream, moments: int, *, arrivals: bool) -> Played:
    """Simulate a stream under a policy; keep the state at `moments` of each day."""
    workload, applications = one_after_the_other(stream.days)
    cluster = tuple(
        Node(id=f"node-{number:02d}", num_gpus=min(GPUS_PER_NODE, stream.num_gpus))
        for number in range(max(stream.num_gpus // GPUS_PER_NODE, 1))
    )
    simulation = compose(
        workload,
        applications,
        cluster,
        create_policy(policy),
        ExperimentConfig(figures_only=True),
    )
    states = []
    windows = [PastRounds(), PastRounds()]
    num_events = 0

    def look(event: Event, commands: Sequence[Command], state: SchedulerState) -> None:
        # A live scheduler's past is read from the events after the snapshot before the
        # latest one.
        nonlocal num_events
        num_events += 1
        if num_events % EVENTS_PER_SNAPSHOT == 0:
            windows[:] = [windows[1], PastRounds()]
        for each in windows:
            each.observe(event, commands, state)

    simulation.runtime.observers.append(look)
    random = np.random.default_rng(0)
    for day in range(len(stream.days)):
        for part in range(moments):
            into_day_s = (part + random.random()) * DAY_WATCHED_S / moments
            at = day * DAY_S + into_day_s
            simulation.clock.run(until=at)
            state = picture_of(simulation.runtime.scheduler.state)
            state.config = simulation.runtime.scheduler.config
            if state.active:
                states.append((at, state, windows[0].views))
    while not simulation.clock.idle:
        simulation.clock.run(until=simulation.clock.now() + HOUR_S)
    jobs = simulation.recorder.history.jobs
    return Played(policy=policy, states=states, jobs=jobs, arrivals=arrivals)


def said_within(run: Played, budget: Budget) -> tuple[list[Said], int]:
    """Return what was said at the moments for which there was time, and their number.

    Moments are asked in a random order, so that those of all days are among them.
    """
    begun = time.monotonic()
    order = np.random.default_rng(1).permutation(len(run.states))
    said: list[Said] = []
    num_asked = 0
    # Forked, so that each process has the run without a copy through a pipe.
    _runs[:] = [run]
    with get_context("fork").Pool(budget.processes) as pool:
        for first in range(0, len(order), budget.processes):
            if time.monotonic() - begun > budget.wall_s:
                break
            together = order[first : first + budget.processes]
            asked = [(int(number), budget.rolls) for number in together]
            for found in pool.starmap(_said_at, asked, chunksize=1):
                said += found
            num_asked += len(asked)
    return said, num_asked


_runs: list[Played] = []


def _said_at(number: int, rolls: int) -> list[Said]:
    return _runs[0].said_at(number, rolls)


def one_after_the_other(days: Sequence[Mix]) -> Mix:
    """Return all days as one workload."""
    jobs: list[TraceJob] = []
    applications: dict[str, Application] = {}
    for day, (workload, known) in enumerate(days):
        applications |= known
        jobs += [
            replace(job, id=f"{day:02d}-{job.id}", at=day * DAY_S + job.at)
            for job in workload.jobs
        ]
    return Workload(name="days", jobs=tuple(jobs)), applications


def ended_by(job: JobHistory, at: float) -> bool:
    return job.ended_at is not None and job.ended_at <= at


def ended_work(jobs: Iterable[JobHistory], at: float) -> EndedWork:
    """Return what the jobs needed that succeeded before `at` (s)."""
    found = [
        Work(
            job.spec.application,
            job.spec.replicas.requested,
            job.usage.attained_service_gpu_s,
            job.measured,
        )
        for job in jobs
        if ended_by(job, at) and job.state is JobState.SUCCEEDED
    ]
    return EndedWork(jobs=found)


def submissions(jobs: Iterable[JobHistory], at: float) -> Arrivals:
    """Return the jobs that were submitted before `at` (s)."""
    found = []
    for job in sorted(jobs, key=lambda job: job.submitted_at):
        if job.submitted_at > at:
            break
        each = Submission(at=job.submitted_at, spec=job.spec)
        if ended_by(job, at):
            gpu_s = job.usage.attained_service_gpu_s
            each = replace(each, gpu_s=gpu_s, measured=job.measured)
        found.append(each)
    return Arrivals(since=0.0, submissions=found)


def said_now(
    question: Question, jobs: Mapping[JobId, JobHistory], rolls: int
) -> list[Said]:
    """Return what is said of each live job in each way, and what came."""
    at = question.at
    [found] = estimates(question, [Scenario()], rolls, 1)
    limits = by_limits(question.state, at, jobs)
    waits = [
        began - job.submitted_at
        for job in jobs.values()
        if (began := job.usage.started_at) is not None and began <= at
    ]
    spans = [
        job.ended_at - job.submitted_at
        for job in jobs.values()
        if job.ended_at is not None and job.ended_at <= at
    ]
    said = []
    for job in question.state.active:
        estimate = found.jobs.get(job.id)
        if estimate is None:
            continue
        truth = jobs[job.id]
        age = at - job.submitted_at
        kinds = [("ends", truth.ended_at, estimate.ends, spans, 1)]
        if job.usage.started_at is None:
            began = truth.usage.started_at
            kinds.append(("starts", began, estimate.starts, waits, 0))
        for kind, when, rolled, past, place in kinds:
            limit = limits[job.id][place]
            ranges = {
                "rolled": rolled,
                "limits": Range(median=limit, low=0.0, high=limit),
                "naive": naive(past, age),
            }
            came = math.inf if when is None else when - at
            said.append(Said(at=at, job=job.id, kind=kind, ranges=ranges, came=came))
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


def correct(said: Sequence[Said]) -> None:
    """Add the corrected interval to each, by what was known at its moment."""
    for kind in ("starts", "ends"):
        of_kind = [each for each in said if each.kind == kind]
        past = [
            Past(said=each.ranges["rolled"], at=each.at, came_s=each.came)
            for each in of_kind
        ]
        for at in {each.at for each in of_kind}:
            known = Calibration.of([each for each in past if each.at < at], at)
            for each in of_kind:
                if each.at == at:
                    rolled = each.ranges["rolled"]
                    each.ranges["corrected"] = known.corrected(rolled)


def figures(said: Sequence[Said]) -> dict[str, object]:
    """Return, for each way, how often the truth lay within, and how wide it was."""
    found: dict[str, object] = {"number": len(said)}
    if not said:
        return found
    found["jobs"] = len({each.job for each in said})
    found["truth_min"] = round(median(each.came for each in said) / 60.0, 1)
    for way in ("rolled", "corrected", "limits", "naive"):
        pairs = [(each.ranges[way], each.came) for each in said]
        found[way] = {
            "within": share(r.low - SLACK_S <= t <= r.high + SLACK_S for r, t in pairs),
            "later": share(t > r.high + SLACK_S for r, t in pairs),
            "width_min": round(median(r.high - r.low for r, _ in pairs) / 60.0, 1),
            "error_min": round(median(abs(r.median - t) for r, t in pairs) / 60.0, 1),
        }
    return found


def share(flags: Iterable[bool]) -> float:
    """Return how many of them are true, of one."""
    known = list(flags)
    return round(sum(known) / len(known), 3)


def osdi21(traces: Path) -> Stream:
    """Return days drawn from all four workloads, and then these."""
    read, applications = osdi21_days(traces)
    days = [drawn_osdi21(read, seed) for seed in range(DRAWN_DAYS)]
    counted = [*days, *read]
    return Stream(
        days=[(day, applications) for day in counted],
        num_counted=len(read),
        num_gpus=64,
    )


def osdi21_drawn(traces: Path, seeds: Sequence[int]) -> Stream:
    """Return days drawn from all four workloads; those of `seeds` count."""
    read, applications = osdi21_days(traces)
    drawn = [*range(1_000, 1_000 + DRAWN_DAYS), *seeds]
    return Stream(
        days=[(drawn_osdi21(read, seed), applications) for seed in drawn],
        num_counted=len(seeds),
        num_gpus=64,
    )


def osdi21_days(traces: Path) -> tuple[list[Workload], Mapping[str, Application]]:
    """Return the four workloads, and their applications."""
    folder = traces / "osdi21"
    read = [
        load_trace(folder / "workloads" / f"workload-{number}.csv", folder / "traces")
        for number in OSDI21
    ]
    return [workload for workload, _ in read], read[0][1]


def drawn_osdi21(read: Sequence[Workload], seed: int) -> Workload:
    """Return a day of jobs and instants that are drawn from all of `read`."""
    jobs = [job for workload in read for job in workload.jobs]
    random = np.random.default_rng(seed)
    at = sorted(float(jobs[n].at) for n in random.integers(len(jobs), size=160))
    chosen = [jobs[n] for n in random.integers(len(jobs), size=160)]
    drawn = tuple(
        replace(job, id=f"{number:03d}", at=when)
        for number, (when, job) in enumerate(zip(at, chosen, strict=True))
    )
    return Workload(name="drawn", jobs=drawn)


def drawn_days(day: Callable[[int], Mix], seeds: Sequence[int]) -> Stream:
    """Return days of a mix for 16 GPUs; those of `seeds` count."""
    before = [day(1_000 + number) for number in range(DRAWN_DAYS)]
    counted = [day(seed) for seed in seeds]
    return Stream(days=[*before, *counted], num_counted=len(counted), num_gpus=16)


def builtin(name: str, seed: int) -> Mix:
    """Return a quarter of a mix for 64 GPUs, for 16."""
    num_jobs = 40
    workload, applications = builtin_workload(
        name, num_jobs=num_jobs, seed=seed, num_gpus=16
    )
    slower = [replace(job, at=4.0 * job.at) for job in workload.jobs]
    return replace(workload, jobs=tuple(slower)), applications


def rigid(seed: int) -> Mix:
    """Return jobs of 1 to 8 GPUs that never change size, with lengths that vary."""
    num_jobs = 60
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
        return load_trace(path)


def of_file(path: Path) -> Stream:
    """Return the jobs of a file, without days before them, on two GPUs."""
    return Stream(days=[load_trace(path)], num_counted=1, num_gpus=2)


def streams(
    traces: Path | None, files: Sequence[Path], seeds: Sequence[int]
) -> dict[str, Callable[[], Stream]]:
    """Return how to make each stream, by name."""
    found: dict[str, Callable[[], Stream]] = {
        "rigid": partial(drawn_days, rigid, seeds),
        "builtin default": partial(drawn_days, partial(builtin, "default"), seeds),
        "builtin busy": partial(drawn_days, partial(builtin, "busy"), seeds),
    }
    for path in files:
        found[path.stem] = partial(of_file, path)
    if traces is not None:
        found["osdi21"] = partial(osdi21, traces)
        found["drawn osdi21"] = partial(osdi21_drawn, traces, seeds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*", default=POLICIES)
    parser.add_argument("--only", nargs="*", help="Names of streams, or beginnings.")
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument(
        "--file", type=Path, nargs="*", default=(), help="Tables, on 2 GPUs."
    )
    parser.add_argument("--seed", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--moments", type=int, default=MOMENTS, help="Of each day.")
    parser.add_argument("--rolls", type=int, default=ROLLS)
    parser.add_argument(
        "--budget", type=float, default=BUDGET_S, help="Of the futures of a row, s."
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--no-arrivals",
        dest="arrivals",
        action="store_false",
        help="Ignore later jobs.",
    )
    parser.add_argument(
        "--no-past",
        dest="past",
        action="store_false",
        help="Begin each future with a policy that has kept nothing.",
    )
    parser.add_argument("--no-store", action="store_true")
    parser.add_argument("--raw", type=Path, help="Append all estimates to this file.")
    arguments = parser.parse_args()
    budget = Budget(
        moments=arguments.moments,
        rolls=arguments.rolls,
        wall_s=arguments.budget,
        processes=arguments.processes,
    )
    made = streams(arguments.traces, arguments.file, arguments.seed)
    for name, make in made.items():
        if arguments.only and not name.startswith(tuple(arguments.only)):
            continue
        for policy in arguments.policy:
            stream = make()
            row, said = measured(
                policy,
                stream,
                budget,
                arrivals=arguments.arrivals,
                past=arguments.past,
            )
            print(name, policy, json.dumps(row), flush=True)
            if arguments.raw is not None:
                with arguments.raw.open("a", encoding="utf-8") as file:
                    for each in said:
                        file.write(json.dumps(raw(name, policy, each)) + "\n")
            if not arguments.no_store:
                store_row(RESULTS, (name, policy), row)


def measured(
    policy: str, stream: Stream, budget: Budget, *, arrivals: bool, past: bool
) -> tuple[dict[str, object], list[Said]]:
    """Return the row of a policy, and all that was said."""
    load = os.getloadavg()[0]
    begun = time.monotonic()
    run = played(policy, stream, budget.moments, arrivals=arrivals)
    if not past:
        run = replace(run, states=[(at, state, ()) for at, state, _ in run.states])
    said, num_moments = said_within(run, budget)
    correct(said)
    counted_from = (len(stream.days) - stream.num_counted) * DAY_S
    counted = [each for each in said if each.at >= counted_from]
    row: dict[str, object] = {
        kind: figures([each for each in counted if each.kind == kind])
        for kind in ("starts", "ends")
    }
    row["moments"] = f"{num_moments} of {len(run.states)}"
    row["wall_s"] = round(time.monotonic() - begun)
    row["load_of_the_machine"] = round(load, 1)
    return row, said


def raw(name: str, policy: str, said: Said) -> dict[str, object]:
    """Return an estimate as JSON data."""
    low_high = {way: [r.low, r.median, r.high] for way, r in said.ranges.items()}
    return {
        "stream": name,
        "policy": policy,
        "at": said.at,
        "job": said.job,
        "kind": said.kind,
        "came": said.came,
        **low_high,
    }


if __name__ == "__main__":
    main()
