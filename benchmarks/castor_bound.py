"""What no schedule of a workload can go below in mean completion time, whatever it knows: a bound by prices.

`python -m benchmarks.castor_bound --traces DIR` (the folder with osdi21/; or $COADAPT_TRACES) bounds the
OSDI'21 workloads 1, 2, 3 and 6 on 16 x 4 GPUs, and tells the bounds over what pollux and castor reach there
(benchmarks/results/castor.json). docs/policies/castor.md has the proof.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.castor import CLUSTER, NAMED, Bench
from benchmarks.castor import RESULTS as RUNS
from coadapt.goodput.compiled import compiled, compiled_part
from coadapt.goodput.efficiency import gain
from coadapt.model import JobSpec, RescaleContract
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.fluid.crowd import majorants
from coadapt.sim.agent import kept_batch, within_memory
from coadapt.sim.applications import Application, UnmeasuredError, packed, step_s
from coadapt.sim.workload import Workload

RESULTS = Path(__file__).parent / "results" / "castor_bound.json"
TOTALS = (
    300  # geometric batches; a batch between two of them counts as the larger, and as fast as the fastest
)
PHASES, REFERENCE = 16, 8  # of a job at most; GPUs by whose speed its epochs are made alike
ENDS, BETWEEN = 28, 16  # prices by which values of work are tried: at a job's end, and on its way
WIDTH_S = 300.0  # for which a price stays
STEPS = 30  # of the search for prices
FIRST_PRICE, PRICE_MIN = 0.02, 1e-4  # of a GPU-second, in seconds of completion time
ROUNDING_S = 0.5  # by which an epoch may end sooner: a simulated one takes whole seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster of equal nodes, and what a job cannot be spared: the next round, and its start. Seconds."""

    num_gpus: int
    node_gpus: int
    round_s: float = 60.0
    rescale_s: float = 30.0


class Jobs(NamedTuple):
    """starts_J: training begins no sooner, s. kind_J: what each trains. Kinds have phases, one after another,
    first_T where each begins; a phase has work_B, and corners of concave goodput over GPUs, from first_B on.
    """

    starts_J: FloatArray
    kind_J: IntArray
    first_T: IntArray
    work_B: FloatArray
    first_B: IntArray
    gpus_V: FloatArray
    goodput_V: FloatArray


def epochs_of(application: Application, spec: JobSpec, setting: Setting) -> tuple[FloatArray, FloatArray]:
    """Return the progress of each epoch, and the most progress per second in it, (epochs, GPUs from 1 on).

    As measured, on as few nodes as can be, with any batch that the job may have.
    """
    limits = spec.batch
    most = min(spec.replicas.max, setting.num_gpus)
    num_epochs = application.num_epochs
    work_E = np.diff([application.progress_at(epoch) for epoch in range(num_epochs + 1)])
    rate_EK = np.zeros((num_epochs, most))
    if spec.contract is not RescaleContract.ADAPTIVE:
        for count in range(1, min(most, limits.requested // limits.min_atomic) + 1):
            batch = kept_batch(limits, count)
            rate_EK[:, count - 1] = _gains(application, batch.total, limits.initial) / step_s(
                application, packed(count, setting.node_gpus), batch
            )
        return work_E, rate_EK
    totals = np.geomspace(limits.initial, limits.max_total, TOTALS)
    gain_ME = np.array(
        [_gains(application, _whole(total, limits.max_total), limits.initial) for total in totals]
    )
    for count in range(max(spec.replicas.min, 1), most + 1):
        fastest_M = _fastest(application, spec, setting, count, totals)
        rate_EK[:, count - 1] = (gain_ME[1:] / fastest_M[:, None]).max(axis=0)
    return work_E, rate_EK


def _whole(total: float, most: int) -> int:
    return min(math.ceil(total - 1e-6), most)


def _gains(application: Application, total: int, initial: int) -> FloatArray:
    """Return the progress of a step of `total` samples in each epoch."""
    grads = [application.grad_stats(total, epoch) for epoch in range(application.num_epochs)]
    return np.array([gain(total / initial, grad.sqr, grad.var) for grad in grads])


def _fastest(
    application: Application, spec: JobSpec, setting: Setting, count: int, totals: FloatArray
) -> FloatArray:
    """Return the least seconds of a step between each two of `totals`, infinity where no batch is."""
    where = packed(count, setting.node_gpus)
    limits = within_memory(spec.batch, application, where)
    fastest_M = np.full(len(totals) - 1, np.inf)
    for atomic in range(limits.min_atomic, (limits.max_atomic or limits.max_total) + 1):
        try:
            whole_s, sync_s = application.step_time(where, atomic)
        except UnmeasuredError:
            continue
        passes = np.arange(1, (limits.max_total // (count * atomic) if limits.accumulation else 1) + 1)
        total_A = count * atomic * passes
        passes, total_A = passes[total_A >= limits.initial], total_A[total_A >= limits.initial]
        keep = total_A <= limits.max_total
        place_A = np.clip(np.searchsorted(totals, total_A[keep], side="right") - 1, 0, len(fastest_M) - 1)
        np.minimum.at(fastest_M, place_A, whole_s + (passes[keep] - 1) * (whole_s - sync_s))
    return fastest_M


def phases_of(work_E: FloatArray, rate_EK: FloatArray) -> list[tuple[float, FloatArray, FloatArray]]:
    """Return the job in few phases: seconds of work at the reference, and corners of goodput over GPUs.

    G being the goodput, G(e, k) <= G(e, ref) max_e' G(e', k) / G(e', ref), e' of the same phase: a job that
    does its seconds at that maximum is no slower than the true one. It is about as fast, as epochs of a phase
    scale about alike.
    """
    with np.errstate(divide="ignore"):
        rate_EK = work_E[:, None] / np.maximum(work_E[:, None] / rate_EK - ROUNDING_S, 1e-9)
    may_K = np.flatnonzero((rate_EK > 0.0).all(axis=0))
    seconds_E = work_E / rate_EK[:, may_K[min(int(np.searchsorted(may_K, REFERENCE - 1)), len(may_K) - 1)]]
    share_E = (np.cumsum(seconds_E) - 0.5 * seconds_E) / seconds_E.sum()
    phase_E = np.minimum((share_E * PHASES).astype(np.int64), PHASES - 1)
    found = []
    for phase in np.unique(phase_E):
        mine = phase_E == phase
        alike_K = (rate_EK[mine] * (seconds_E / work_E)[mine, None]).max(axis=0)
        curve = majorants(alike_K[None, :], np.arange(1.0, len(alike_K) + 1.0))
        found.append((float(seconds_E[mine].sum()), curve.gpus_V, curve.goodput_V))
    return found


def jobs_of(workload: Workload, applications: Mapping[str, Application], setting: Setting) -> Jobs:
    """Return the jobs of a workload as the bound takes them."""
    kinds: dict[tuple[str, JobSpec], int] = {}
    phases: list[list[tuple[float, FloatArray, FloatArray]]] = []
    starts, kind_J = [], []
    for job in workload.jobs:
        limits = job.spec.batch
        if job.spec.adaptive:  # it is not kept to what its user asked for
            limits = replace(limits, requested=limits.initial)
        alike = replace(job.spec, name="any", tenant="any", launch=None, batch=limits)
        alike = replace(alike, replicas=replace(alike.replicas, requested=alike.replicas.min))
        key = (job.application, alike)
        if key not in kinds:
            kinds[key] = len(phases)
            phases.append(phases_of(*epochs_of(applications[job.application], alike, setting)))
        begins = max(math.ceil(job.at / setting.round_s), 1) * setting.round_s if setting.round_s else job.at
        starts.append(begins + (setting.rescale_s if job.rescale_s is None else job.rescale_s))
        kind_J.append(kinds[key])
    every = [phase for each in phases for phase in each]
    return Jobs(
        np.array(starts),
        np.array(kind_J),
        np.cumsum([0, *(len(each) for each in phases)]),
        np.array([work for work, _, _ in every]),
        np.cumsum([0, *(len(gpus) for _, gpus, _ in every)]),
        np.concatenate([gpus for _, gpus, _ in every]),
        np.concatenate([goodput for _, _, goodput in every]),
    )


@compiled_part
def _earns(jobs: Jobs, b: int, value: float, price: float) -> tuple[float, float]:
    """Return max_k (value G(k) - price k) in phase b, at least 0, and that k."""
    most, at = 0.0, 0.0
    for p in range(jobs.first_B[b], jobs.first_B[b + 1]):
        net = value * jobs.goodput_V[p] - price * jobs.gpus_V[p]
        if net > most:
            most, at = net, jobs.gpus_V[p]
    return most, at


@compiled_part
def _worth(jobs: Jobs, b: int, earns: float, price: float) -> float:
    """Return the value of work in phase b at which it earns so much: min_k (earns + price k) / G(k)."""
    least = np.inf
    for p in range(jobs.first_B[b], jobs.first_B[b + 1]):
        least = min(least, (earns + price * jobs.gpus_V[p]) / jobs.goodput_V[p])
    return least


@compiled_part
def _tried(jobs: Jobs, kind: int, highest: float) -> FloatArray:
    """Return values of a unit of work per phase that are tried, (tries, phases). The first: GPUs are free.

    As along an optimum: the last phase is worth its end at one price, and the others what lets them earn, at
    another price, as much as it does.
    """
    first, many = jobs.first_T[kind], jobs.first_T[kind + 1] - jobs.first_T[kind]
    value_FB = np.empty((1 + ENDS * BETWEEN, many))
    for b in range(many):
        value_FB[0, b] = _worth(jobs, first + b, 1.0, 0.0)
    for end in range(ENDS):
        at_end = highest * (end / (ENDS - 1)) ** 2
        last = _worth(jobs, first + many - 1, 1.0, at_end)
        for between in range(BETWEEN):
            price = highest * (between / (BETWEEN - 1)) ** 2
            earns = _earns(jobs, first + many - 1, last, price)[0]
            for b in range(many):
                value_FB[1 + end * BETWEEN + between, b] = _worth(jobs, first + b, earns, price)
            value_FB[1 + end * BETWEEN + between, many - 1] = last
    return value_FB


@compiled_part
def _slopes(jobs: Jobs, kind: int, value_FB: FloatArray, price_I: FloatArray) -> FloatArray:
    """Return 1 - max_k (v G - price k): what a second adds to L in each try, interval and phase."""
    num_tries, many = value_FB.shape
    slope_FIB = np.empty((num_tries, len(price_I), many))
    for f in range(num_tries):
        for i in range(len(price_I)):
            for b in range(many):
                slope_FIB[f, i, b] = 1.0 - _earns(jobs, jobs.first_T[kind] + b, value_FB[f, b], price_I[i])[0]
    return slope_FIB


@compiled_part
def _prove(start: float, value: float, slope_IB: FloatArray, width_s: float, low_I: FloatArray) -> float:
    """Write into low_I the least of L over ends within each interval, in one try; return that at the last.

    L is linear in the instants at which phases end while the price stays, so its least is where these are at
    borders of intervals: at_B is the least up to a border, with phase b under way.
    """
    num_intervals, many = slope_IB.shape
    at_B = np.full(many, value)
    for i in range(min(int(start / width_s), num_intervals), num_intervals):
        seconds = (i + 1) * width_s - max(i * width_s, start)
        low_I[i] = at_B[many - 1]
        for b in range(many):
            at_B[b] += seconds * slope_IB[i, b]
        for b in range(1, many):
            at_B[b] = min(at_B[b], at_B[b - 1])
        low_I[i] = min(low_I[i], at_B[many - 1])
    return float(at_B[many - 1])


@compiled_part
def _use(
    jobs: Jobs, j: int, value_B: FloatArray, prices: tuple[FloatArray, float, int], used_I: FloatArray
) -> None:
    """Add to used_I the GPUs of job j, where it goes the way of the least L in one try, to an end in interval
    `end`.
    """
    price_I, width_s, end = prices
    first, many, start = jobs.first_T[jobs.kind_J[j]], len(value_B), jobs.starts_J[j]
    begin, end = int(start / width_s), min(end, len(price_I) - 1)
    came_IB = np.zeros((len(price_I) + 1, many), np.int64)  # the phase under way before, where it is least
    at_B = np.zeros(many)
    for i in range(begin, end + 1):
        seconds = (i + 1) * width_s - max(i * width_s, start)
        for b in range(many):
            came_IB[i, b] = b
            at_B[b] += seconds * (1.0 - _earns(jobs, first + b, value_B[b], price_I[i])[0])
            if b and at_B[b - 1] < at_B[b]:
                at_B[b], came_IB[i, b] = at_B[b - 1], came_IB[i, b - 1]
    b = many - 1
    for i in range(end, begin - 1, -1):
        b = came_IB[i, b]
        share = (i + 1) - max(float(i), start / width_s)
        used_I[i] += (0.5 if i == end else 1.0) * share * _earns(jobs, first + b, value_B[b], price_I[i])[1]


@compiled
def bound(jobs: Jobs, price_I: FloatArray, width_s: float, num_gpus: float) -> tuple[float, FloatArray]:
    """Return what completion times from the starts on sum to at least, s, and about how many GPUs are used.

    Whatever the prices >= 0 of a GPU-second in each interval; it is free beyond them.
    """
    used_I, total = np.zeros(len(price_I)), -num_gpus * width_s * price_I.sum()
    for kind in range(len(jobs.first_T) - 1):
        value_FB = _tried(jobs, kind, price_I.max())
        slope_FIB = _slopes(jobs, kind, value_FB, price_I)
        work_B = jobs.work_B[jobs.first_T[kind] : jobs.first_T[kind + 1]]
        low_I = np.empty(len(price_I))
        for j in range(len(jobs.kind_J)):
            if jobs.kind_J[j] != kind:
                continue
            most_I, by_I = np.full(len(price_I) + 1, -np.inf), np.zeros(len(price_I) + 1, np.int64)
            for f in range(len(value_FB)):
                low_I[:] = -np.inf
                last = _prove(jobs.starts_J[j], (value_FB[f] * work_B).sum(), slope_FIB[f], width_s, low_I)
                for i in range(len(price_I)):
                    if low_I[i] > most_I[i]:
                        most_I[i], by_I[i] = low_I[i], f
                if f == 0:  # of the others L falls for ever where GPUs are free
                    most_I[-1] = last
            begin = min(int(jobs.starts_J[j] / width_s), len(price_I))
            end = begin + np.argmin(most_I[begin:])
            total += most_I[end]
            _use(jobs, j, value_FB[by_I[end]], (price_I, width_s, end), used_I)
    return total, used_I


def search(jobs: Jobs, num_gpus: int, horizon_s: float, steps: int = STEPS) -> tuple[float, FloatArray]:
    """Return the best bound found, and its prices: up where more GPUs are used than there are, else down."""
    price_I = np.full(max(math.ceil(horizon_s / WIDTH_S), 1), FIRST_PRICE)
    best, best_I, mean_I = -math.inf, price_I, np.zeros_like(price_I)
    for step in range(steps):
        proven, used_I = bound(jobs, price_I, WIDTH_S, float(num_gpus))
        tried_I, mean_I = price_I, 0.9 * mean_I + 0.1 * price_I
        if step % 10 == 9:  # prices go to and fro: what they are in the mean is better
            again_I = mean_I / (1.0 - 0.9 ** (step + 1))
            again, _ = bound(jobs, again_I, WIDTH_S, float(num_gpus))
            if again > proven:
                proven, tried_I = again, again_I
        if proven > best:
            best, best_I = proven, tried_I
        pull_I = np.clip(used_I / num_gpus - 1.0, -1.0, 1.5)
        price_I = np.maximum(price_I * np.exp(0.5 / (1.0 + step / 15) * pull_I), PRICE_MIN)
    return best, best_I


def bounded(
    workload: Workload, applications: Mapping[str, Application], setting: Setting, horizon_s: float
) -> float:
    """Return a mean completion time, s, that no schedule of the workload is below."""
    jobs = jobs_of(workload, applications, setting)
    waits_s = float(jobs.starts_J.sum()) - sum(job.at for job in workload.jobs)
    free, _ = bound(jobs, np.zeros(1), WIDTH_S, float(setting.num_gpus))
    best, _ = search(jobs, setting.num_gpus, horizon_s)
    return (max(best, free) + waits_s) / len(workload.jobs)


def main(argv: list[str] | None = None) -> None:
    """Bound the workloads, print and store what is found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--only", action="append", choices=NAMED)
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "osdi21").is_dir():
        parser.error("--traces or COADAPT_TRACES must name the folder that holds osdi21")
    bench = Bench(Path(options.traces), json.loads(RUNS.read_text(encoding="utf-8"))["runs"])
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in options.only or NAMED:
        workload, applications = bench.load(name)
        pollux = bench.run(name, "pollux")
        setting = Setting(num_gpus=sum(node.num_gpus for node in CLUSTER), node_gpus=4)
        began_s = time.process_time()
        least_s = bounded(workload, applications, setting, pollux["makespan"])
        stored[name] = {
            "bound_s": round(least_s, 1),
            "over pollux": round(least_s / pollux["jct"], 3),
            "over castor": round(least_s / bench.run(name, "castor")["jct"], 3),
            "cpu_s": round(time.process_time() - began_s, 1),
        }
        RESULTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(name, stored[name], flush=True)


if __name__ == "__main__":
    main()
