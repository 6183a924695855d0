"""Rubick's round: guarantees first, then best effort, then GPUs from flat curves to
steep ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from coadapt.model import (
    BatchConfig,
    ClusterView,
    JobId,
    JobView,
    Plan,
    RescaleContract,
)
from coadapt.policies.allocation.capacity import Capacity, gpu_type_held
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.pack import Pick
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.allocation.reasons import waits
from coadapt.policies.base import PolicyCard
from coadapt.policies.predictors.rates import cut, rates_on
from coadapt.policies.rubick.gpu_ledger import NOTHING, Allowed, CurvePoint, GpuLedger

# Moves of GPUs from one job to another in a round, at most. Each raises the sum of all,
# so they end; but a round that moves so many has no time to train.
MOVES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RubickOptions:
    """What Rubick's operator may set.

    least_gain: a count that is not faster than a smaller one by this part is never
    given. slack: a guaranteed job is content with its paid rate over this.
    guaranteed_from: jobs of this priority or a higher one are guaranteed, others best
    effort. rescales_max: a job that was rescaled so often neither grows nor gives by
    choice. hysteresis: how much more, as a part, a move between jobs must bring than it
    takes. aged_s: a job that waited for so long comes before all others. ascending:
    flat jobs are served first, as in the artifact.
    """

    least_gain: float = 0.01
    slack: float = 1.0
    guaranteed_from: int = 0
    rescales_max: int = 5
    hysteresis: float = 0.2
    aged_s: float = 200_000.0
    ascending: bool = False

    def __post_init__(self) -> None:
        for name in ("least_gain", "hysteresis", "aged_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and >= 0, got {value}")
        if not (math.isfinite(self.slack) and self.slack >= 1.0):
            raise ValueError(f"slack must be finite and >= 1, got {self.slack}")
        if self.rescales_max < 0:
            raise ValueError(f"rescales_max must be >= 0, got {self.rescales_max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubick(RubickOptions):
    """Guarantees the speed of the GPUs that were asked for, and gives the rest where a
    GPU adds most.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Zhang et al., Rubick, MLSys 2025",
        decides="GPU counts, and the passes of a step",
    )

    def allocate(self, view: ClusterView) -> Plan:
        """Return the round's plan."""
        capacity = Capacity(view)
        kept = set(capacity.counts)
        taken: dict[str, int] = {}
        for job_id, count in capacity.counts.items():
            taken[capacity.gpu_types[job_id]] = (
                taken.get(capacity.gpu_types[job_id], 0) + count
            )
        points = [
            self._point(job, view)
            for job in view.jobs
            if job.id not in kept and not _stranded(job)
        ]
        ledger = GpuLedger(view, points, taken)
        for job in view.jobs:
            if job.id in kept and job.spec.tenant in ledger.quota_left:
                ledger.quota_left[job.spec.tenant] -= job.allocation.num_gpus
        self._stay(view, ledger)
        order = self._order(view, points)
        for one in order:
            self._honour(one, ledger) if one.guaranteed else self._start(one, ledger)
        self._spend(ledger)
        for one in order:
            if one.count:
                capacity.give(one.job, one.count, one.gpu_type)
        return self._plan(view, capacity, {one.job.id: one for one in points})

    def _point(self, job: JobView, view: ClusterView) -> CurvePoint:
        largest: dict[str, int] = {}
        for node in view.nodes:
            if job.spec.replicas.allows_type(node.gpu_type):
                largest[node.gpu_type] = max(
                    largest.get(node.gpu_type, 0), node.num_gpus
                )
        curves = {
            name: rates_on(job, name, gpus, least_gain=self.least_gain)
            for name, gpus in sorted(largest.items())
        }
        return CurvePoint(job, job.spec.priority >= self.guaranteed_from, curves)

    def _stay(self, view: ClusterView, ledger: GpuLedger) -> None:
        """Let running jobs keep their GPUs, as far as the cluster and quotas still
        allow it.
        """
        nodes = {node.id: node for node in view.nodes}
        for one in sorted(ledger.points, key=lambda one: not one.guaranteed):
            held = gpu_type_held(one.job, nodes) or ""
            if held in one.curves and not one.job.allocation.shared:
                step = one.curves[held].at_most(one.job.allocation.num_replicas)
                if step != NOTHING and ledger.room(
                    one, one.curves[held].counts[step], held
                ):
                    ledger.put(one, held, step)

    def _order(
        self, view: ClusterView, points: Sequence[CurvePoint]
    ) -> list[CurvePoint]:
        """Return the order of service: guaranteed jobs, then jobs that waited too long,
        then by slope.
        """

        def key(one: CurvePoint) -> tuple[bool, bool, float]:
            waited = (
                one.step == NOTHING and view.at - one.job.submitted_at > self.aged_s
            )
            if one.step == NOTHING:
                slopes = [
                    replace(one, gpu_type=name).slope(0)[1] for name in one.curves
                ]
            else:
                slopes = [one.up[1]]
            steepest = max(slopes, default=0.0)
            return (
                not one.guaranteed,
                not waited,
                steepest if self.ascending else -steepest,
            )

        return sorted(points, key=key)

    def _honour(self, one: CurvePoint, ledger: GpuLedger) -> None:
        """Give a guaranteed job the rate that it paid for, from free GPUs and from jobs
        that have more than they paid for; from best effort all that it takes. Where
        that cannot be, it keeps what it has.
        """
        for gpu_type in (
            [one.gpu_type] if one.step != NOTHING else self._types(one, ledger)
        ):
            target = self._target(one, ledger, gpu_type)
            have = one.count if one.step != NOTHING else 0
            if target <= one.step:
                continue
            units = one.curves[gpu_type].counts[target] - have
            if not ledger.quota_room(one, units):
                continue
            needs = units - ledger.free[gpu_type]
            moves = ledger.reclaim(needs, gpu_type, self._owes(one))
            if moves is not None:
                for victim, step in moves:
                    ledger.put(victim, gpu_type, step)
                ledger.put(one, gpu_type, target)
                return

    def _target(self, one: CurvePoint, ledger: GpuLedger, gpu_type: str) -> int:
        """Return the step that `one` paid for on a type, or the largest that type and
        quota can hold.
        """
        curve = one.curves[gpu_type]
        paid = curve.rates[one.paid_step(gpu_type)] / self.slack
        step = next(index for index, rate in enumerate(curve.rates) if rate >= paid)
        most = min(float(ledger.pools[gpu_type]), self._quota(one, ledger))
        return min(step, curve.at_most(int(min(most, curve.counts[-1]))))

    def _quota(self, one: CurvePoint, ledger: GpuLedger) -> float:
        return ledger.quota_left.get(one.job.spec.tenant, math.inf) + one.count

    def _owes(self, taker: CurvePoint) -> Allowed:
        """Return which jobs may go down a step so that a guaranteed `taker` has what it
        paid for.
        """

        def may(other: CurvePoint) -> bool:
            return other is not taker and (
                not other.guaranteed or other.step > self._content(other)
            )

        return may

    def _content(self, one: CurvePoint) -> int:
        """Return the step below which a guaranteed job must not be brought."""
        paid = one.curve.rates[one.paid_step(one.gpu_type)] / self.slack
        return next(index for index, rate in enumerate(one.curve.rates) if rate >= paid)

    def _types(self, one: CurvePoint, ledger: GpuLedger) -> list[str]:
        """Return the GPU types that `one` may have, the one first where it would be
        fastest.
        """
        rate = {
            name: curve.rates[one.paid_step(name)] for name, curve in one.curves.items()
        }
        return sorted(rate, key=lambda name: (-rate[name], -ledger.free[name], name))

    def _start(self, one: CurvePoint, ledger: GpuLedger) -> None:
        """Start a best-effort job that waits on its fewest GPUs, if need be from jobs
        with flatter curves.
        """
        if one.step != NOTHING:
            return
        for gpu_type in self._types(one, ledger):
            units = one.curves[gpu_type].counts[0]
            slope = replace(one, gpu_type=gpu_type).slope(0)[1]
            if not ledger.quota_room(one, units):
                continue
            needs = units - ledger.free[gpu_type]
            moves = ledger.reclaim(needs, gpu_type, self._spares(one, slope))
            if moves is not None:
                for victim, step in moves:
                    ledger.put(victim, gpu_type, step)
                ledger.put(one, gpu_type, 0)
                return

    def _spares(self, taker: CurvePoint, slope: float) -> Allowed:
        """Return which jobs can go down a step for a `taker` with `slope` and keep what
        they need.
        """

        def may(other: CurvePoint) -> bool:
            least = self._content(other) if other.guaranteed else 0
            flatter = other.down[1] * (1.0 + self.hysteresis) < slope
            return (
                other is not taker
                and other.step > least
                and self._calm(other)
                and flatter
            )

        return may

    def _calm(self, one: CurvePoint) -> bool:
        return one.job.usage.num_rescales < self.rescales_max or not one.job.allocation

    def _spend(self, ledger: GpuLedger) -> None:
        """Give what is left, and then GPUs of flat jobs, to the job that gains most by
        them.
        """
        growing = [
            one for one in ledger.points if one.step != NOTHING and self._calm(one)
        ]
        num_moves = 0
        while growing:
            one = max(growing, key=lambda one: one.up[1])
            units, slope = one.up
            if slope <= 0.0:
                return
            needs = units - ledger.free[one.gpu_type]
            moves = None
            if ledger.quota_room(one, units) and (needs <= 0 or num_moves < MOVES_MAX):
                moves = ledger.reclaim(needs, one.gpu_type, self._spares(one, slope))
            if moves is None:
                growing.remove(one)
                continue
            num_moves += len(moves)
            for victim, step in moves:
                ledger.put(victim, victim.gpu_type, step)
            ledger.put(one, one.gpu_type, one.step + 1)

    def _plan(
        self, view: ClusterView, capacity: Capacity, points: dict[JobId, CurvePoint]
    ) -> Plan:
        notes = {}
        batches = dict[JobId, BatchConfig]()
        for job in view.jobs:
            one = points.get(job.id)
            if job.id not in capacity.counts:
                least = (
                    requested_gpus(job)
                    if one is None or one.guaranteed
                    else one.job.spec.replicas.min
                )
                first = "guaranteed jobs and those that gain more by a GPU go first"
                notes[job.id] = waits(job, least, capacity, first)
            elif one is not None:
                notes[job.id] = _explained(one)
        plan = counted_plan(
            view, capacity, notes, picks=dict.fromkeys(capacity.counts, Pick.FEWEST)
        )
        for job in view.jobs:
            if (
                job.id in plan.batches
                and job.spec.contract is not RescaleContract.FROZEN
            ):
                count = plan.allocations[job.id].num_replicas
                batches[job.id] = cut(job, count, capacity.gpu_types[job.id])
        return replace(plan, batches={**plan.batches, **batches})


def _explained(one: CurvePoint) -> str:
    if not one.curve.known:
        return "its speed is unknown: it has what it requested"
    part = one.curve.rates[one.step] / one.curve.rates[one.paid_step(one.gpu_type)]
    kind = "guaranteed" if one.guaranteed else "best effort"
    units, slope = one.up
    more = (
        f"{units} more would add {slope * units:.0%}" if units else "it can use no more"
    )
    return f"{kind}, at {part:.0%} of the speed that it asked for; {more}"


def _stranded(job: JobView) -> bool:
    return job.spec.contract is RescaleContract.FROZEN and bool(job.allocation)
