"""`ones` on 50 short jobs, beside the policies that its artifact compares with.

`python -m benchmarks.policies.short_jobs` simulates 50 jobs of minutes, with epochs of
seconds, that come within ten minutes on 64 GPUs: rounds of 5 s, one more a second after
an arrival or an exit, 2 s for each rescale. The artifact of ONES
(kurisusnowdeng/ones_sc21) tells of 50 jobs 214 s for ONES, 453 s for Optimus and 502 s
for Tiresias, and not what they trained. So two kinds are tried, which differ in what a
large batch costs: nothing, as ONES takes it, or what the noise scale of the built-in
applications says. Results go to benchmarks/results/short_jobs.json.
"""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.stored import store_results
from coadapt.model import BatchLimits, JobSpec, Node, ReplicaLimits, RescaleContract
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.library.profiles import (
    BUILTIN_APPLICATIONS,
    NoiseCurve,
    ParametricApplication,
)
from coadapt.sim.workload import TraceJob, Workload

RESULTS = Path(__file__).parents[1] / "results" / "short_jobs.json"
ARTIFACT_S = {"ones": 214.0, "optimus": 453.0, "tiresias": 502.0}
POLICIES = ("ones", "optimus", "tiresias", "pollux", "srtf")
SEEDS = range(5)
NUM_JOBS = 50
WITHIN_S = 600.0
NODES = tuple(Node(id=f"node-{index:02}", num_gpus=4) for index in range(16))
CONFIG = ExperimentConfig(round_s=5.0, reaction_s=1.0, rescale_s=2.0, figures_only=True)
NUM_EPOCHS = 60
EPOCH_S = (4.0, 16.0)  # on one GPU at the initial batch, drawn evenly on a log scale
REQUESTS = (1, 1, 2, 2, 4, 4, 8)
FREE = NoiseCurve(first=1e9, growth=1.0)  # of any batch here, each sample counts alike


def short(name: str, epoch_s: float, *, free: bool) -> ParametricApplication:
    """Return a built-in image classifier with epochs of so many seconds."""
    known = BUILTIN_APPLICATIONS["resnet18-cifar10"]
    step_s = known.params.alpha_c + known.params.beta_c * known.limits.initial
    samples = round(epoch_s / step_s * known.limits.initial)
    noise = FREE if free else known.noise
    return replace(
        known, name=name, num_epochs=NUM_EPOCHS, samples_per_epoch=samples, noise=noise
    )


def workload(
    seed: int, *, free: bool
) -> tuple[Workload, dict[str, ParametricApplication]]:
    """Return the jobs that `seed` draws, and what they train."""
    rng = np.random.default_rng(seed)
    jobs = []
    applications = {}
    for index, at in enumerate(np.sort(rng.integers(0, int(WITHIN_S), NUM_JOBS))):
        name = f"job-{index:02}"
        epoch_s = float(np.exp(rng.uniform(*np.log(EPOCH_S))))
        application = applications[name] = short(name, epoch_s, free=free)
        gpus = int(rng.choice(REQUESTS))
        known = application.limits
        limits = BatchLimits(
            initial=known.initial,
            requested=min(known.initial * gpus, known.max_total),
            max_total=known.max_total,
            min_atomic=known.min_atomic,
            max_atomic=known.max_atomic,
        )
        spec = JobSpec(
            name=name,
            application=name,
            batch=limits,
            replicas=ReplicaLimits(min=1, max=32, requested=gpus),
            contract=RescaleContract.ADAPTIVE,
        )
        jobs.append(TraceJob(id=name, at=float(at), application=name, spec=spec))
    return Workload(name=f"short:{seed}", jobs=tuple(jobs)), applications


def main() -> None:
    """Run, print and store mean completion times, over the seeds, and their ratios to
    that of `ones`.
    """
    result: dict[str, object] = {"artifact_s": ARTIFACT_S}
    for kind, free in (("a batch costs nothing", True), ("noise as built in", False)):
        means = {}
        for policy in POLICIES:
            each = [
                simulate(
                    *workload(seed, free=free), NODES, policy, seed=seed, config=CONFIG
                ).metrics
                for seed in SEEDS
            ]
            means[policy] = round(mean(metrics.jct_mean_s for metrics in each), 1)
        ratios = {
            policy: round(means[policy] / means["ones"], 2) for policy in POLICIES
        }
        result[kind] = {"jct_mean_s": means, "to_ones": ratios}
        print(kind, means, ratios, flush=True)
    store_results(RESULTS, result)


if __name__ == "__main__":
    main()
