"""What the scheduler costs at 1,000 nodes, 8,000 GPUs and 2,000 live jobs, over an
engine that says yes.

python -m benchmarks.service.large_cluster [--minutes N] [--policy NAME]

Time is virtual: the minutes of the cluster pass as fast as the scheduler can. Its core,
journal (on disk, synchronous) and index of jobs are the live ones, and events come to
them in the groups in which the live loop takes them. The engine answers each order at
once; each running job reports every 30 s what a trainer reports; a job that ends is
followed by another. An event's time is from when its group is begun until it is durable
and handled, on the wall; its CPU time is told beside, since a machine that others use
stretches the former. Policies answer in a process of their own in life, so their time
is told apart, as is the time of the two events of a round. Results go to
benchmarks/results/large_cluster.json.
"""

import argparse
import heapq
import json
import os
import platform
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks.stored import store_results
from coadapt.core.commands import (
    BuyNodes,
    Command,
    GiveBack,
    Rescale,
    RetractRescale,
    SetAlarm,
    Size,
    Solve,
    Start,
    Stop,
)
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    JobSubmitted,
    NodeJoined,
    Outcome,
    PlanReady,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
    TimerFired,
    TrainingReported,
    TrainingResumed,
)
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import JobRecord
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    GradStats,
    JobSpec,
    Node,
    ReplicaLimits,
    ThroughputParams,
    TrainingReport,
    TypeProfile,
)
from coadapt.policies import create_policy
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal

RESULTS = Path(__file__).parents[1] / "results" / "large_cluster.json"
NODES = 1_000
GPUS_PER_NODE = 8
JOBS = 2_000
REPLICAS_MAX = 16
REPORT_S = 30.0
JOB_S = 3_600.0
# How long the live loop waits for others that it can write with a report.
WINDOW_S = 0.05
EVENT_P99_GOAL_MS = 5.0
MEBIBYTE = 2**20
ROUND = ("TimerFired", "PlanReady")


Times = tuple[float, float]
"""Seconds: on the wall, and of this process' CPU time."""


def _now() -> Times:
    return time.perf_counter(), time.process_time()


def _since(before: Times) -> Times:
    wall, cpu = _now()
    return wall - before[0], cpu - before[1]


class Cluster:
    """Scheduler, journal and index, and an engine that answers at once; `at` is the
    virtual instant.
    """

    def __init__(self, folder: Path, policy: str, seed: int) -> None:
        config = SchedulerConfig(reaction_s=None)
        self.folder = folder
        self.journal = Journal.at_path(folder / "journal.sqlite")
        self.index = JobIndex(folder / "jobs.sqlite")
        self.scheduler = Scheduler(config)
        self.writer = IndexWriter(self.index, self.journal.numbered_events, config)
        self.policy = create_policy(policy)
        self.at = time.time()
        self.job_hours = 0.0
        self.times_s: dict[str, list[Times]] = {}
        self.commits_s: list[Times] = []
        self.decisions_s: list[Times] = []
        self._draw = random.Random(seed)
        self._coming: list[tuple[float, int, Event]] = []
        self._order = count()
        self._jobs = count()
        self._number = 0

    def fill(self) -> None:
        """Let all nodes and jobs come, without a clock beside."""
        joined = [NodeJoined(at=self.at, node=_node(number)) for number in range(NODES)]
        self._take(joined, timed=False)
        self._take([self._submission() for _ in range(JOBS)], timed=False)

    def run(self, minutes: float) -> None:
        """Let so much virtual time pass."""
        until = self.at + 60.0 * minutes
        while self._coming and self._coming[0][0] < until:
            before = self.at
            self.at = self._coming[0][0]
            running = sum(
                bool(job.trains_on) for job in self.scheduler.state.jobs.values()
            )
            self.job_hours += (self.at - before) / 3600.0 * running
            self._take(self._group(), timed=True)

    def _group(self) -> list[Event]:
        """Return what comes first, and with a report the reports that the live loop
        would wait for.
        """
        first = heapq.heappop(self._coming)[2]
        group = [first]
        while isinstance(group[-1], TrainingReported) and self._coming:
            at, _, event = self._coming[0]
            if at > self.at + WINDOW_S or not isinstance(event, TrainingReported):
                break
            group.append(heapq.heappop(self._coming)[2])
        return group

    def _take(self, group: Sequence[Event], *, timed: bool) -> None:
        began = _now()
        self.journal.append(group)
        self.commits_s.append(_since(began))
        aside = (0.0, 0.0)
        for event in group:
            self._number += 1
            commands = self.scheduler.handle(event)
            self.writer.observe(self._number, event, commands, self.scheduler.state)
            wall_s, cpu_s = _since(began)
            if timed:
                took = (wall_s - aside[0], cpu_s - aside[1])
                self.times_s.setdefault(type(event).__name__, []).append(took)
            done = _now()
            self._obey(commands)
            self._follow(event)
            wall_s, cpu_s = _since(done)
            aside = (aside[0] + wall_s, aside[1] + cpu_s)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case SetAlarm():
                    self._post(command.at, TimerFired(at=command.at))
                case Solve():
                    began = _now()
                    plan = self.policy.allocate(command.view)
                    self.decisions_s.append(_since(began))
                    self._post(
                        self.at, PlanReady(at=self.at, round=command.round, plan=plan)
                    )
                case Stop():
                    ended = {"job": command.job, "generation": command.generation}
                    self._post(
                        self.at,
                        ReplicasExited(at=self.at, outcome=Outcome.STOPPED, **ended),
                    )
                case RetractRescale():
                    self._post(
                        self.at,
                        ReplicasKept(
                            at=self.at, job=command.job, generation=command.generation
                        ),
                    )
                case Start() | Rescale():
                    about = {"job": command.job, "generation": command.generation}
                    self._post(self.at, ReplicasStarted(at=self.at, **about))
                    later = self.at + self._draw.uniform(0.1, 1.0) * REPORT_S
                    self._post(later, TrainingResumed(at=later, rescale_s=1.0, **about))
                case Size() | BuyNodes() | GiveBack():
                    raise AssertionError(f"{command}: this benchmark has no offers")

    def _follow(self, event: Event) -> None:
        """Let what trains go on: reports of the newest generation, until the job is
        done.
        """
        if not isinstance(event, TrainingResumed | TrainingReported):
            if isinstance(event, ReplicasExited) and event.outcome is Outcome.SUCCEEDED:
                self._post(self.at, self._submission())
            return
        job = self.scheduler.state.jobs.get(event.job)
        if job is None or job.running.generation != event.generation:
            return
        at = self.at + REPORT_S
        about = {"job": event.job, "generation": event.generation}
        if self._draw.random() < REPORT_S / JOB_S:
            self._post(at, ReplicasExited(at=at, outcome=Outcome.SUCCEEDED, **about))
        else:
            self._post(at, TrainingReported(at=at, report=self._report(job), **about))

    def _report(self, job: JobRecord) -> TrainingReport:
        """Return what a trainer tells after half a minute, with figures of as many
        digits as real ones.

        What a job is does not change from report to report, but for some noise.
        """
        own = random.Random(job.id)
        before = job.measured.progress
        noise = [self._draw.uniform(0.99, 1.01) for _ in range(3)]
        params = ThroughputParams(
            alpha_c=own.uniform(0.02, 0.05) * noise[0],
            beta_c=own.uniform(1e-4, 2e-3),
            alpha_r=own.uniform(0.0, 0.02),
            beta_r=own.uniform(0.0, 1e-3),
            alpha_n=own.uniform(0.0, 0.05),
            beta_n=own.uniform(0.0, 2e-3),
            gamma=own.uniform(1.0, 4.0),
        )
        num_replicas = job.trains_on.num_replicas
        return TrainingReport(
            progress=before + own.uniform(500.0, 5_000.0) * noise[1],
            progress_target=1e7,
            samples=before * own.uniform(1.0, 1.5),
            step_time_s=own.uniform(0.1, 0.3) * noise[1],
            batch=BatchConfig(total=128 * num_replicas, atomic=128),
            grad=GradStats(
                sqr=own.uniform(0.1, 1.0) * noise[2], var=own.uniform(1.0, 100.0)
            ),
            by_type={
                "gpu": TypeProfile(params=params, num_replicas_profiled=num_replicas)
            },
            metrics={
                "loss": 4.0 * self._draw.random(),
                "accuracy": self._draw.random(),
            },
        )

    def _submission(self) -> Event:
        number = next(self._jobs)
        spec = JobSpec(
            name=f"job {number}",
            batch=BatchLimits(initial=128, max_total=4096),
            replicas=ReplicaLimits(min=1, max=REPLICAS_MAX),
        )
        return JobSubmitted(at=self.at, job=f"job-{number:06}", spec=spec)

    def _post(self, at: float, event: Event) -> None:
        heapq.heappush(self._coming, (at, next(self._order), event))


def _node(number: int) -> Node:
    return Node(id=f"n{number:04}", num_gpus=GPUS_PER_NODE)


def _figures(times_s: Sequence[Times]) -> dict[str, float]:
    """Return how many, and milliseconds."""
    told: dict[str, float] = {"count": len(times_s)}
    for clock, each in zip(("wall", "cpu"), zip(*times_s, strict=True), strict=True):
        ordered = sorted(each)
        for name, part in {"p50": 0.5, "p99": 0.99, "worst": 1.0}.items():
            told[f"{clock}_{name}_ms"] = round(
                1e3 * ordered[int(part * (len(ordered) - 1))], 3
            )
    return told


def measure(folder: Path, minutes: float, policy: str, seed: int) -> dict[str, object]:
    """Return what `minutes` of the cluster cost."""
    cluster = Cluster(folder, policy, seed)
    cluster.fill()
    cluster.run(minutes=2.0)  # until all jobs that can have started
    cluster.times_s.clear()
    cluster.commits_s.clear()
    cluster.decisions_s.clear()
    cluster.job_hours = 0.0
    bytes_before = _journal_bytes(folder)
    cluster.run(minutes)
    jobs = cluster.scheduler.state.jobs.values()
    rest = [
        each
        for kind, times in cluster.times_s.items()
        if kind not in ROUND
        for each in times
    ]
    return {
        "nodes": NODES,
        "gpus": NODES * GPUS_PER_NODE,
        "jobs": len(jobs),
        "jobs_with_gpus": sum(bool(job.ordered) for job in jobs),
        "gpus_held": sum(job.ordered.num_replicas for job in jobs),
        "virtual_minutes": minutes,
        "policy": policy,
        "all_events": _figures(
            [each for times in cluster.times_s.values() for each in times]
        ),
        "goal_p99_ms": EVENT_P99_GOAL_MS,
        "without_rounds": _figures(rest),
        "events": {
            kind: _figures(times) for kind, times in sorted(cluster.times_s.items())
        },
        "commit_of_a_group": _figures(cluster.commits_s),
        "decision": _figures(cluster.decisions_s),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * 1024
        / MEBIBYTE,
        "job_hours": cluster.job_hours,
        "journal_bytes_per_job_hour": (_journal_bytes(folder) - bytes_before)
        / cluster.job_hours,
    }


def _journal_bytes(folder: Path) -> int:
    """Return what the journal takes on disk, its log of writes not counted: that is of
    one size.
    """
    return (folder / "journal.sqlite").stat().st_size


def main() -> None:
    """Measure, print, and keep the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="virtual ones")
    parser.add_argument("--policy", default="max-min")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), given.minutes, given.policy, given.seed)
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    store_results(RESULTS, {"machine": machine, **result})
    print(json.dumps({"machine": machine, **result}, indent=1))


if __name__ == "__main__":
    main()
