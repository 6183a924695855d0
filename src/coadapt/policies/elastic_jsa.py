"""Effective elastic scaling (Saxena et al., MASCOTS 2020): GPUs and batches by a
programme.
"""

# The job scalability analyser gives each job its scaling factor on g GPUs, S(g) =
# R(b*(g), g) / R(b*(1), 1): R samples per second, b*(g) the best batch of those that
# its user allows. The optimiser maximises the sum of scaling factors over all ways to
# give every admitted job at least its fewest GPUs:
#
#   P[j][k] = max over g of S_j(g) + P[j - 1][k - g],   P[0][k] = 0
#
# Rows are vectors over k, so a job costs as many vector operations as it may have GPUs.

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from coadapt.goodput.efficiency_models import NO_LOSS
from coadapt.goodput.table import GoodputTable, goodput_table
from coadapt.model import BatchConfig, ClusterView, EfficiencySpec, JobId, JobView, Plan
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.reasons import go_first, waits
from coadapt.policies.allocation.turns import Turns
from coadapt.policies.base import PolicyCard

FloatArray = NDArray[np.float64]

# A job may have twice the GPUs that it was timed on: further out its model is a guess
# (Pollux, OSDI'21).
KNOWN_TIMES = 2
KEEPS = 1e-6  # of a scaling factor: among equal sums, fewer jobs change


class ElasticJsa:
    """First come, first admitted; among the admitted, the largest sum of scaling
    factors.

    period_s: seconds between two optimisations; in between jobs keep their counts, and
    new ones get their fewest where GPUs are free. trusting: each batch in a job's range
    is taken to be as good as any, as in the paper, and dictated; else samples count by
    their efficiency, and jobs choose their batch (by goodput).
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Saxena et al., Effective Elastic Scaling, MASCOTS 2020",
        decides="GPU counts; trusting: batch sizes",
    )

    def __init__(self, *, period_s: float = 60.0, trusting: bool = True) -> None:
        self._turns = Turns(period_s)
        self._trusting = trusting

    def allocate(self, view: ClusterView) -> Plan:
        capacity = Capacity(view)
        begins = self._turns.begins(view.at)
        notes: dict[JobId, str] = {}
        num_served = 0
        for job in view.jobs:
            if not begins and job.allocation and job.id not in capacity.counts:
                capacity.keep(job)
        for job in view.jobs:
            low = span(job)[0]
            if job.id in capacity.counts or capacity.give(job, low):
                num_served += 1
            else:
                notes[job.id] = waits(
                    job, low, capacity, go_first(num_served, "that came earlier")
                )
        batches: dict[JobId, BatchConfig] = {}
        for gpu_type in sorted(set(capacity.gpu_types.values())):
            jobs = [
                job for job in view.jobs if capacity.gpu_types.get(job.id) == gpu_type
            ]
            table = self._table(view, jobs, gpu_type)
            if begins:
                _grow(view, jobs, capacity, table)
            for row, job in enumerate(jobs):
                count = capacity.counts[job.id]
                profile = job.measured.by_type.get(gpu_type)
                if profile is None:
                    notes[job.id] = "how it scales is known once it has reported"
                    continue
                factor = _factors(table)[row, count - 1]
                notes[job.id] = (
                    f"{factor:.3g} times as fast as on one GPU" if factor > 0.0 else ""
                )
                # A batch that is dictated teaches nothing: first it is to be timed on
                # as many replicas.
                if (
                    self._trusting
                    and job.spec.adaptive
                    and profile.num_replicas_profiled >= count
                ):
                    batches |= _batch(job, table, row, count)
        plan = counted_plan(view, capacity, notes)
        return replace(plan, batches=batches)

    def _table(
        self, view: ClusterView, jobs: list[JobView], gpu_type: str
    ) -> GoodputTable:
        """Return what `jobs` do on 1, 2, ... GPUs of `gpu_type`, on as few nodes as
        possible.
        """
        sizes = [node.num_gpus for node in view.nodes if node.gpu_type == gpu_type]
        num_replicas_C = np.arange(1, sum(sizes) + 1)
        seen = [_trusted(job) for job in jobs] if self._trusting else jobs
        num_nodes_C = -(-num_replicas_C // max(sizes))
        return goodput_table(seen, num_nodes_C, num_replicas_C, gpu_type=gpu_type)


def _trusted(job: JobView) -> JobView:
    """Return `job` as if a larger batch cost it no efficiency."""
    if not job.spec.adaptive:
        return job
    spec = replace(job.spec, efficiency=EfficiencySpec())
    return replace(job, spec=spec, measured=replace(job.measured, grad=NO_LOSS))


def _factors(table: GoodputTable) -> FloatArray:
    """Return the scaling factors (num_jobs, num_counts); 0 where a count is ruled out.

    Where one GPU is ruled out, the first count that is not stands for it, per GPU.
    """
    rate_JC = table.goodput_JC
    first_J = np.argmax(rate_JC > 0.0, axis=1)
    base_J = rate_JC[np.arange(len(rate_JC)), first_J] / (first_J + 1)
    return np.asarray(rate_JC / np.where(base_J > 0.0, base_J, 1.0)[:, None])


def _grow(
    view: ClusterView, jobs: list[JobView], capacity: Capacity, table: GoodputTable
) -> None:
    """Give the GPUs of one type that are left to `jobs`, which have their fewest, by
    the programme.
    """
    gpu_type = capacity.gpu_types[jobs[0].id]
    total = sum(node.num_gpus for node in view.nodes if node.gpu_type == gpu_type)
    num_left = max(total - sum(capacity.counts[job.id] for job in jobs), 0)
    factor_JC = _factors(table)
    best_K = np.zeros(num_left + 1)
    choices: list[NDArray[np.intp]] = []
    for row, job in enumerate(jobs):
        low = capacity.counts[job.id]
        held = job.allocation.num_replicas
        most = min(_most(job, gpu_type, low) - low, num_left)
        value_M = factor_JC[row, low - 1 : low + most] + KEEPS * (
            np.arange(low, low + most + 1) == held
        )
        # [k, m]: the sum with m more for this job, where the jobs before it have the
        # other k - m.
        before_KM = sliding_window_view(
            np.concatenate((np.full(most, -np.inf), best_K)), most + 1
        )[:, ::-1]
        sum_KM = before_KM + value_M
        choice_K = np.argmax(sum_KM, axis=1)  # the fewest on ties
        best_K = sum_KM[np.arange(num_left + 1), choice_K]
        choices.append(choice_K)
    left = num_left
    for job, choice_K in reversed(list(zip(jobs, choices, strict=True))):
        wanted = int(choice_K[left])
        left -= wanted
        while wanted and capacity.grow(job):
            wanted -= 1


def _most(job: JobView, gpu_type: str, low: int) -> int:
    """Return the most GPUs that `job` may have, as far as it is known how it scales."""
    profile = job.measured.by_type.get(gpu_type)
    known = 0 if profile is None else KNOWN_TIMES * profile.num_replicas_profiled
    return max(min(span(job)[1], known), low)


def _batch(
    job: JobView, table: GoodputTable, row: int, count: int
) -> dict[JobId, BatchConfig]:
    """Return the best batch of `job` on `count` replicas; nothing where none is
    lawful.
    """
    if not table.goodput_JC[row, count - 1] > 0.0:
        return {}
    atomic = int(table.atomic_JC[row, count - 1])
    accumulation = int(table.accumulation_JC[row, count - 1])
    return {
        job.id: BatchConfig(
            total=count * atomic * (accumulation + 1),
            atomic=atomic,
            accumulation=accumulation,
        )
    }
