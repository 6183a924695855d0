"""ElasticFlow (Gu et al., ASPLOS 2023): deadlines are promised when they can be kept,
and then kept.
"""

# A job's promise is its minimum satisfactory share. This is the smallest count n with
# which the job ends in time if in every slot it gets n GPUs, or as many as jobs with
# earlier deadlines leave free. Counts are doublings of a job's fewest replicas. A job
# is admitted if this job and all admitted jobs, in the order of deadlines, have such a
# share (algorithm 1). The GPUs that remain free in the first slot are given out
# doubling by doubling. Each time the job gets them that uses a further GPU best,
# compared with the GPUs of its own share (algorithm 2: the least GPU time is added).

import heapq
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coadapt.goodput.batch import limits_in_use
from coadapt.model import ClusterView, JobId, JobView, Plan
from coadapt.policies.allocation.capacity import Capacity, useful_span
from coadapt.policies.allocation.counted_plan import counted_plan
from coadapt.policies.allocation.pack import Pick
from coadapt.policies.allocation.reasons import plural, waits
from coadapt.policies.base import PolicyCard

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MIN_REMAINING_STEPS = (
    1.0  # of a job whose forecast says that none are left, though it is still there
)
PUT_OFF = (
    2.0  # a deadline that cannot be kept any more is put off so far, until one can
)
NUM_SLOTS_MAX = (
    2_000  # a week in slots of five minutes; later deadlines are looked at that far
)


class ElasticFlow:
    """Serves jobs with deadlines first. Jobs without a deadline, and jobs whose
    deadline cannot be promised, get the GPUs that are left.

    slot_s: seconds for which one count is planned. margin: a promise is given only
    where so much more work (1: twice) could be done in time, since forecasts err and
    rescales cost. A promise holds until its job has ended, late where it must be; a job
    that was refused is asked again when another has gone.
    """

    card: ClassVar[PolicyCard] = PolicyCard(
        paper="Gu et al., ElasticFlow, ASPLOS 2023",
        decides="admission, GPU counts",
        oracle="time left at each count",
    )

    def __init__(self, *, slot_s: float = 300.0, margin: float = 0.2) -> None:
        if not (math.isfinite(margin) and margin >= 0.0):
            raise ValueError(f"margin must be finite and >= 0, got {margin}")
        self._margin = margin
        if not (math.isfinite(slot_s) and slot_s > 0.0):
            raise ValueError(f"slot_s must be finite and > 0, got {slot_s}")
        self._slot_s = slot_s
        self._promised: set[JobId] = set()
        self._known: set[JobId] = set()

    def allocate(self, view: ClusterView) -> Plan:
        requests = {
            job.id: request
            for job in view.jobs
            if (request := self._request(job, view.at)) is not None
        }
        promises = self._promises(view, requests)
        self._promised = set(promises)
        jobs = {job.id: job for job in view.jobs}
        capacity = Capacity(view)
        order = [*promises, *(job_id for job_id in jobs if job_id not in promises)]
        for job_id in order:
            now = promises[job_id].now if job_id in promises else 0
            _give_at_most(jobs[job_id], now or useful_span(jobs[job_id])[0], capacity)
        self._spend(view, promises, capacity)
        notes = {
            job.id: _note(job, requests.get(job.id), promises, capacity)
            for job in view.jobs
        }
        return counted_plan(
            view, capacity, notes, picks=dict.fromkeys(order, Pick.FEWEST)
        )

    def _request(self, job: JobView, at: float) -> "_Request | None":
        promised = job.id in self._promised
        request = _request(job, at, promised=promised)
        if request is None or promised:
            return request
        return replace(request, steps=request.steps * (1.0 + self._margin))

    def _promises(
        self, view: ClusterView, requests: "dict[JobId, _Request]"
    ) -> "dict[JobId, _Promise]":
        """Return the promises of jobs by deadline: of all jobs that had a promise, and
        of the new jobs that can have one as well.
        """
        by_deadline = sorted(requests, key=lambda job_id: requests[job_id].left_s)
        # A refused job is tried again only after another job has ended, because no GPU
        # becomes free before that.
        known = self._known
        self._known = {job.id for job in view.jobs}
        asked = set() if known - self._known else known
        held = [job_id for job_id in by_deadline if job_id in self._promised]
        promises = self._plan(view, requests, held)
        for job_id in by_deadline:
            if job_id not in self._promised and job_id not in asked:
                wanted = [
                    each for each in by_deadline if each in held or each == job_id
                ]
                tried = self._plan(view, requests, wanted)
                if (
                    job_id in tried
                    and _num_late(tried) == _num_late(promises)
                    and len(tried) == len(wanted)
                ):
                    held = wanted
                    promises = tried
        return promises

    def _plan(
        self, view: ClusterView, requests: "dict[JobId, _Request]", wanted: list[JobId]
    ) -> "dict[JobId, _Promise]":
        """Return the promises of the jobs `wanted`, which are in the order of deadlines
        (algorithm 1).

        If a job cannot end in time, its time is doubled until it can. A job that cannot
        end in NUM_SLOTS_MAX slots is left out.
        """
        free_T = np.full(NUM_SLOTS_MAX, view.num_gpus, dtype=np.int64)
        promises = {}
        for job_id in wanted:
            request = requests[job_id]
            promise = self._share(request, request.left_s, free_T)
            left_s = request.left_s
            while promise is None and left_s < self._slot_s * NUM_SLOTS_MAX:
                left_s *= PUT_OFF
                promise = self._share(request, left_s, free_T)
            if promise is not None:
                late = left_s > request.left_s or request.late
                promises[job_id] = replace(promise, late=late)
                free_T[: len(promise.count_T)] -= promise.count_T
        return promises

    def _share(
        self, request: "_Request", left_s: float, free_T: IntArray
    ) -> "_Promise | None":
        """Return the smallest share with which `request` ends in left_s seconds on the
        GPUs free_T of each slot, None if there is none.
        """
        num_slots = min(math.ceil(left_s / self._slot_s), len(free_T))
        seconds_T = np.full(num_slots, self._slot_s)
        seconds_T[-1] = min(left_s - self._slot_s * (num_slots - 1), self._slot_s)
        for level in range(len(request.counts)):
            fits_T = np.searchsorted(
                request.counts[: level + 1], free_T[:num_slots], side="right"
            )
            count_T = np.concatenate(([0], request.counts))[fits_T]
            rate_T = np.concatenate(([0.0], request.rates))[fits_T]
            done_T = np.cumsum(rate_T * seconds_T)
            end = int(np.searchsorted(done_T, request.steps))
            if end < num_slots:
                return _Promise(
                    count=int(request.counts[level]), count_T=count_T[: end + 1]
                )
        return None

    def _spend(
        self,
        view: ClusterView,
        promises: "dict[JobId, _Promise]",
        capacity: Capacity,
    ) -> None:
        """Give out the GPUs that are left, doubling by doubling, each time to the job
        that uses a further GPU best (algorithm 2).
        """
        heap: list[tuple[float, int, int]] = []

        def push(index: int) -> None:
            job = view.jobs[index]
            counts, rates = _scaling(job) or (None, None)
            held = capacity.counts.get(job.id, 0)
            if counts is None or rates is None or not held:
                return
            level = int(np.searchsorted(counts, held, side="right")) - 1
            if level < 0 or level + 1 == len(counts):
                return
            own = promises[job.id].count if job.id in promises else int(counts[0])
            per_gpu = rates[int(np.searchsorted(counts, own))] / own
            more = (rates[level + 1] - rates[level]) / (counts[level + 1] - held)
            if more > 0.0:
                heapq.heappush(heap, (-more / per_gpu, index, int(counts[level + 1])))

        for index in range(len(view.jobs)):
            push(index)
        while heap:
            _, index, wanted = heapq.heappop(heap)
            job = view.jobs[index]
            while capacity.counts[job.id] < wanted and capacity.grow(job):
                pass
            if capacity.counts[job.id] == wanted:
                push(index)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A deadline to keep: `steps` in left_s seconds, at rates[i] steps per second on
    counts[i] GPUs.

    late: the deadline has passed.
    """

    left_s: float
    steps: float
    counts: IntArray
    rates: FloatArray
    late: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Promise:
    """The minimum satisfactory share `count`, and the GPUs that the job gets in each
    slot until it ends.
    """

    count: int
    count_T: IntArray
    late: bool = False
    """The deadline cannot be met any more, so the job is to end as early as
    possible.
    """

    @property
    def now(self) -> int:
        """The job's GPUs in the first slot, 0 if jobs with earlier deadlines need all
        of them.
        """
        return int(self.count_T[0])


def _scaling(job: JobView) -> tuple[IntArray, FloatArray] | None:
    """Return the doublings of the job's fewest replicas, up to the last that is faster,
    and the job's steps per second at each.
    """
    forecast = job.measured.forecast
    if forecast is None:
        return None
    low, most = useful_span(job)
    counts = [low]
    rates = [1.0 / forecast.step_time_s[min(low, len(forecast.step_time_s)) - 1]]
    while (count := 2 * counts[-1]) <= min(most, len(forecast.step_time_s)):
        rate = 1.0 / forecast.step_time_s[count - 1]
        if rate <= rates[-1]:
            break
        counts.append(count)
        rates.append(rate)
    return np.array(counts, dtype=np.int64), np.array(rates)


def _request(job: JobView, at: float, *, promised: bool) -> _Request | None:
    """Return the deadline of `job` as a request, None if the job has no forecast or no
    deadline, or if the deadline is too close.

    A promised deadline stays a request until the job has ended.
    """
    forecast = job.measured.forecast
    scaling = _scaling(job)
    if job.spec.deadline_at is None or forecast is None or scaling is None:
        return None
    # Any promise may need one start or rescale of the job.
    left_s = job.spec.deadline_at - at - job.rescale_s
    if left_s <= 0.0 and not promised:
        return None
    steps = max(forecast.remaining_steps, _steps_by_progress(job), MIN_REMAINING_STEPS)
    return _Request(max(left_s, 1.0), steps, *scaling, late=left_s <= 0.0)


def _steps_by_progress(job: JobView) -> float:
    """Return the steps left if the rest of the training is as efficient as before, 0 at
    the start. Unlike a forecast, this is not rounded.
    """
    seen = job.measured
    if seen.progress_target is None or not seen.progress > 0.0:
        return 0.0
    samples = (
        max(seen.progress_target - seen.progress, 0.0) * seen.samples / seen.progress
    )
    return samples / limits_in_use(job).requested


def _num_late(promises: dict[JobId, _Promise]) -> int:
    return sum(promise.late for promise in promises.values())


def _give_at_most(job: JobView, count: int, capacity: Capacity) -> None:
    """Give the job `count` GPUs, or the largest halving of that number that is free and
    that the job may hold.
    """
    low = useful_span(job)[0]
    while count >= low and job.id not in capacity.counts:
        capacity.give(job, count)
        count //= 2


def _note(
    job: JobView,
    request: _Request | None,
    promises: dict[JobId, _Promise],
    capacity: Capacity,
) -> str:
    if job.id in promises and promises[job.id].late:
        note = (
            "its promised deadline cannot be kept any more: it ends as soon as possible"
        )
    elif request is not None and job.id in promises:
        share = plural(promises[job.id].count, "GPU")
        note = (
            f"its deadline is promised: {share} from now on are enough for the "
            f"{request.left_s:.0f} s left"
        )
    elif job.spec.deadline_at is None:
        note = "without a deadline it gets what is left"
    elif job.measured.forecast is None:
        note = (
            "without a forecast its deadline cannot be promised, so it gets what is "
            "left"
        )
    elif request is None:
        note = "its deadline has come, so it gets what is left"
    else:
        note = (
            "its deadline cannot be kept beside those promised before, so it gets "
            "what is left"
        )
    if job.id in capacity.counts:
        return note
    return waits(job, useful_span(job)[0], capacity, note)
