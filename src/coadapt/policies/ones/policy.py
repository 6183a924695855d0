"""ONES (Bian, Li, Wang, You, SC 2021): GPUs and batches by an evolutionary search that
never stops.
"""

from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

import numpy as np

from coadapt.goodput.batch import split_total
from coadapt.model import (
    BatchConfig,
    ClusterView,
    JobId,
    JobView,
    Plan,
    RescaleContract,
)
from coadapt.policies.allocation.capacity import Capacity, span
from coadapt.policies.allocation.counted_plan import requested_batch
from coadapt.policies.allocation.pack import pack
from coadapt.policies.base import PolicyCard
from coadapt.policies.ones.explain import explained
from coadapt.policies.ones.objective import (
    Record,
    completed_share,
    decayed,
    most_replicas,
)
from coadapt.policies.ones.solve import EMPTY, IntArray, Round, counts, evolve
from coadapt.policies.predictors.progress_beta import ProgressPredictor

EPOCHS_TO_UPDATE = (
    1.0  # that every job to be changed has run since it was last scheduled
)
EPOCHS_TO_SETTLE = (
    2.0  # before which a job counts as new, and is not taken out by mutation
)
GROWTH_TO_REFIT = 8  # the predictor is fitted again when an eighth more jobs have ended
COMPLETED_MIN = 0.5  # a job that left with less of its work done counts as cancelled
SHARE_MIN = 1e-3


@dataclass(slots=True, kw_only=True)
class _Memory:
    """What is kept from round to round: jobs' pasts, the parents, what was learned."""

    rng: np.random.Generator
    predictor: ProgressPredictor
    records: dict[JobId, Record] = field(default_factory=dict)
    parents: list[dict[JobId, int]] = field(default_factory=list)
    num_ended: int = 0
    num_fitted: int = 0


@dataclass(frozen=True, kw_only=True)
class Ones:
    """Evolves plans towards the least remaining GPU time, and dictates the batch that
    goes with each count.

    population: parents. generations: per call; the authors run one a second. They also
    act at every arrival and exit, so rounds follow those. `plan.diagnostics`: objective
    (GPU-seconds left of the jobs in the plan), records (of the predictor).
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Bian et al., ONES, SC 2021", decides="GPU counts, batch sizes, places"
    )
    reaction_s: ClassVar[float] = 1.0

    seed: int = 0
    population: int = 16
    generations: int = 30
    _memory: _Memory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.population < 2 or self.generations < 1:
            raise ValueError(
                f"population must be >= 2 and generations >= 1, got "
                f"{self.population} and {self.generations}"
            )
        rng = np.random.default_rng(self.seed)
        object.__setattr__(
            self, "_memory", _Memory(rng=rng, predictor=ProgressPredictor(rng))
        )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the best plan found, or the part of it that rescales no job too
        soon.
        """
        self._observe(view)
        capacity = Capacity(view)
        jobs = [job for job in view.jobs if job.id not in capacity.counts]
        num_gpus = view.num_gpus - sum(capacity.counts.values())
        target: dict[JobId, int] = {}
        diagnostics = {"records": float(self._memory.predictor.num_records)}
        if jobs and num_gpus > 0:
            target, diagnostics["objective"] = self._search(view, jobs, num_gpus)
        self._give(capacity, self._deploy(jobs, target))
        for job in jobs:
            record = self._memory.records[job.id]
            if (
                job.id in capacity.counts
                and capacity.counts[job.id] != job.allocation.num_replicas
            ):
                record.scheduled_at = record.epochs
            if (
                job.id not in capacity.counts
                and not job.allocation
                and job.usage.started_at is not None
            ):
                record.halve(span(job)[0])
        allocations = pack(view, capacity.counts, capacity.gpu_types)
        batches = {
            job.id: batch
            for job in view.jobs
            if (held := allocations.get(job.id))
            and (batch := dictated_batch(job, held.num_replicas))
        }
        reasons = explained(view, capacity, allocations, batches)
        return Plan(
            allocations=allocations,
            batches=batches,
            reasons=reasons,
            diagnostics=diagnostics,
        )

    def _observe(self, view: ClusterView) -> None:
        """Take in reports, learn from jobs that ended, and renew what each job may
        have.
        """
        memory = self._memory
        num_gpus = max(view.num_gpus, 1)
        # In order: what the predictor is fitted to depends on which job it has learned
        # of first.
        for gone in sorted(set(memory.records) - {job.id for job in view.jobs}):
            self._learn(memory.records.pop(gone))
        for job in view.jobs:
            low = span(job)[0]
            record = memory.records.setdefault(job.id, Record(limit=low, allowed=low))
            record.note(job)
            record.grow(job, num_gpus)
        running = [
            job
            for job in view.jobs
            if job.allocation and job.usage.started_at is not None
        ]
        if running:
            self._decay(view, running)
        if memory.num_ended > memory.num_fitted + memory.num_fitted // GROWTH_TO_REFIT:
            memory.predictor.fit()
            memory.num_fitted = memory.num_ended

    def _decay(self, view: ClusterView, running: list[JobView]) -> None:
        run_s = {job.id: view.at - (job.usage.started_at or 0.0) for job in running}
        largest = max(running, key=lambda job: job.allocation.num_replicas)
        size = largest.allocation.num_replicas
        median_s = median(run_s.values())
        if 2 * size >= view.num_gpus and run_s[largest.id] > median_s > 0.0:
            record = self._memory.records[largest.id]
            record.allowed = max(
                min(decayed(size, run_s[largest.id], median_s), size), span(largest)[0]
            )

    def _learn(self, record: Record) -> None:
        """Add the records of a job that is gone, unless it seems to have been
        cancelled.
        """
        if record.samples <= 0.0 or record.completed < COMPLETED_MIN:
            return
        for features, samples in record.features:
            self._memory.predictor.add(features, samples / record.samples)
        if record.features:
            self._memory.num_ended += 1

    def _search(
        self, view: ClusterView, jobs: list[JobView], num_gpus: int
    ) -> tuple[dict[JobId, int], float]:
        """Return the counts of the best candidate, and its GPU-seconds left."""
        memory = self._memory
        round_ = self._round(view, jobs, num_gpus)
        left_TJ = np.stack([self._samples_left(job) for job in jobs], axis=1)
        parents_PG = self._parents(jobs, num_gpus)
        best_PG = evolve(round_, parents_PG, left_TJ, memory.rng)
        memory.parents = [
            {jobs[j].id: int(n) for j, n in enumerate(counts(round_, genes_G)) if n}
            for genes_G in best_PG
        ]
        count_J = counts(round_, best_PG[0])
        cost = float(
            (left_TJ.mean(axis=0) * round_.cost_JK[np.arange(len(jobs)), count_J]).sum()
        )
        return memory.parents[0], cost

    def _samples_left(
        self, job: JobView
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the samples left as drawn for each generation (num_generations,)."""
        memory = self._memory
        record = self._memory.records[job.id]
        a, b = memory.predictor.shape(record.now(job), completed_share(job))
        share_T = np.clip(memory.rng.beta(a, b, self.generations), SHARE_MIN, 1.0)
        return np.asarray(record.samples * (1.0 / share_T - 1.0), dtype=np.float64)

    def _round(self, view: ClusterView, jobs: list[JobView], num_gpus: int) -> Round:
        records = [self._memory.records[job.id] for job in jobs]
        rate_JK = np.stack([record.throughput(num_gpus) for record in records])
        with np.errstate(divide="ignore", invalid="ignore"):
            cost_JK = np.where(rate_JK > 0.0, np.arange(num_gpus + 1) / rate_JK, 0.0)
        limit_J = [min(most_replicas(job, num_gpus), num_gpus) for job in jobs]
        order = {node.id: place for place, node in enumerate(view.nodes)}
        return Round(
            num_gpus=num_gpus,
            min_J=np.array([span(job)[0] for job in jobs], dtype=np.int64),
            allowed_J=np.minimum(
                [record.allowed for record in records], limit_J
            ).astype(np.int64),
            limit_J=np.minimum([record.limit for record in records], limit_J).astype(
                np.int64
            ),
            fresh_J=np.array([not record.rates for record in records], dtype=np.bool_),
            settled_J=np.array(
                [record.epochs >= EPOCHS_TO_SETTLE for record in records],
                dtype=np.bool_,
            ),
            alone_s_J=np.array(
                [
                    self._alone_s(job, rate_K[1])
                    for job, rate_K in zip(jobs, rate_JK, strict=True)
                ]
            ),
            live_J=np.array(
                [
                    order.get(job.allocation.slots[0][0], 0)
                    if job.allocation
                    else len(order)
                    for job in jobs
                ],
                dtype=np.int64,
            ),
            cost_JK=cost_JK,
        )

    def _alone_s(self, job: JobView, rate: float) -> float:
        record = self._memory.records[job.id]
        a, b = self._memory.predictor.shape(record.now(job), completed_share(job))
        return record.samples * b / a / rate if rate > 0.0 else 0.0

    def _parents(self, jobs: list[JobView], num_gpus: int) -> IntArray:
        """Return the last parents in terms of this round's jobs; at first, the present
        state alone.
        """
        row = {job.id: number for number, job in enumerate(jobs)}
        present = {
            job.id: job.allocation.num_replicas for job in jobs if job.allocation
        }
        parents = [present, *self._memory.parents][: self.population]
        parents_PG = np.full((self.population, num_gpus), EMPTY, dtype=np.int64)
        for place, parent in enumerate(parents):
            genes = [
                row[job]
                for job, count in parent.items()
                if job in row
                for _ in range(count)
            ]
            parents_PG[place, : len(genes)] = genes[:num_gpus]
        return parents_PG

    def _deploy(
        self, jobs: list[JobView], target: dict[JobId, int]
    ) -> list[tuple[JobView, int]]:
        """Return how many replicas of `target` each job gets, first served first.

        Jobs that have not had their epoch since they were last scheduled keep what they
        hold; then come those that wait, then the others; what these leave idle goes to
        jobs that the target leaves out.
        """
        records = self._memory.records
        kept: list[tuple[JobView, int]] = []
        started: list[tuple[JobView, int]] = []
        changed: list[tuple[JobView, int]] = []
        spare: list[tuple[JobView, int]] = []
        for job in jobs:
            record = records[job.id]
            held = job.allocation.num_replicas
            wanted = target.get(job.id, 0)
            if held and record.epochs - record.scheduled_at < EPOCHS_TO_UPDATE:
                kept.append((job, held))
            elif wanted:
                (changed if held else started).append((job, wanted))
            else:
                spare.append((job, held or span(job)[0]))
        return (
            kept
            + started
            + changed
            + sorted(spare, key=lambda each: not each[0].allocation)
        )

    def _give(self, capacity: Capacity, given: list[tuple[JobView, int]]) -> None:
        """Give counts in order; where one does not fit (types, quotas, jobs before it),
        fewer replicas.
        """
        for job, wanted in given:
            low, high = span(job)
            for count in range(min(wanted, high), low - 1, -1):
                if capacity.give(job, count):
                    break


def dictated_batch(job: JobView, num_replicas: int) -> BatchConfig | None:
    """Return the batch that goes with `num_replicas`: the user's share per replica, up
    to the largest total.

    The share is that of the requested batch over the requested replicas, at least the
    initial one. Linear in the count while the learning rate may grow with it, constant
    beyond (ONES, batch rule). Only an adaptive job's: others keep what their user
    requested.
    """
    if job.spec.contract is not RescaleContract.ADAPTIVE:
        return requested_batch(job, num_replicas)
    limits = job.spec.batch
    share = max(limits.requested // job.spec.replicas.requested, limits.initial)
    total = max(
        min(share * num_replicas, limits.max_total), num_replicas * limits.min_atomic
    )
    batch = split_total(min(total, limits.max_total), num_replicas, limits)
    return None if batch.total > limits.max_total else batch
