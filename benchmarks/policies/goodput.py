"""What choosing a batch costs: for one job on one placement, and for all jobs of a
round at once.

`python -m benchmarks.policies.goodput` prints the median CPU time of `best_batch` and
of `goodput_table` for jobs with the limits of Pollux's six applications and random step
times (`own_limits`: each job has limits of its own).
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable

from coadapt.goodput.goodput import best_batch
from coadapt.goodput.table import goodput_table
from coadapt.goodput.throughput import packed_placement
from coadapt.model import (
    BatchLimits,
    GradStats,
    JobSpec,
    JobView,
    Measured,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)

# initial, max_total, min_atomic, max_atomic of Pollux's applications (OSDI'21 artifact)
LIMITS = (
    (12, 384, 4, 12),
    (128, 4096, 32, 1024),
    (20, 640, 10, 80),
    (200, 12800, 20, 200),
    (256, 32768, 32, 32768),
    (8, 512, 4, 8),
)
GPUS_PER_NODE = 4
CLUSTERS = ((64, 160), (1024, 400))  # GPUs, jobs
NUM_CONFIGS_MAX = 100
NUM_REPEATS = 30


def main(argv: list[str] | None = None) -> None:
    """Measure, and print one line per figure or (`--json`) one object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    figures = {"best_batch_us": 1e3 * measure_best_batch()}
    for num_gpus, num_jobs in CLUSTERS:
        for own_limits in (False, True):
            name = f"table_ms_{num_gpus}_gpus_{num_jobs}_jobs{'_own_limits' if own_limits else ''}"
            figures[name] = measure_table(num_gpus, num_jobs, own_limits)
    if options.json:
        print(json.dumps({"python": platform.python_version(), **figures}, indent=2))
    else:
        print("\n".join(f"{name:<42}{value:8.2f}" for name, value in figures.items()))


def measure_best_batch() -> float:
    """Return milliseconds of one call."""
    rng = random.Random(0)
    jobs = [_job(number, rng, own_limits=False) for number in range(50)]
    placements = [
        packed_placement(num_replicas, GPUS_PER_NODE)
        for num_replicas in (1, 2, 4, 7, 16)
    ]

    def choose() -> None:
        for job in jobs:
            assert job.measured.grad is not None
            for placement in placements:
                best_batch(
                    job.spec.batch,
                    job.measured.by_type["gpu"].params,
                    job.measured.grad,
                    placement,
                )

    return _median_ms(choose) / (len(jobs) * len(placements))


def measure_table(num_gpus: int, num_jobs: int, own_limits: bool) -> float:
    """Return milliseconds of one table: one node up to its GPUs, several nodes up to
    100 configurations.
    """
    rng = random.Random(1)
    jobs = [_job(number, rng, own_limits) for number in range(num_jobs)]
    one_node = list(range(1, GPUS_PER_NODE + 1))
    several = list(range(2, num_gpus + 1))[: NUM_CONFIGS_MAX - len(one_node)]
    num_nodes = [1] * len(one_node) + [2] * len(several)
    return _median_ms(
        lambda: goodput_table(jobs, num_nodes, one_node + several, gpu_type="gpu")
    )


def _job(number: int, rng: random.Random, own_limits: bool) -> JobView:
    initial, max_total, min_atomic, max_atomic = rng.choice(LIMITS)
    limits = BatchLimits(
        initial=initial,
        max_total=max_total + (number if own_limits else 0),
        min_atomic=min_atomic,
        max_atomic=max_atomic,
    )
    params = ThroughputParams(
        alpha_c=0.1 * rng.random(),
        beta_c=0.002 * rng.random(),
        alpha_r=0.05 * rng.random(),
        beta_r=0.01 * rng.random(),
        alpha_n=0.1 * rng.random(),
        beta_n=0.01 * rng.random(),
        gamma=1.0 + 3.0 * rng.random(),
    )
    return JobView(
        id=str(number),
        spec=JobSpec(name=str(number), batch=limits, contract=RescaleContract.ADAPTIVE),
        submitted_at=0.0,
        measured=Measured(
            by_type={"gpu": TypeProfile(params=params)},
            grad=GradStats(sqr=rng.random(), var=10.0 * rng.random()),
        ),
    )


def _median_ms(call: Callable[[], object]) -> float:
    call()
    taken_s = []
    for _ in range(NUM_REPEATS):
        begun_s = time.thread_time()
        call()
        taken_s.append(time.thread_time() - begun_s)
    return 1e3 * statistics.median(taken_s)


if __name__ == "__main__":
    main()
