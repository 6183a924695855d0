"""Steps per second of a job on each number of GPUs that is of use to it, at its
requested batch.
"""

from typing import NamedTuple

from coadapt.goodput.batch import limits_in_use, split_total
from coadapt.goodput.throughput import packed_placement, step_time
from coadapt.model import BatchConfig, JobView
from coadapt.policies.allocation.capacity import useful_span
from coadapt.policies.allocation.counted_plan import KEEPS_TOTAL
from coadapt.policies.allocation.queue import requested_gpus


class Rates(NamedTuple):
    """counts: GPUs, ascending, each faster than the one before. rates: steps per second
    on these.

    known: whether the job reported anything; else its requested count is the only one.
    """

    counts: tuple[int, ...]
    rates: tuple[float, ...]
    known: bool

    def at_most(self, count: int) -> int:
        """Return the index of the largest count that is not above `count`; -1 if there
        is none.
        """
        return sum(each <= count for each in self.counts) - 1


def rates_on(
    job: JobView, gpu_type: str, gpus_per_node: int, *, least_gain: float
) -> Rates:
    """Return what `job` does on GPUs of a type, packed on nodes of `gpus_per_node`.

    From its step-time model of the type, else from its forecast. A count is of use if
    it is faster than the one of use before it by more than `least_gain` (a part of the
    rate).
    """
    low, high = useful_span(job)
    profile = job.measured.by_type.get(gpu_type)
    forecast = job.measured.forecast
    if profile is None and forecast is None:
        return Rates((requested_gpus(job),), (1.0,), False)
    counts: list[int] = []
    rates: list[float] = []
    for count in range(low, high + 1):
        if profile is not None:
            batch = cut(job, count, gpu_type)
            placement = packed_placement(count, gpus_per_node)
            atomic = float(batch.atomic)
            accumulation = float(batch.accumulation)
            step_s = float(step_time(profile.params, placement, atomic, accumulation))
        else:
            assert forecast is not None
            step_s = forecast.step_time_s[min(count, len(forecast.step_time_s)) - 1]
        if not rates or 1.0 / step_s > rates[-1] * (1.0 + least_gain):
            counts.append(count)
            rates.append(1.0 / step_s)
    return Rates(tuple(counts), tuple(rates), True)


def cut(job: JobView, count: int, gpu_type: str) -> BatchConfig:
    """Return the requested batch of `job` over `count` replicas, in as few passes as
    the memory allows.
    """
    limits = limits_in_use(job, gpu_type)
    exact = job.spec.contract in KEEPS_TOTAL
    return split_total(
        limits.requested, count, limits, accumulate_alone=True, exact=exact
    )
