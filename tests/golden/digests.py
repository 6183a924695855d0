"""Golden digests: whole simulated runs, each in one number. A refactor leaves them as
they are.

python -m tests.golden.digests            prints what the runs give now, and which
                                          differ from the file
python -m tests.golden.digests --write    renews the file, where behaviour is meant
                                          to change

A digest is taken over what was decided and what came of it: spans, reports, rescales,
rounds, capacity. Sentences are for people and may be reworded; they are left out.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from coadapt.core.scheduler import Scheduler
from coadapt.model import Node
from coadapt.runtime.history import History
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.faults.fault_run import FaultRun
from coadapt.sim.faults.scenario import draw_scenario
from coadapt.sim.library.builtin import builtin_workload

FILE = Path(__file__).with_name("digests.json")
POLICIES = ("fifo", "srtf", "tiresias", "optimus", "pollux", "pollux-genetic")
# A genetic search turns on last digits where choices are nearly alike: this run differs
# between processors with and without AVX-512.
PROCESSOR_DECIDES = ("pollux-genetic", "2x8")
SHAPES = {"4x4": (4, 4), "2x8": (2, 8)}
FAULT_SEEDS = 60
NUM_JOBS = 16
SEED = 3
# Last digits of sums may differ between processors; decisions that differ show in the
# first ones.
NUM_DECIMALS = 6

# How replicas change: by a restart that costs 30 s, or in place; each with one cluster
# shape.
WAYS = {
    "restart": ExperimentConfig(rescale_s=30.0, rescales_in_place=False),
    "in-place": ExperimentConfig(
        rescale_s=5.0, rescales_in_place=True, interference=0.1
    ),
}


def cases() -> Iterator[str]:
    """Yield the name of each run."""
    for policy in POLICIES:
        for shape, way in zip(SHAPES, WAYS, strict=True):
            if (policy, shape) != PROCESSOR_DECIDES:
                yield f"{policy} {shape} {way}"
    for first in range(0, FAULT_SEEDS, 10):
        yield f"faults {first}..{first + 9}"


def digest(case: str) -> str:
    """Play the run and return its digest."""
    if case.startswith("faults "):
        first = int(case.removeprefix("faults ").partition("..")[0])
        return _hash([_fault_events(seed) for seed in range(first, first + 10)])
    policy, shape, way = case.split()
    num_nodes, gpus = SHAPES[shape]
    cluster = tuple(
        Node(id=f"node-{index}", num_gpus=gpus) for index in range(num_nodes)
    )
    workload, applications = builtin_workload(
        num_jobs=NUM_JOBS, seed=SEED, num_gpus=num_nodes * gpus
    )
    result = simulate(
        workload, applications, cluster, policy, seed=SEED, config=WAYS[way]
    )
    return _hash(_told(result.history))


def on_file() -> dict[str, str]:
    """Return the digests that hold."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def _fault_events(seed: int) -> list[object]:
    # The digests are older than hangs are.
    run = FaultRun(draw_scenario(seed, hangs=False), Scheduler, None)
    run.run()
    names = ("at", "job", "generation", "round", "outcome")
    return [
        [getattr(event, name, None) for name in names]
        for event in run.host.store.events()
    ]


def _told(history: History) -> object:
    return {
        "at": history.at,
        "capacity": history.capacity,
        "rounds": [[each.at, each.round, bool(each.error)] for each in history.rounds],
        "jobs": {
            job.id: [
                [job.submitted_at, job.usage.started_at, job.ended_at, job.state.value],
                [
                    [s.start, s.end, s.num_gpus, s.shape, s.state.value]
                    for s in job.spans
                ],
                [
                    [p.at, p.total_batch, p.efficiency, p.progress, p.step_time_s]
                    for p in job.points
                ],
                [[r.at, r.generation, r.before, r.now, r.cost_s] for r in job.rescales],
            ]
            for job in history.jobs.values()
        },
    }


def _hash(content: object) -> str:
    text = json.dumps(_rounded(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, NUM_DECIMALS)
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def main(arguments: list[str]) -> int:
    """Print, or renew, the digests; return 1 if one differs from the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.digests")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    now = {case: digest(case) for case in cases()}
    before = on_file() if FILE.exists() else {}
    differ = [case for case, value in now.items() if value != before.get(case)]
    for case, value in now.items():
        sys.stdout.write(f"{case:32} {value} {'DIFFERS' if case in differ else ''}\n")
    if given.write:
        FILE.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    return int(bool(differ) or now.keys() != before.keys())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
