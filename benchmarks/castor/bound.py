"""What no schedule of a workload can go below in mean completion time, whatever it
knows: a bound by prices.

`python -m benchmarks.castor.bound --traces DIR` (the folder with osdi21/; or
$COADAPT_TRACES) bounds the OSDI'21 workloads 1, 2, 3 and 6 on 16 x 4 GPUs, and tells
the bounds over what pollux and castor reach there (benchmarks/results/castor.json);
`--in-place`: with starts of 0.3 s, over castor that rescales in place. Some ten
minutes. docs/policies/castor.md has the proof.
"""

import argparse
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.castor.epochs import REFERENCE, Setting, epochs_of
from benchmarks.castor.gap import clairvoyant
from benchmarks.castor.job_at_prices import (
    Phase,
    add_used,
    from_starts,
    job_of,
    price_out,
    room_of,
)
from benchmarks.castor.osdi21 import CLUSTER, IN_PLACE_S, NAMED, Bench
from benchmarks.castor.osdi21 import RESULTS as RUNS
from benchmarks.stored import load_results, store_results
from coadapt.model import JobSpec
from coadapt.policies.solvers.arrays import FloatArray, IntArray
from coadapt.policies.solvers.concave_envelope import envelopes
from coadapt.sim.applications import Application
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parents[1] / "results" / "castor_bound.json"
PHASES = 32  # of a job at most
WIDTH_S = 120.0  # for which a price stays
STEPS = 40  # of the search for prices
MEAN_ALONE = 0.0, 0.0  # dials of the plan that is shown beside: makespan_jobs, tail
# of a GPU-second, in seconds of completion time
FIRST_PRICE = 0.02
PRICE_MIN = 1e-4
ROUNDING_S = (
    0.5  # by which an epoch may end sooner: a simulated one takes whole seconds
)


class Jobs(NamedTuple):
    """starts_J: training begins no sooner, s. kind_J: which of `kinds` each is. A kind
    is its phases.
    """

    starts_J: FloatArray
    kind_J: IntArray
    kinds: list[list[Phase]]


def in_parts(
    work_E: FloatArray, rate_EO: FloatArray, reference: int, num_parts: int
) -> tuple[FloatArray, FloatArray]:
    """Return the job in few parts: seconds of work on option `reference`, (parts,), and
    how many of them a second on each option does, (parts, options).

    G being the goodput, G(e, o) <= G(e, ref) max_e' G(e', o) / G(e', ref), e' of the
    same part: a job that does its seconds at that maximum is no slower than the true
    one. It is about as fast, as epochs of a part scale about alike.
    """
    with np.errstate(divide="ignore"):
        rate_EO = work_E[:, None] / np.maximum(
            work_E[:, None] / rate_EO - ROUNDING_S, 1e-9
        )
    seconds_E = work_E / rate_EO[:, reference]
    share_E = (np.cumsum(seconds_E) - 0.5 * seconds_E) / seconds_E.sum()
    part_E = np.minimum((share_E * num_parts).astype(np.int64), num_parts - 1)
    alike_EO = rate_EO * (seconds_E / work_E)[:, None]
    parts = [part_E == part for part in np.unique(part_E)]
    return np.array([seconds_E[mine].sum() for mine in parts]), np.array(
        [alike_EO[mine].max(axis=0) for mine in parts]
    )


def phases_of(work_E: FloatArray, rate_EK: FloatArray) -> list[Phase]:
    """Return the job as few parts, with the corners of what they do over GPUs."""
    may_K = np.flatnonzero((rate_EK > 0.0).all(axis=0))
    reference = int(
        may_K[min(int(np.searchsorted(may_K, REFERENCE - 1)), len(may_K) - 1)]
    )
    found = []
    gpus_K = np.arange(1.0, rate_EK.shape[1] + 1.0)
    for seconds, rate_K in zip(
        *in_parts(work_E, rate_EK, reference, PHASES), strict=True
    ):
        curve = envelopes(rate_K[None, :], gpus_K)
        found.append(Phase(float(seconds), curve.gpus_V, curve.goodput_V))
    return found


def alike(spec: JobSpec) -> JobSpec:
    """Return a spec that jobs have in common that a bound takes for one another."""
    limits = spec.batch
    if spec.adaptive:  # it is not kept to what its user asked for
        limits = replace(limits, requested=limits.initial)
    replicas = replace(spec.replicas, requested=spec.replicas.min)
    return replace(
        spec, name="any", tenant="any", launch=None, batch=limits, replicas=replicas
    )


def jobs_of(
    workload: Workload, applications: Mapping[str, Application], setting: Setting
) -> Jobs:
    """Return the jobs of a workload as the bound takes them."""
    kinds: dict[tuple[str, JobSpec], int] = {}
    phases: list[list[Phase]] = []
    starts = []
    kind_J = []
    for job in workload.jobs:
        key = job.application, alike(job.spec)
        if key not in kinds:
            kinds[key] = len(phases)
            phases.append(
                phases_of(*epochs_of(applications[job.application], key[1], setting))
            )
        starts.append(
            job.at + (setting.rescale_s if job.rescale_s is None else job.rescale_s)
        )
        kind_J.append(kinds[key])
    return Jobs(np.array(starts), np.array(kind_J), phases)


class Dual:
    """What all jobs cost at given prices, at least. horizon_s: until when there are
    prices.
    """

    def __init__(self, jobs: Jobs, num_gpus: int, horizon_s: float) -> None:
        self.num_gpus = num_gpus
        self.num_intervals = max(math.ceil(horizon_s / WIDTH_S), 1)
        self._start_J = [
            jobs.starts_J[jobs.kind_J == kind] for kind in range(len(jobs.kinds))
        ]
        self._kinds = [job_of(phases, WIDTH_S) for phases in jobs.kinds]
        self._rooms = [room_of(job, self.num_intervals) for job in self._kinds]

    def __call__(self, price_I: FloatArray) -> tuple[float, FloatArray]:
        """Return what completion times from the starts on sum to at least, s, and about
        how many GPUs are used. price_I: of a GPU-second in each interval, whatever it
        is, but >= 0; free beyond.
        """
        used_I = np.zeros(self.num_intervals)
        total = -self.num_gpus * WIDTH_S * float(price_I.sum())
        for job, start_J, room in zip(
            self._kinds, self._start_J, self._rooms, strict=True
        ):
            price_out(job, price_I, room)
            total += float(from_starts(job, start_J, price_I, room).sum())
            add_used(job, start_J, room, used_I)
        return total, used_I


def search(dual: Dual, steps: int = STEPS) -> tuple[float, FloatArray]:
    """Return the best bound found, and its prices: up where more GPUs are used than
    there are, else down.
    """
    price_I = np.full(dual.num_intervals, FIRST_PRICE)
    best = -math.inf
    best_I = price_I
    mean_I = np.zeros_like(price_I)
    for step in range(steps):
        proven, used_I = dual(price_I)
        tried_I = price_I
        mean_I = 0.9 * mean_I + 0.1 * price_I
        if step % 10 == 9:  # prices go to and fro: what they are in the mean is better
            again_I = mean_I / (1.0 - 0.9 ** (step + 1))
            again, _ = dual(again_I)
            if again > proven:
                proven = again
                tried_I = again_I
        if proven > best:
            best = proven
            best_I = tried_I
        pull_I = np.clip(used_I / dual.num_gpus - 1.0, -1.0, 1.5)
        price_I = np.maximum(
            price_I * np.exp(0.5 / (1.0 + step / 15) * pull_I), PRICE_MIN
        )
    return best, best_I


def bounded(
    workload: Workload,
    applications: Mapping[str, Application],
    setting: Setting,
    horizon_s: float,
) -> float:
    """Return a mean completion time, s, that no schedule of the workload is below."""
    jobs = jobs_of(workload, applications, setting)
    waits_s = float(jobs.starts_J.sum()) - sum(job.at for job in workload.jobs)
    dual = Dual(jobs, setting.num_gpus, horizon_s)
    free, _ = dual(np.zeros(dual.num_intervals))
    best, _ = search(dual)
    return (max(best, free) + waits_s) / len(workload.jobs)


def main(argv: list[str] | None = None) -> None:
    """Bound the workloads, print and store what is found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--only", action="append", choices=NAMED)
    parser.add_argument(
        "--in-place", action="store_true", help="with starts and rescales in place"
    )
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error(
            "--traces or COADAPT_TRACES must name the folder that holds osdi21"
        )
    bench = Bench(Path(options.traces), load_results(RUNS)["runs"])
    stored = load_results(RESULTS)
    kind, rescale_s, reaction_s = (
        (", in place", IN_PLACE_S, 0.0) if options.in_place else ("", 30.0, None)
    )
    for name in options.only or NAMED:
        workload, applications = bench.load(name)
        pollux = bench.run(name, "pollux")
        num_gpus = sum(node.num_gpus for node in CLUSTER)
        setting = Setting(num_gpus=num_gpus, node_gpus=4, rescale_s=rescale_s)
        fluid = clairvoyant(workload, applications, MEAN_ALONE, pollux["jct"])
        began_s = time.process_time()
        least_s = bounded(workload, applications, setting, pollux["makespan"])
        stored[name + kind] = {
            "bound_s": round(least_s, 1),
            "over pollux": round(least_s / pollux["jct"], 3),
            "best plan of the fluid over pollux": round(
                fluid["jct"] / pollux["jct"], 3
            ),
            "over castor": round(
                least_s / bench.run(name, "castor", rescale_s, reaction_s)["jct"], 3
            ),
            "cpu_s": round(time.process_time() - began_s, 1),
        }
        store_results(RESULTS, stored)
        print(name + kind, stored[name + kind], flush=True)


if __name__ == "__main__":
    main()
