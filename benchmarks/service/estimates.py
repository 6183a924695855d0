"""How often starts and ends lie within the interval that was computed for them.

    python -m benchmarks.service.estimates [--policy NAME ...] [--jobs N] [--gpus N]

Simulated runs of a built-in mix. Every half hour the state of that moment is rolled
forward, as `coadapt explain` does it; what is said then is compared with what came.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from statistics import median

from coadapt.core.lifecycle import ENDED
from coadapt.model import Node
from coadapt.policies import create_policy
from coadapt.runtime.background_snapshots import picture_of
from coadapt.sim.ahead.estimate import Range, estimates
from coadapt.sim.ahead.remainder import EndedWork
from coadapt.sim.ahead.roll import Question
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.experiment import ExperimentConfig, compose
from coadapt.sim.library.builtin import builtin_workload

POLICIES = ("fifo", "tiresias", "pollux", "castor", "gavel")
GPUS_PER_NODE = 4
APART_S = 1_800.0
ROLLS = 20
HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of a job at `at` (s): when it starts and ends, s from then."""

    at: float
    job: str
    starts: Range | None
    ends: Range


def played(policy: str, num_jobs: int, num_gpus: int, rolls: int) -> dict[str, object]:
    workload, applications = builtin_workload(
        num_jobs=num_jobs, seed=1, num_gpus=num_gpus
    )
    cluster = tuple(
        Node(id=f"node-{number}", num_gpus=GPUS_PER_NODE)
        for number in range(num_gpus // GPUS_PER_NODE)
    )
    simulation = compose(
        workload, applications, cluster, create_policy(policy), ExperimentConfig()
    )
    said: list[Said] = []
    took_s: list[float] = []
    while not simulation.clock.idle:
        simulation.clock.run(until=simulation.clock.now() + APART_S)
        state = picture_of(simulation.runtime.scheduler.state)
        if not state.active:
            continue
        state.config = simulation.runtime.scheduler.config
        at = simulation.clock.now()
        question = Question(state=state, at=at, policy=policy, ended=EndedWork())
        begun = time.perf_counter()
        [found] = estimates(question, [Scenario()], rolls, 1)
        took_s.append(time.perf_counter() - begun)
        for job in state.active:
            estimate = found.jobs.get(job.id)
            if estimate is None:
                continue
            waits = job.usage.started_at is None
            said.append(
                Said(
                    at=at,
                    job=job.id,
                    starts=estimate.starts if waits else None,
                    ends=estimate.ends,
                )
            )
    history = simulation.recorder.history.jobs
    starts: list[tuple[Range, float]] = []
    ends: list[tuple[Range, float]] = []
    for each in said:
        job = history[each.job]
        assert job.state in ENDED
        if each.starts is not None and job.usage.started_at is not None:
            starts.append((each.starts, job.usage.started_at - each.at))
        ends.append((each.ends, (job.ended_at or math.inf) - each.at))
    return {
        "policy": policy,
        "starts": figures(starts),
        "ends": figures(ends),
        "seconds_per_estimate": round(median(took_s), 2),
    }


def figures(pairs: list[tuple[Range, float]]) -> dict[str, object]:
    if not pairs:
        return {"number": 0}
    within = [found.low - 60.0 <= truth <= found.high + 60.0 for found, truth in pairs]
    late = [truth > found.high + 60.0 for found, truth in pairs]
    errors = [abs(found.median - truth) for found, truth in pairs]
    return {
        "number": len(pairs),
        "within": round(sum(within) / len(within), 3),
        "later": round(sum(late) / len(late), 3),
        "width_min": round(median(f.high - f.low for f, _ in pairs) / 60.0, 1),
        "error_min": round(median(errors) / 60.0, 1),
        "truth_min": round(median(truth for _, truth in pairs) / 60.0, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*", default=POLICIES)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--gpus", type=int, default=16)
    parser.add_argument("--rolls", type=int, default=ROLLS)
    arguments = parser.parse_args()
    for policy in arguments.policy:
        found = played(policy, arguments.jobs, arguments.gpus, arguments.rolls)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
