"""What is left of a live job, with its uncertainty, and its speed on an allocation."""

# What is left is known in one of several ways, the first that applies. Each has a
# relative error of its own, the standard deviation of the logarithm.
#
# 1. The job reports its progress and its end (`progress_target`), and was timed.
# 2. It reports how many seconds are left (the trainer status protocol).
# 3. It reports its progress, its end, its step time and its gradient noise, and was not
#    timed: its speed at the last report, faster as its noise grows (EFFICIENCY_LEFT).
#    Also while it is stopped: its mean speed so far is that of its beginning, when the
#    noise was small, and gave up to five times the work.
# 4. It reports its progress and its end, and was not timed: its mean speed so far,
#    without the times of its starts, which are no training.
# 5. Nothing of this: it is taken to need as many GPU-seconds as one of the jobs that
#    ended, drawn from those of its application or else of all, that needed more than it
#    has used.
# 6. No such job: as many GPU-seconds again as it has used, at least ten minutes of one
#    GPU. By a factor of e more or less: a guess.
#
# In case 1 the gradient noise of an adaptive job grows in a future, and its speed with
# it, up to that with which a job of its application ended. Measured on 60 ends of the
# built-in mix under pollux, on days of eight seeds: with the noise of the last report,
# ends were forecast 10 % too late in the mean of the logarithm, and are now 2 % too
# late; 45 were within, and now 47. What else makes intervals too narrow is not known:
# with the true noise, 36 of 47 were within, as many as with that of the last report.
#
# In case 5 a job that has reported nothing yet also reports in a future what the drawn
# job had reported: its step times, and its end. A policy such as castor learns from the
# first report how long a job takes, and orders it by that. If a future never told it,
# castor took all jobs that start there for jobs of unknown length, and stopped others
# for them: at one moment, jobs that came after 5 and 6 min started after 22 and 38 min
# in futures. With these reports and the true lengths they started after 5 and 8 min.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np

from coadapt.core.accounting import job_view, num_gpus_held
from coadapt.core.state import JobRecord
from coadapt.goodput.batch import adaptive_grid, limits_in_use, requested_grid
from coadapt.goodput.efficiency import efficiency
from coadapt.goodput.table import goodput_table
from coadapt.model import (
    WAITING,
    Allocation,
    BatchLimits,
    JobSpec,
    JobView,
    Measured,
    Node,
    NodeId,
)
from coadapt.model.measured import PERCENT_DONE, REMAINING_S

GUESS_MIN_GPU_S = 600.0
# Progress and noise change over a job's life; a mean speed hides starts and rescales.
SPREAD_TIMED = 0.10
SPREAD_PRESENT_SPEED = 0.10
SPREAD_TOLD = 0.15
SPREAD_MEAN_SPEED = 0.25
SPREAD_LIKE_OTHERS = 0.10
SPREAD_GUESS = 1.0
# The gradient noise of a job grows while it trains, and with it the efficiency of its
# batch, up to 1. Where the efficiency is e at a report, the mean of the rest of the job
# is e ** (1 - x). Measured 567 times on the built-in mixes (seeds 2 to 4, `fifo`, 16
# GPUs, every 15 minutes): x is 0.62 in the median, and 0.34 to 0.85 in nine of ten.
EFFICIENCY_LEFT = (0.34, 0.42, 0.5, 0.56, 0.6, 0.62, 0.64, 0.67, 0.7, 0.77, 0.85)
# By how much the logarithm of the noise changes before a future reports it.
NOISE_STEP = 0.1
# Jobs of other applications that say how long a job is.
ALIKE_MAX = 30
# Of the variance of a guess, the part that all jobs share.
COMMON = 0.5


class Source(StrEnum):
    """How what is left of a job is known."""

    TIMED = "timed"
    REPORTED = "reported"
    PRESENT_SPEED = "present speed"
    MEAN_SPEED = "mean speed"
    LIKE_OTHERS = "like jobs that ended"
    GUESS = "guess"


class Work(NamedTuple):
    """What a job of an application needed until it succeeded; gpus: as requested.

    measured: what it had reported by then.
    """

    application: str
    gpus: int
    gpu_s: float
    measured: Measured = Measured()


@dataclass(frozen=True, kw_only=True)
class EndedWork:
    """Jobs that succeeded."""

    jobs: Sequence[Work] = ()

    def resampled(self, random: np.random.Generator) -> "EndedWork":
        """Return as many of them, drawn with replacement: how long jobs are in general
        is known from few.
        """
        if not self.jobs:
            return self
        chosen = random.integers(len(self.jobs), size=len(self.jobs))
        return EndedWork(jobs=[self.jobs[number] for number in chosen])

    def longer_than(self, spec: JobSpec, gpu_s: float) -> list[Work]:
        """Return what jobs like this one needed, of those that needed more.

        They are of its application, or else of all those that requested about as many
        GPUs.
        """
        if spec.application:
            same = self._by_application.get(spec.application, ())
            longer = [each for each in same if each.gpu_s > gpu_s]
            if longer:
                return longer
        nearest = self._nearest(spec.replicas.requested)
        longer_ones = (each for each in nearest if each.gpu_s > gpu_s)
        return list(islice(longer_ones, ALIKE_MAX))

    def end_noises(self, job: JobRecord) -> tuple[float, ...]:
        """Return the gradient noise (variance over squared norm) with which jobs of
        the same application ended; () where none is known, or the job is not adaptive.
        """
        if not job.spec.application or not job.spec.adaptive:
            return ()
        same = self._by_application.get(job.spec.application, ())
        noises = [_noise(each.measured) for each in same]
        return tuple(each for each in noises if each is not None)

    @cached_property
    def _by_application(self) -> Mapping[str, Sequence[Work]]:
        found: dict[str, list[Work]] = {}
        for job in self.jobs:
            found.setdefault(job.application, []).append(job)
        return found

    def _nearest(self, gpus: int) -> Sequence[Work]:
        """Return what the jobs needed, those first that requested about `gpus` GPUs."""
        found = self._by_gpus.get(gpus)
        if found is None:
            asked = max(gpus, 1)
            found = sorted(
                self.jobs, key=lambda job: abs(math.log(max(job.gpus, 1) / asked))
            )
            self._by_gpus[gpus] = found
        return found

    @cached_property
    def _by_gpus(self) -> dict[int, Sequence[Work]]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """What is left of one job, in units of its own.

    draws: what may be left, one of them is drawn; each with a relative error `spread`.
    counted_on: where it has GPUs, draws are GPU-seconds on this allocation. alike: what
    the job will report, of each draw; () where it reports no more than it did.

    end_noises: see EndedWork. noise: at its last report, and at its end, as drawn; None
    where it stays.
    """

    view: JobView
    source: Source
    draws: tuple[float, ...]
    spread: float
    counted_on: Allocation = WAITING
    alike: tuple[Measured, ...] = ()
    end_noises: tuple[float, ...] = ()
    noise: tuple[float, float] | None = None

    def drawn(
        self, random: np.random.Generator, common: float, nodes: Mapping[NodeId, Node]
    ) -> tuple["Remainder", float]:
        """Return the job in one future, whose view has what it will report, and what is
        left of it, in its units.

        common: a standard normal draw for all jobs: who guesses one of them wrong
        guesses the others wrong alike.
        """
        number = int(random.integers(len(self.draws)))
        part = COMMON if self.source is Source.GUESS else 0.0
        own = float(random.standard_normal())
        error = math.sqrt(part) * common + math.sqrt(1.0 - part) * own
        left = self.draws[number] * math.exp(self.spread * error)
        if self.end_noises:
            end = self.end_noises[int(random.integers(len(self.end_noises)))]
            now = _noise(self.view.measured)
            return self if now is None else replace(self, noise=(now, end)), left
        if not self.counted_on.slots:
            return self, left
        job = self._reporting(self.alike[number]) if self.alike else self
        rate = job.rate(self.counted_on, nodes)
        if rate > 0.0:
            left *= rate / self.counted_on.num_gpus
        if job.view.measured.progress_target is None or job is self:
            return job, left
        measured = replace(job.view.measured, progress_target=left)
        return job._reporting(measured), left

    def grown(self, share: float) -> "Remainder":
        """Return the job once `share` of what is left of it is done, with the gradient
        noise that it has then; itself where that has changed little.

        The logarithm of the noise changes evenly with the progress, up to that with
        which a job of its application ended, as drawn.
        """
        grad = self.view.measured.grad
        if self.noise is None or grad is None:
            return self
        now, end = self.noise
        noise = now * (end / now) ** share
        if abs(math.log(noise * grad.sqr / grad.var)) < NOISE_STEP:
            return self
        grad = replace(grad, var=noise * grad.sqr)
        return self._reporting(replace(self.view.measured, grad=grad))

    def _reporting(self, measured: Measured) -> "Remainder":
        return replace(self, view=replace(self.view, measured=measured))

    def rate(self, allocation: Allocation, nodes: Mapping[NodeId, Node]) -> float:
        """Return units per second on an allocation, a share of a GPU as its part."""
        there = [nodes[node] for node, _ in allocation.slots if node in nodes]
        if not there:
            return 0.0
        racks = len({node.rack for node in there})
        key = (
            len(there),
            allocation.num_replicas,
            there[0].gpu_type,
            racks,
        )
        if key not in self._rates:
            # The limits of the batch may rule this size out: the job trains on it all
            # the same, at its mean speed so far.
            goodput = self._goodput(*key)
            self._rates[key] = goodput or allocation.num_replicas * self._mean_rate
        return self._rates[key] * allocation.gpu_share

    def _goodput(
        self, num_nodes: int, num_replicas: int, gpu_type: str, num_racks: int
    ) -> float:
        """Return units per second; 0 where the limits of the batch forbid the size."""
        if gpu_type not in self.view.measured.by_type:
            limits = limits_in_use(self.view, gpu_type)
            lawful = _is_lawful(limits, num_replicas, adaptive=self.view.spec.adaptive)
            return float(num_replicas) if lawful else 0.0
        table = goodput_table(
            [self.view],
            [num_nodes],
            [num_replicas],
            gpu_type=gpu_type,
            num_racks_C=[num_racks],
        )
        return float(table.goodput_JC[0, 0])

    @property
    def _mean_rate(self) -> float:
        """Return units per second and GPU so far, 1 before the job has trained."""
        used = self.view.usage.attained_service_gpu_s
        progress = self.view.measured.progress
        return progress / used if progress > 0.0 and used > 0.0 else 1.0

    @cached_property
    def _rates(self) -> dict[tuple[int, int, str, int], float]:
        return {}


@lru_cache(maxsize=4_096)
def _is_lawful(limits: BatchLimits, num_replicas: int, *, adaptive: bool) -> bool:
    """Return whether a batch within the limits can be cut for so many replicas."""
    grid = adaptive_grid if adaptive else requested_grid
    return bool((grid(limits, (num_replicas,)).total_CB > 0).any())


def remainder_of(
    job: JobRecord,
    nodes: Mapping[NodeId, Node],
    at: float,
    ended: EndedWork,
    needs_gpu_s: float | None = None,
) -> Remainder:
    """Return what is left of a live job at `at` (s), as its last report shows.

    needs_gpu_s: what it will need if its reports do not say it, where that is known.
    """
    view = job_view(job, 0.0)
    measured = job.measured
    gpu_s = _service_gpu_s(job, at)
    timed = bool(measured.by_type)
    left: float | None = None
    if measured.progress_target is not None:
        left = max(measured.progress_target - measured.progress, 0.0)
    if left is not None and timed:
        return Remainder(
            view=view,
            source=Source.TIMED,
            draws=(left,),
            spread=SPREAD_TIMED,
            end_noises=ended.end_noises(job),
        )
    remaining_s = measured.metrics.get(REMAINING_S)
    if remaining_s is not None and job.trains_on and not timed:
        units = remaining_s * job.trains_on.num_replicas
        return Remainder(
            view=view, source=Source.REPORTED, draws=(units,), spread=SPREAD_TOLD
        )
    if left is not None and not timed:
        draws = _at_present_speed(job, left, at)
        if draws:
            return Remainder(
                view=view,
                source=Source.PRESENT_SPEED,
                draws=draws,
                spread=SPREAD_PRESENT_SPEED,
            )
    share = _share_done(job, left)
    if share is not None and gpu_s > 0.0 and not timed:
        return Remainder(
            view=view,
            source=Source.MEAN_SPEED,
            draws=(_at_mean_speed(job, share, gpu_s, at),),
            spread=SPREAD_MEAN_SPEED,
        )
    longer = (
        ended.longer_than(job.spec, gpu_s)
        if needs_gpu_s is None
        else [Work("", 0, needs_gpu_s)]
    )
    return _of_unknown_length(job, view, nodes, longer, gpu_s)


def _at_present_speed(job: JobRecord, left: float, at: float) -> tuple[float, ...]:
    """Return what may be left in GPU-seconds, () for a job that did not report enough.

    left: in scale-invariant samples, at the last report. A stopped job has the speed of
    its last report, on the replicas of that time.
    """
    measured = job.measured
    batch = measured.batch
    step_s = measured.step_time_s
    grad = measured.grad
    if batch is None or not step_s or grad is None:
        return ()
    now = efficiency(batch.total, job.spec.batch.initial, grad.sqr, grad.var)
    samples_per_s = batch.total / step_s
    replicas = math.ceil(batch.total / (batch.atomic * (batch.accumulation + 1)))
    gpus = replicas * (job.trains_on.gpu_share if job.trains_on else 1.0)
    unseen = _unreported_gpu_s(job, at)
    return tuple(
        max(gpus * left / (samples_per_s * now ** (1.0 - growth)) - unseen, 0.0)
        for growth in EFFICIENCY_LEFT
    )


def _unreported_gpu_s(job: JobRecord, at: float) -> float:
    """Return the GPU-seconds that a job has trained since its last report, 0 before
    the first one of its present replicas.
    """
    reported_at = job.running.reported_at
    if not job.trains_on or reported_at is None:
        return 0.0
    return job.trains_on.num_gpus * max(at - reported_at, 0.0)


def _at_mean_speed(job: JobRecord, share: float, gpu_s: float, at: float) -> float:
    """Return what is left in GPU-seconds of a job of which `share` is done.

    gpu_s: used up to `at` (s). Its starts, and the time since its last report, are not
    part of the time in which that share was done.
    """
    gpus = num_gpus_held(job) or job.spec.replicas.requested
    reported_at = job.running.reported_at
    since_s = 0.0
    if job.trains_on:
        last_seen = job.running.since if reported_at is None else reported_at
        since_s = max(at - last_seen, 0.0)
    unseen = gpus * since_s
    trained = gpu_s - unseen - gpus * job.usage.costs.total_s
    if trained <= 0.0:
        trained = gpu_s
        unseen = 0.0
    return max(trained * (1.0 - share) / share - unseen, 0.0)


def _share_done(job: JobRecord, left: float | None) -> float | None:
    """Return the part of the job that is done, in (0, 1); None if it is not known."""
    percent = job.measured.metrics.get(PERCENT_DONE)
    if left is not None and job.measured.progress > 0.0:
        share = job.measured.progress / (job.measured.progress + left)
    elif percent is not None:
        share = percent / 100.0
    else:
        return None
    return share if 0.0 < share < 1.0 else None


def _service_gpu_s(job: JobRecord, at: float) -> float:
    """Return the GPU-seconds that a job has used up to `at` (s)."""
    until = max(at, job.usage.accounted_at)
    return job.usage.upto(until, num_gpus_held(job)).attained_service_gpu_s


def _of_unknown_length(
    job: JobRecord,
    view: JobView,
    nodes: Mapping[NodeId, Node],
    longer: Sequence[Work],
    used: float,
) -> Remainder:
    """Return what is left of a job that has used `used` GPU-seconds.

    longer: what jobs like it needed that needed more.
    """
    # GPU-seconds become units of the job at the rate per GPU of what it holds, or of
    # what it asks for on one node.
    counted_on = job.trains_on or _asked_for(job, nodes)
    if not longer:
        return Remainder(
            view=view,
            source=Source.GUESS,
            draws=(max(used, GUESS_MIN_GPU_S),),
            spread=SPREAD_GUESS,
            counted_on=counted_on,
        )
    alike: tuple[Measured, ...] = ()
    if _has_reported_nothing(job.measured):
        alike = tuple(
            replace(each.measured, progress=0.0, samples=0.0)
            if each.measured.by_type
            else job.measured
            for each in longer
        )
    return Remainder(
        view=view,
        source=Source.LIKE_OTHERS,
        draws=tuple(each.gpu_s - used for each in longer),
        spread=SPREAD_LIKE_OTHERS,
        counted_on=counted_on,
        alike=alike,
    )


def _noise(measured: Measured) -> float | None:
    """Return the gradient noise, variance over squared norm; None if it is not known,
    or 0 or infinite.
    """
    grad = measured.grad
    if grad is None or not grad.sqr or not grad.var:
        return None
    return grad.var / grad.sqr


def _has_reported_nothing(measured: Measured) -> bool:
    return not measured.progress and not measured.by_type and not measured.grad


def _asked_for(job: JobRecord, nodes: Mapping[NodeId, Node]) -> Allocation:
    count = job.spec.replicas.requested
    for node in sorted(nodes.values(), key=lambda node: (-node.num_gpus, node.id)):
        if job.spec.replicas.allows_type(node.gpu_type):
            return Allocation(slots=((node.id, max(min(count, node.num_gpus), 1)),))
    return Allocation()
