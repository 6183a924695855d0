"""What a question to the future costs: a day of 64 GPUs under three policies.

    python -m benchmarks.service.what_if_cost

160 jobs of the built-in mix come in eight hours. At the fourth hour the state is rolled
forward under each policy, until all jobs have ended. Figures are CPU seconds of one
core, as wall time depends on how many cores are free.
"""

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path

from benchmarks.stored import store_results
from coadapt.model import Node
from coadapt.policies import create_policy
from coadapt.runtime.background_snapshots import picture_of
from coadapt.sim.ahead.roll import Question, roll
from coadapt.sim.ahead.scenario import Scenario
from coadapt.sim.experiment import ExperimentConfig, compose
from coadapt.sim.library.builtin import builtin_workload

RESULTS = Path(__file__).parents[1] / "results" / "what_if_cost.json"
CLUSTER = tuple(Node(id=f"node-{number:02d}", num_gpus=4) for number in range(16))
POLICIES = ("fifo", "tiresias", "srtf", "gavel", "pollux", "castor")
AT_S = 4 * 3_600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", nargs="*", default=POLICIES)
    parser.add_argument("--jobs", type=int, default=160)
    parser.add_argument("--rolls", type=int, default=2, help="Courses of each policy.")
    parser.add_argument("--no-store", action="store_true")
    arguments = parser.parse_args()
    workload, applications = builtin_workload(num_jobs=arguments.jobs, seed=1)
    simulation = compose(
        workload, applications, CLUSTER, create_policy("fifo"), ExperimentConfig()
    )
    simulation.clock.run(until=AT_S)
    state = picture_of(simulation.runtime.scheduler.state)
    state.config = simulation.runtime.scheduler.config
    states = Counter(job.state.value for job in state.active)
    found: dict[str, object] = {"live_jobs": len(state.active), "states": dict(states)}
    for policy in arguments.policy:
        question = Question(
            state=state, at=AT_S, policy="fifo", scenario=Scenario(policy=policy)
        )
        begun = time.process_time()
        courses = [roll(question, seed) for seed in range(arguments.rolls)]
        each_s = (time.process_time() - begun) / arguments.rolls
        hours = [max(course.ends_s.values()) / 3_600.0 for course in courses]
        found[policy] = {
            "cpu_s_per_course": round(each_s, 3),
            "cpu_s_of_twenty": round(20 * each_s, 1),
            "hours_ahead": round(math.fsum(hours) / len(hours), 1),
        }
        print(policy, json.dumps(found[policy]), flush=True)
    if not arguments.no_store:
        store_results(RESULTS, found)


if __name__ == "__main__":
    main()
