"""Jobs of which only the speed is known: samples per second on some numbers of GPUs,
and how long they train.

Logs of clusters contain no more than this: each job's number of GPUs, and how long it
ran on them.
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
)  # no larger batch is ever used, so its efficiency does not matter


class CurveApplication:
    """An application given by the measured curve of one job. See
    sim.applications.Application for the methods.

    rates: samples per second by number of GPUs. Rates are linear between these numbers,
    and not known outside of them. length_s: seconds that the job trains alone on `gpus`
    GPUs. load: the part of each GPU's time that the job keeps busy. If it is not known
    it is 1, the most careful guess.

    The total batch is the largest number of GPUs in `rates`. It has no meaning, since
    the batch of such a job never changes. The speed is the same on all GPU types.
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
        """Return None, because the job's use of memory is not known."""
        return None

    def own_batch(self, epoch: int) -> int | None:  # noqa: ARG002  # as above
        """Return None, because the job's batches are not known."""
        return None

    def grad_stats(self, total: int, epoch: int) -> GradStats:  # noqa: ARG002  # as above
        return EFFICIENCY_ONE

    def progress_at(self, epoch: int) -> float:
        return self._num_steps * epoch

    def steps(self, total: int, epoch: int) -> float:  # noqa: ARG002  # as above
        return self._num_steps * epoch

    def forecast(self, progress: float) -> Forecast:
        """Return what an oracle knows at `progress` steps. The rate on too few GPUs is
        that on the smallest number of GPUs.
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
        """Return the samples that the job trains on in `seconds` on its own number of
        GPUs.
        """
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
