"""How soon all jobs could end, whatever is known: a bound of worst ρ at a makespan, by
linear programs.

`python -m benchmarks.castor.ends --traces DIR` (the folder with sia/; default:
$COADAPT_TRACES) plays castor on the workloads of Sia's artifact, and takes from the run
when each job would have ended on its fair share (the divisor of ρ). Then it asks
which part of the GPUs any schedule needs at least in which all jobs end by that times
ρ, and by the makespan; and below which ρ none does, at castor's own makespan and at
0.95 of it. What it finds goes into benchmarks/results/castor_ends.json; some minutes
for each workload.
"""

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from benchmarks.castor.bound import alike, in_parts
from benchmarks.castor.epochs import Setting, epochs_of
from benchmarks.castor.published import SIA, SIA_CLUSTER
from benchmarks.stored import load_results, store_results
from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import JobSpec, Node
from coadapt.policies.solvers.arrays import FloatArray
from coadapt.policies.solvers.concave_envelope import envelopes
from coadapt.sim.applications import Application
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.metrics import gpus_by_type, gpus_per_node
from coadapt.sim.traces import load_trace
from coadapt.sim.workload import TraceJob

RESULTS = Path(__file__).parents[1] / "results" / "castor_ends.json"
PARTS = 4  # of a job
WIDTH_S = 300.0  # in which GPUs may be shared out in any way
MAKESPANS = (1.0, 0.95)  # of castor's own
NEAR = 0.01  # of ρ: how close to what is feasible the bound is sought


class Options(NamedTuple):
    """Where a job may train: on gpus_O GPUs of type type_O. seconds_P: what its parts
    take at the reference, its first size; rate_PO: how many of these seconds a second
    there does, at most.
    """

    type_O: list[int]
    gpus_O: FloatArray
    seconds_P: FloatArray
    rate_PO: FloatArray


def options_of(
    application: Application, spec: JobSpec, cluster: Sequence[Node]
) -> Options:
    """Return what no schedule of the job is faster than, as of in_parts; spec: as of
    alike.
    """
    rates = []
    work_E = np.empty(0)
    types = list[int]()
    gpus = list[float]()
    for number, (gpu_type, count) in enumerate(gpus_by_type(cluster).items()):
        setting = Setting(
            num_gpus=count,
            node_gpus=gpus_per_node(cluster, gpu_type),
            gpu_type=gpu_type,
        )
        work_E, rate_EK = epochs_of(application, spec, setting)
        may_K = np.flatnonzero((rate_EK > 0.0).all(axis=0))
        rates.append(rate_EK[:, may_K])
        types += [number] * len(may_K)
        gpus += (may_K + 1.0).tolist()
    seconds_P, rate_PO = in_parts(work_E, np.hstack(rates), 0, PARTS)
    type_O = np.array(types)
    gpus_O = np.array(gpus)
    corner_O = np.zeros(len(gpus_O), dtype=np.bool_)
    for number in set(types):
        mine_O = type_O == number
        corners = envelopes(
            np.ascontiguousarray(rate_PO[:, mine_O]), gpus_O[mine_O]
        ).gpus_V
        corner_O[mine_O] = np.isin(gpus_O[mine_O], corners)
    return Options(
        type_O[corner_O].tolist(), gpus_O[corner_O], seconds_P, rate_PO[:, corner_O]
    )


class _Rows:
    """A program's rows as they come, each of at most so much."""

    def __init__(self) -> None:
        self.most: list[float] = []
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []

    def new(self, most: float) -> int:
        self.most.append(most)
        return len(self.most) - 1

    def put(self, row: int, column: int, value: float) -> None:
        self.row.append(row)
        self.column.append(column)
        self.value.append(value)


def needed(
    jobs: Sequence[tuple[Options, float, float]], gpus_T: Sequence[int]
) -> float:
    """Return the least part of all GPUs, of the type that is short most, on which these
    jobs can end in time; infinity: a job cannot, even alone. jobs: options, when it may
    begin, by when it has to end, s.
    """
    rows = _Rows()
    num_intervals = math.ceil(max(end for _, _, end in jobs) / WIDTH_S)
    room_TI = [[rows.new(0.0) for _ in range(num_intervals)] for _ in gpus_T]
    column = 1  # the first is the part of the GPUs
    for gpus, room_I in zip(gpus_T, room_TI, strict=True):
        for row in room_I:
            rows.put(row, 0, -float(gpus))
    for (types, gpus_O, seconds_P, rate_PO), begin, end in jobs:
        done_P = [rows.new(-1.0) for _ in seconds_P]
        for interval in range(
            int(begin // WIDTH_S), min(math.ceil(end / WIDTH_S), num_intervals)
        ):
            open_s = min(end, (interval + 1) * WIDTH_S) - max(begin, interval * WIDTH_S)
            if open_s <= 0.0:
                continue
            time = rows.new(open_s / WIDTH_S)
            for part, seconds in enumerate(seconds_P.tolist()):
                for option, of_type in enumerate(types):
                    rows.put(time, column, 1.0)
                    rows.put(
                        done_P[part], column, -rate_PO[part, option] * WIDTH_S / seconds
                    )
                    rows.put(room_TI[of_type][interval], column, float(gpus_O[option]))
                    column += 1
    matrix = sparse.csr_matrix(
        (rows.value, (rows.row, rows.column)), shape=(len(rows.most), column)
    )
    cost = np.zeros(column)
    cost[0] = 1.0
    found = linprog(cost, A_ub=matrix, b_ub=np.array(rows.most), method="highs-ipm")
    if found.status not in (0, 2):
        raise RuntimeError(
            f"the program of {column} columns was not solved: {found.message}"
        )
    return float(found.fun) if found.status == 0 else math.inf


class Bound(NamedTuple):
    """Jobs by options, arrival, first instant of training, and time on the fair share,
    s.
    """

    options: list[Options]
    at_J: FloatArray
    begin_J: FloatArray
    fair_s_J: FloatArray
    gpus_T: list[int]

    def needed(self, rho: float, makespan_s: float) -> float:
        """Return what `needed` is where all end by ρ times their fair time, and by the
        makespan.
        """
        end_J = np.minimum(self.at_J + rho * self.fair_s_J, makespan_s)
        if (end_J <= self.begin_J).any():
            return math.inf
        jobs = zip(self.options, self.begin_J.tolist(), end_J.tolist(), strict=True)
        return needed(list(jobs), self.gpus_T)

    def least_rho(self, above: float, makespan_s: float) -> float:
        """Return a ρ at which more than all GPUs are needed, NEAR to one where not.
        above: such a one.
        """
        below = 0.0
        while above - below > NEAR:
            middle = 0.5 * (below + above)
            below, above = (
                (middle, above)
                if self.needed(middle, makespan_s) > 1.0
                else (below, middle)
            )
        return below


def bound_of(
    jobs: Sequence[TraceJob],
    applications: Mapping[str, Application],
    cluster: Sequence[Node],
    fair_s: Mapping[str, float],
    rescale_s: float,
) -> Bound:
    """Return the bound of these jobs, whose times on their fair shares are fair_s.
    rescale_s: where they name none.
    """
    kinds: dict[tuple[str, JobSpec], Options] = {}
    options = []
    for job in jobs:
        key = job.application, alike(job.spec)
        if key not in kinds:
            kinds[key] = options_of(applications[job.application], key[1], cluster)
        options.append(kinds[key])
    at_J = np.array([job.at for job in jobs])
    start_J = np.array(
        [rescale_s if job.rescale_s is None else job.rescale_s for job in jobs]
    )
    fair_s_J = np.array([fair_s[job.id] for job in jobs])
    return Bound(
        options, at_J, at_J + start_J, fair_s_J, list(gpus_by_type(cluster).values())
    )


def main(argv: list[str] | None = None) -> None:
    """Bound the workloads, print and store what is found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=os.environ.get("COADAPT_TRACES"))
    parser.add_argument("--only", action="append", choices=SIA)
    options = parser.parse_args(argv)
    if options.traces is None or not Path(options.traces, "sia").is_dir():
        parser.error("--traces or COADAPT_TRACES must name the folder that holds sia")
    sia = Path(options.traces, "sia")
    cluster = parse_cluster(SIA_CLUSTER)
    stored = load_results(RESULTS)
    for name in options.only or SIA:
        source, number = name.split("/")
        workload, applications = load_trace(
            sia / "workloads" / source / f"workload-{number}.csv", sia / "traces"
        )
        config = ExperimentConfig(figures_only=True)
        run = simulate(workload, applications, cluster, "castor", config=config)
        fair_s = {job.id: job.jct_s / job.rho for job in run.jobs}
        bound = bound_of(workload.jobs, applications, cluster, fair_s, config.rescale_s)
        rho = run.metrics.rho_max
        makespan_s = run.metrics.makespan_s
        stored[name] = {
            "castor": {"rho": round(rho, 3), "makespan": makespan_s},
            "of all GPUs, as castor ends": round(bound.needed(rho, makespan_s), 3),
            "least rho": {
                f"{part:g} of its makespan": round(
                    bound.least_rho(rho, part * makespan_s), 3
                )
                for part in MAKESPANS
            },
        }
        store_results(RESULTS, stored)
        print(name, stored[name], flush=True)


if __name__ == "__main__":
    main()
