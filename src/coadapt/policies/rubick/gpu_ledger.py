"""GPUs of each job while a round is decided: steps on each job's curve, GPUs and quotas
left.
"""

# The steps of a job's curve are the numbers of GPUs that are of use to it; each job has
# one of them. Its slope upwards is what one more GPU adds to its rate, as a part of the
# rate that it asked for; downwards, what one GPU less takes. Jobs are compared by their
# slopes, which mean the same for all models.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from coadapt.model import ClusterView, JobId, JobView, gpus_by_type
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.predictors.rates import Rates

NOTHING = -1


@dataclass(slots=True)
class CurvePoint:
    """One job. curves: by GPU type. step: its place on the curve of gpu_type, NOTHING
    without GPUs.
    """

    job: JobView
    guaranteed: bool
    curves: Mapping[str, Rates]
    gpu_type: str = ""
    step: int = NOTHING

    @property
    def curve(self) -> Rates:
        return self.curves[self.gpu_type]

    @property
    def count(self) -> int:
        return self.curve.counts[self.step] if self.step != NOTHING else 0

    def paid_step(self, gpu_type: str) -> int:
        """Return the step that does what the GPUs that it requested do."""
        return max(self.curves[gpu_type].at_most(requested_gpus(self.job)), 0)

    def slope(self, step: int) -> tuple[int, float]:
        """Return how many GPUs `step` has more than the one below, and what each adds;
        0 beyond the end.
        """
        curve = self.curve
        if step >= len(curve.counts):
            return 0, 0.0
        paid = curve.rates[self.paid_step(self.gpu_type)]
        before, rate = (
            (curve.counts[step - 1], curve.rates[step - 1]) if step > 0 else (0, 0.0)
        )
        units = curve.counts[step] - before
        return units, (curve.rates[step] - rate) / paid / units

    @property
    def up(self) -> tuple[int, float]:
        """GPUs of the next step, and what each of them adds."""
        return self.slope(self.step + 1)

    @property
    def down(self) -> tuple[int, float]:
        """GPUs of the present step, and what each of them adds."""
        return self.slope(self.step)


Allowed = Callable[[CurvePoint], bool]


class GpuLedger:
    """GPUs left by type and tenant. Raises nothing: callers ask `room` before they
    take.
    """

    def __init__(
        self, view: ClusterView, points: Iterable[CurvePoint], taken: Mapping[str, int]
    ) -> None:
        pools = gpus_by_type(view.nodes)
        self.pools = {name: gpus - taken.get(name, 0) for name, gpus in pools.items()}
        self.free = dict(self.pools)
        self.quota_left: dict[str, float] = dict(view.quotas())
        self.points = list(points)

    def room(self, one: CurvePoint, units: int, gpu_type: str) -> bool:
        """Return whether `units` more GPUs of a type are free and within the tenant's
        quota.
        """
        return self.free.get(gpu_type, 0) >= units and self.quota_room(one, units)

    def quota_room(self, one: CurvePoint, units: int) -> bool:
        return self.quota_left.get(one.job.spec.tenant, float("inf")) >= units

    def put(self, one: CurvePoint, gpu_type: str, step: int) -> None:
        """Give `one` the `step` of the curve of `gpu_type`, and take back what it
        had.
        """
        self._book(one, -one.count)
        one.gpu_type = gpu_type
        one.step = step
        self._book(one, one.count)

    def _book(self, one: CurvePoint, units: int) -> None:
        if units:
            self.free[one.gpu_type] -= units
            tenant = one.job.spec.tenant
            if tenant in self.quota_left:
                self.quota_left[tenant] -= units

    def reclaim(
        self, needs: int, gpu_type: str, may: Allowed
    ) -> list[tuple[CurvePoint, int]] | None:
        """Return (job, its new step) of those that free `needs` more GPUs of a type;
        None if they cannot.

        may: whether a job may go down one step from where it would stand. The flattest
        give first, best effort before guaranteed.
        """
        if needs <= 0:
            return []
        before = {
            one.job.id: one.step for one in self.points if one.gpu_type == gpu_type
        }
        freed = 0
        touched: dict[JobId, CurvePoint] = {}
        while freed < needs:
            able = [
                one
                for one in self.points
                if one.gpu_type == gpu_type and one.step != NOTHING and may(one)
            ]
            if not able:
                break
            victim = min(
                able, key=lambda one: (one.guaranteed, one.down[1], one.job.id)
            )
            freed += victim.down[0]
            victim.step -= 1
            touched[victim.job.id] = victim
        moves = [(one, one.step) for one in touched.values()]
        for one in touched.values():
            one.step = before[one.job.id]
        return moves if freed >= needs else None
