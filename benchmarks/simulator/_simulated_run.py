"""One simulated run, measured from within: `python _simulated_run.py POLICY WORKLOAD`,
printed as JSON.

WORKLOAD is `builtin` (160 jobs on 64 GPUs), `rigid:JOBS` (a day of jobs that keep the
GPUs which they asked for; 6,500 GPUs for 20,000 jobs), or `rigid:JOBS:SECONDS`, the
same with so many seconds between a job's reports. The first two are run by the Python
of another version's checkout, too.
"""

import json
import os
import random
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from coadapt.model import BatchLimits, JobSpec, Node, ReplicaLimits, RescaleContract
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.workload import TraceJob, Workload

try:
    from coadapt.sim.library.builtin import builtin_workload
    from coadapt.sim.library.profiles import BUILTIN_APPLICATIONS
except ModuleNotFoundError:  # before the library had a folder
    from coadapt.sim.builtin import builtin_workload  # type: ignore[no-redef,import-not-found]
    from coadapt.sim.profiles import BUILTIN_APPLICATIONS  # type: ignore[no-redef,import-not-found]

DAY_S = 86_400
GPUS_PER_NODE = 10
JOBS_PER_NODE = 20_000 / 650
SMALL = ("resnet18-cifar10", "neumf-movielens")
REQUESTS = (1, 1, 1, 1, 2, 4, 8)


def rigid_workload(num_jobs: int) -> Workload:
    """Return `num_jobs` jobs of about 40 minutes that are never rescaled, spread over a
    day.
    """
    draw = random.Random(0)
    jobs = []
    for index in range(num_jobs):
        application = BUILTIN_APPLICATIONS[draw.choices(SMALL, weights=(6, 4))[0]]
        gpus = draw.choice(REQUESTS)
        known = application.limits
        batch = BatchLimits(
            initial=known.initial,
            requested=known.initial * gpus,
            max_total=known.max_total,
            min_atomic=known.min_atomic,
            max_atomic=known.max_atomic,
        )
        spec = JobSpec(
            name=f"job {index}",
            application=application.name,
            batch=batch,
            replicas=ReplicaLimits(min=gpus, max=gpus, requested=gpus),
            contract=RescaleContract.FIXED,
        )
        at = float(draw.randrange(DAY_S))
        jobs.append(
            TraceJob(id=f"{index:06}", at=at, application=application.name, spec=spec)
        )
    jobs.sort(key=lambda job: (job.at, job.id))
    return Workload(name=f"rigid:{num_jobs}", jobs=tuple(jobs))


def main(policy: str, what: str) -> None:
    begun_s = time.process_time()
    if what == "builtin":
        workload, applications = builtin_workload(num_jobs=160, num_gpus=64)
        cluster = tuple(Node(id=f"node-{index:02}", num_gpus=4) for index in range(16))
    else:
        num_jobs = int(what.split(":")[1])
        workload = rigid_workload(num_jobs)
        applications = dict(BUILTIN_APPLICATIONS)
        num_nodes = max(round(num_jobs / JOBS_PER_NODE), 1)
        cluster = tuple(
            Node(id=f"node-{index:03}", num_gpus=GPUS_PER_NODE)
            for index in range(num_nodes)
        )
    options = (
        {"figures_only": True} if hasattr(ExperimentConfig, "figures_only") else {}
    )
    if what.count(":") > 1:
        options["report_s"] = float(what.split(":")[2])
    result = simulate(
        workload, applications, cluster, policy, config=ExperimentConfig(**options)
    )
    figures = {
        "cpu_s": time.process_time() - begun_s,
        "peak_rss_mb": result.peak_rss_mb,
        "jct_mean_s": result.metrics.jct_mean_s,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
