"""Jobs of which only speeds are known: samples per second on some numbers of GPUs, and
how long they train.

Logs of clusters tell no more: one number of GPUs per job, and how long it ran on them.
"""

from bisect import bisect_left
from collections.abc import Mapping

from coadapt.model import (
    DEFAULT_TENANT,
    BatchLimits,
    Forecast,
    GradStats,
    JobSpec,
    ReplicaLimits,
)
from coadapt.sim.applications import Setting, UnmeasuredError
from coadapt.sim.colocation import kept_speed

EFFICIENCY_ONE = GradStats(
    sqr=1.0, var=0.0
)  # a larger batch is never used, so it is never asked how good it is


class CurveApplication:
    """What one job trains, by its measured curve. See sim.applications.Application for
    the methods.

    rates: GPUs -> samples per second, linear in between, nothing known outside.
    length_s: seconds that it trains alone on `gpus` of them. Its total batch is one
    sample per GPU of the largest number: a number without meaning, for a job whose
    batch nobody may change. Speeds are those of any GPU type. load: the part of each
    GPU's time that it keeps busy; where that is not known, all of it: the most careful
    guess.
    """

    gpu_types: tuple[str, ...] = ()
    num_epochs = 1

    def __init__(
        self,
        name: str,
        rates: Mapping[int, float],
        *,
        gpus: int,
        length_s: float,
        load: float = 1.0,
    ) -> None:
        self.name = name
        self.load = load
        self.rates = dict(sorted(rates.items()))
        self.gpus = gpus
        self.length_s = length_s
        self._counts = list(self.rates)
        total = self._counts[-1]
        self.limits = BatchLimits(initial=total, max_total=total)
        self._num_steps = length_s * self._rate(gpus) / total

    def step_time(self, setting: Setting, atomic: int) -> tuple[float, float]:  # noqa: ARG002  # the signature is that of Application
        num_gpus = setting.placement.num_replicas
        if not self._counts[0] <= num_gpus <= self._counts[-1]:
            known = f"{self._counts[0]}..{self._counts[-1]}"
            raise UnmeasuredError(
                f"{self.name}: known on {known} GPUs, not on {num_gpus}"
            )
        return self.limits.initial / (
            self._rate(num_gpus) * kept_speed(self.load, setting.neighbours)
        ), 0.0

    def max_atomic(self, setting: Setting) -> int | None:  # noqa: ARG002  # as above
        """Return None: nothing is known of its memory."""
        return None

    def own_batch(self, epoch: int) -> int | None:  # noqa: ARG002  # as above
        """Return None: nothing is known of its batches."""
        return None

    def grad_stats(self, total: int, epoch: int) -> GradStats:  # noqa: ARG002  # as above
        return EFFICIENCY_ONE

    def progress_at(self, epoch: int) -> float:
        return self._num_steps * epoch

    def steps(self, total: int, epoch: int) -> float:  # noqa: ARG002  # as above
        return self._num_steps * epoch

    def forecast(self, progress: float) -> Forecast:
        """Return what an oracle knows at `progress` steps. On too few GPUs: the rate of
        the fewest.
        """
        first = self._counts[0]
        total = self.limits.initial
        times = [
            total / self._rate(max(count, first))
            for count in range(1, self._counts[-1] + 1)
        ]
        return Forecast(
            remaining_steps=self._num_steps - progress, step_time_s=tuple(times)
        )

    def samples_in(self, seconds: float) -> float:
        """Return the samples that it trains in so long on its own number of GPUs."""
        return seconds * self._rate(self.gpus)

    def _rate(self, num_gpus: int) -> float:
        right = bisect_left(self._counts, num_gpus)
        high = self.rates[self._counts[right]]
        if self._counts[right] == num_gpus:
            return high
        low = self._counts[right - 1]
        between = self._counts[right] - self._counts[right - 1]
        return self.rates[low] + (high - self.rates[low]) * (num_gpus - low) / between


def curve_spec(
    application: CurveApplication, *, name: str, tenant: str = ""
) -> JobSpec:
    """Return the spec of a job that may have any number of GPUs that its curve
    covers.
    """
    counts = list(application.rates)
    return JobSpec(
        name=name,
        application=application.name,
        batch=application.limits,
        replicas=ReplicaLimits(
            min=counts[0], max=counts[-1], requested=application.gpus
        ),
        tenant=tenant or DEFAULT_TENANT,
    )
