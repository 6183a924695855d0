"""Kin: what jobs of one application showed, lent to the next of them while it knows less of itself."""

# A job that comes has timed nothing, and its first fit rests on one batch at one size: it may be wrong by ten
# times, and the first rescale that follows from it is one for nothing. Jobs of the same application (by name,
# with the same bounds of the batch) were there before. What is kept of them, per application:
#
#   - the step-time model of the job that trained in most settings. It is lent to jobs that have trained in
#     fewer, if both models agree about what the borrower itself has timed within KIN_FACTOR; times are then
#     those of the lender x that ratio;
#   - the gradient statistics at the beginning, for jobs that have not reported any;
#   - the noise scale over progress, half-octaves of progress apart. `noise` takes its growth ahead from
#     there.
#
# Nothing is lent where the user named no application.

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from coadapt.goodput.throughput import PARAM_NAMES, step_time
from coadapt.model import GradStats, JobId, JobView, Measured, Placement, ThroughputParams, TypeProfile
from coadapt.model.quick_init import replace
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.noise import BINS_PER_OCTAVE, NUM_BINS

APPLICATIONS_MAX = 256  # the longest unseen are forgotten
KIN_FACTOR = 2.0  # beyond that ratio of step times it is another training under the same name
NOISE_POINTS_MIN = 4  # bins of progress: fewer tell no growth
NEWEST = 0.2  # what a new noise scale weighs in the mean of its bin
NOISE_EXPONENT = 0.5  # of progress, beyond what was seen

Key = tuple[str, int, int, bool]


@dataclass(slots=True)
class _Kin:
    """profiles: GPU type -> (settings its owner trained in, model). bins: mean logarithms of noise scales."""

    profiles: dict[str, tuple[int, TypeProfile]] = field(default_factory=dict)
    first: GradStats | None = None
    first_progress: float = math.inf
    bins: dict[int, float] = field(default_factory=dict)

    def curve(self) -> FloatArray | None:
        """Return the logarithm of the noise scale at each bin of progress; None: too little was seen."""
        if len(self.bins) < NOISE_POINTS_MIN:
            return None
        known = sorted(self.bins)
        every = np.arange(NUM_BINS)
        log_noise = np.interp(every, known, [self.bins[each] for each in known])
        beyond = np.maximum(every - known[-1], 0) / BINS_PER_OCTAVE * math.log(2.0)
        result: FloatArray = log_noise + NOISE_EXPONENT * beyond
        return result


@dataclass(slots=True)
class Applications:
    """What is known per application. settings: (replicas, nodes, batch) in which each job trained.

    ratios: per job and GPU type, its last report from there, and its step time over that of its kin's model.
    """

    kin: "OrderedDict[Key, _Kin]" = field(default_factory=OrderedDict)
    settings: dict[JobId, set[tuple[int, int, int]]] = field(default_factory=dict)
    ratios: dict[tuple[JobId, str], tuple[Measured | None, float]] = field(default_factory=dict)

    def observe(self, jobs: Sequence[JobView]) -> None:
        """Take in what jobs have reported of themselves."""
        here = {}
        for job in jobs:
            key = key_of(job)
            if key is None or not job.measured.by_type:
                continue
            settings = here[job.id] = self.settings.get(job.id) or set()
            if job.allocation and job.measured.batch is not None:
                held = job.allocation
                settings.add((held.num_replicas, held.num_nodes, job.measured.batch.total))
            self._learn(key, job, len(settings))
        self.settings = here
        self.ratios = {key: each for key, each in self.ratios.items() if key[0] in here}

    def _learn(self, key: Key, job: JobView, num_settings: int) -> None:
        kin = self.kin.setdefault(key, _Kin())
        self.kin.move_to_end(key)
        if len(self.kin) > APPLICATIONS_MAX:
            self.kin.popitem(last=False)
        for gpu_type, profile in job.measured.by_type.items():
            if num_settings >= kin.profiles.get(gpu_type, (0, profile))[0]:
                kin.profiles[gpu_type] = (num_settings, profile)
        grad, progress = job.measured.grad, job.measured.progress
        if grad is None or progress <= 0.0:
            return
        if progress < kin.first_progress:
            kin.first, kin.first_progress = grad, progress
        noise = grad.noise_scale(job.spec.batch.initial)
        if 0.0 < noise < math.inf:
            at = _bin(progress)
            before = kin.bins.get(at, math.log(noise))
            kin.bins[at] = (1.0 - NEWEST) * before + NEWEST * math.log(noise)

    def lend(self, job: JobView, type_held: Callable[[JobView], str | None]) -> JobView:
        """Return `job` as if it knew of itself what its kin know. type_held: the GPU type that it holds."""
        key = key_of(job)
        kin = None if key is None else self.kin.get(key)
        if kin is None:
            return job
        own, measured = job.measured.by_type, job.measured
        num_settings = len(self.settings.get(job.id, ()))
        lent = {}
        for gpu_type, (known, profile) in kin.profiles.items():
            if gpu_type not in own:
                lent[gpu_type] = profile
            elif known > num_settings:
                ratio = self._agreed(job, profile, gpu_type, here=gpu_type == type_held(job))
                if 1.0 / KIN_FACTOR <= ratio <= KIN_FACTOR:
                    lent[gpu_type] = _slower(profile, ratio, own[gpu_type])
        grad = measured.grad or kin.first
        if not lent and grad is measured.grad:
            return job
        return replace(job, measured=replace(measured, by_type={**own, **lent}, grad=grad))

    def _agreed(self, job: JobView, profile: TypeProfile, gpu_type: str, *, here: bool) -> float:
        """Return `_ratio` as of the last report from GPUs of this type: by now the job may have been moved.

        here: whether that is the type that it holds, of which alone its last step time tells.
        """
        measured, ratio = self.ratios.get((job.id, gpu_type), (None, math.nan))
        if here and measured is not job.measured:
            newer = _ratio(job, profile)
            ratio = ratio if math.isnan(newer) else newer
            self.ratios[job.id, gpu_type] = (job.measured, ratio)
        return ratio

    def curves(self, jobs: Sequence[JobView]) -> tuple[FloatArray, IntArray]:
        """Return logarithms of noise scales over progress (applications, bins), and each job's row or -1."""
        rows: dict[Key, int] = {}
        curves: list[FloatArray] = []
        row_J = np.full(len(jobs), -1, dtype=np.int64)
        for number, job in enumerate(jobs):
            key = key_of(job)
            kin = None if key is None else self.kin.get(key)
            if key is None or kin is None:
                continue
            if key not in rows:
                curve = kin.curve()
                rows[key] = -1 if curve is None else len(curves)
                curves += [] if curve is None else [curve]
            row_J[number] = rows[key]
        return np.array(curves).reshape(-1, NUM_BINS), row_J


def key_of(job: JobView) -> Key | None:
    """Return what jobs of one application have in common; None: the user named none."""
    spec = job.spec
    if not spec.application:
        return None
    return spec.application, spec.batch.initial, spec.batch.max_total, spec.adaptive


def _bin(progress: float) -> int:
    return int(min(max(round(BINS_PER_OCTAVE * math.log2(max(progress, 1.0))), 0), NUM_BINS - 1))


def _ratio(job: JobView, other: TypeProfile) -> float:
    """Return the step time that `job` last reported over what `other` says of it; nan: nothing to compare."""
    measured = job.measured
    if measured.batch is None or not measured.step_time_s or not job.allocation:
        return math.nan
    batch, counts = measured.batch, [count for _, count in job.allocation.slots]
    said = float(step_time(other.params, Placement(tuple(counts)), batch.atomic, batch.accumulation))
    return measured.step_time_s / said


def _slower(profile: TypeProfile, ratio: float, own: TypeProfile) -> TypeProfile:
    values = {name: getattr(profile.params, name) for name in PARAM_NAMES}
    times = {name: value * ratio for name, value in values.items() if name != "gamma"}
    return TypeProfile(
        params=ThroughputParams(**times, gamma=values["gamma"]),
        num_replicas_profiled=max(profile.num_replicas_profiled, own.num_replicas_profiled),
        max_atomic=own.max_atomic,
    )
