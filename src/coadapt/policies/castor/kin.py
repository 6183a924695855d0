"""Kin: what jobs of one application showed, lent to the next of them while it knows less of itself."""

# A job that comes has timed nothing, and its first fit rests on one batch at one size: it may be wrong by ten
# times, and the first rescale that follows from it is one for nothing. Jobs of the same application (by name,
# with the same bounds of the batch) were there before. What is kept of them, per application:
#
#   - the step-time model of the job that trained in most settings, and what steps of all of them took over
#     what it says (`times`). It is lent to jobs that have trained in no more, if it agrees with what the
#     borrower itself timed last within KIN_FACTOR; times are then those of kin x that ratio;
#   - the gradient statistics at the beginning, for jobs that have not reported any;
#   - the noise scale over progress, half-octaves of progress apart. `noise` takes its growth ahead from
#     there.
#
# Nothing is lent where the user named no application.

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coadapt.goodput.throughput import PARAM_NAMES, step_time
from coadapt.model import GradStats, JobId, JobView, Measured, ThroughputParams, TypeProfile
from coadapt.model.quick_init import replace
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.noise import BINS_PER_OCTAVE, NUM_BINS
from coadapt.policies.castor.rates import Configs
from coadapt.policies.castor.times import Shape, StepTimes

APPLICATIONS_MAX = 256  # the longest unseen are forgotten
KIN_FACTOR = 2.0  # beyond that ratio of step times it is another training under the same name
NOISE_POINTS_MIN = 4  # bins of progress: fewer tell no growth
NEWEST = 0.2  # what a new noise scale weighs in the mean of its bin
NOISE_EXPONENT = 0.5  # of progress, beyond what was seen

Key = tuple[str, int, int, bool]
Held = tuple[str, Shape]  # GPU type, and the placement there
WhatHeld = Callable[[JobView], Held | None]


@dataclass(slots=True)
class _Kin:
    """profiles, times: by GPU type: (settings its owner trained in, model), step times measured.

    bins: mean logarithms of noise scales. edition: of what is lent.
    """

    profiles: dict[str, tuple[int, TypeProfile]] = field(default_factory=dict)
    times: dict[str, StepTimes] = field(default_factory=dict)
    edition: int = 0
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


class _Lent(NamedTuple):
    """What a job is taken for, and on which GPU types that is what its kin are; what that follows from."""

    measured: Measured
    kin: _Kin
    edition: int
    taken_for: Measured
    types: frozenset[str]


@dataclass(slots=True)
class Applications:
    """What is known per application. settings: (replicas, nodes, batch) in which each job trained.

    ratios: per job and GPU type, its last report from there, and its step time over that of its kin. lent: to
    the jobs of the last round.
    """

    kin: "OrderedDict[Key, _Kin]" = field(default_factory=OrderedDict)
    settings: dict[JobId, set[tuple[int, int, int]]] = field(default_factory=dict)
    ratios: dict[tuple[JobId, str], tuple[Measured, float]] = field(default_factory=dict)
    lent: dict[JobId, _Lent] = field(default_factory=dict)

    def observe(self, jobs: Sequence[JobView], what_held: WhatHeld) -> None:
        """Take in what jobs have reported of themselves. what_held: None where that is no one placement."""
        here = {}
        for job in jobs:
            key = key_of(job)
            if key is None or not job.measured.by_type:
                continue
            settings = here[job.id] = self.settings.get(job.id) or set()
            if job.allocation and job.measured.batch is not None:
                held = job.allocation
                settings.add((held.num_replicas, held.num_nodes, job.measured.batch.total))
            self._learn(key, job, len(settings), what_held)
        self.settings = here
        self.ratios = {key: each for key, each in self.ratios.items() if key[0] in here}
        self.lent = {job.id: self.lent[job.id] for job in jobs if job.id in self.lent}

    def _learn(self, key: Key, job: JobView, num_settings: int, what_held: WhatHeld) -> None:
        kin = self.kin.setdefault(key, _Kin())
        self.kin.move_to_end(key)
        if len(self.kin) > APPLICATIONS_MAX:
            self.kin.popitem(last=False)
        for gpu_type, profile in job.measured.by_type.items():
            known, lent = kin.profiles.get(gpu_type, (0, None))
            if num_settings >= known:
                kin.profiles[gpu_type] = (num_settings, profile)
                kin.edition += profile is not lent
        self._time(kin, job, what_held)
        grad, progress = job.measured.grad, job.measured.progress
        if grad is None or progress <= 0.0:
            return
        if progress < kin.first_progress:
            kin.edition += 1
            kin.first, kin.first_progress = grad, progress
        noise = grad.noise_scale(job.spec.batch.initial)
        if 0.0 < noise < math.inf:
            at = _bin(progress)
            before = kin.bins.get(at, math.log(noise))
            kin.bins[at] = (1.0 - NEWEST) * before + NEWEST * math.log(noise)

    def _time(self, kin: _Kin, job: JobView, what_held: WhatHeld) -> None:
        """Take in the step time that `job` reported, and how it compares with those of its kin."""
        measured, held = job.measured, what_held(job)
        if held is None or measured.batch is None or not measured.step_time_s:
            return
        gpu_type, shape = held
        before, ratio = self.ratios.get((job.id, gpu_type), (None, math.nan))
        batch, lender = measured.batch, kin.profiles.get(gpu_type)
        per_replica = batch.atomic * (batch.accumulation + 1)
        if before is measured or lender is None or -(-batch.total // per_replica) != shape.gpus:
            return  # told before, or of what it held before
        times, params = kin.times.setdefault(gpu_type, StepTimes()), lender[1].params
        said_s = float(step_time(params, shape.placement, batch.atomic, batch.accumulation))
        if math.isnan(ratio) and shape in times.taken:
            ratio = measured.step_time_s / (said_s * times.slower(params, shape))
        if math.isnan(ratio) or _agrees(ratio):
            times.note(shape, batch, measured.step_time_s)
        ratio = measured.step_time_s / (said_s * times.slower(params, shape))
        self.ratios[job.id, gpu_type] = (measured, ratio)

    def lend(self, job: JobView) -> JobView:
        """Return `job` as if it knew of itself what its kin know."""
        key = key_of(job)
        kin = None if key is None else self.kin.get(key)
        if kin is None:
            self.lent.pop(job.id, None)
            return job
        lent = self.lent.get(job.id)
        if (
            lent is None
            or lent.measured is not job.measured
            or lent.kin is not kin
            or lent.edition != kin.edition
        ):
            lent = self.lent[job.id] = self._lent(job, kin)
        return job if lent.taken_for is job.measured else replace(job, measured=lent.taken_for)

    def _lent(self, job: JobView, kin: _Kin) -> _Lent:
        own, measured = job.measured.by_type, job.measured
        num_settings = len(self.settings.get(job.id, ()))
        lent = {}
        for gpu_type, (known, profile) in kin.profiles.items():
            if gpu_type not in own:
                lent[gpu_type] = profile
            elif known >= num_settings:
                _, ratio = self.ratios.get((job.id, gpu_type), (None, math.nan))
                if _agrees(ratio):
                    lent[gpu_type] = _slower(profile, ratio, own[gpu_type])
        grad = measured.grad or kin.first
        taken_for = measured
        if lent or grad is not measured.grad:
            taken_for = replace(measured, by_type={**own, **lent}, grad=grad)
        return _Lent(measured, kin, kin.edition, taken_for, frozenset(lent))

    def slower(
        self, jobs: Sequence[JobView], gpu_types: Sequence[str], configs: Configs, held_JX: IntArray
    ) -> FloatArray:
        """Return what steps take over what their model says, of jobs that were lent to, else 1.

        (num_jobs, num_configs + 1): on all configurations, then on what each holds (held_shapes).
        """
        slower_JX = np.ones((len(jobs), len(configs.gpus_C) + 1))
        if not self.lent:
            return slower_JX
        held = held_JX.tolist()
        for number, gpu_type in enumerate(gpu_types):
            rows: dict[int, list[int]] = {}
            for row, job in enumerate(jobs):
                lent = self.lent.get(job.id)
                if lent is not None and gpu_type in lent.types and gpu_type in lent.kin.times:
                    rows.setdefault(id(lent.kin), []).append(row)
            columns = np.flatnonzero(configs.type_C == number)
            for alike in rows.values():
                kin = self.lent[jobs[alike[0]].id].kin
                times, params = kin.times[gpu_type], kin.profiles[gpu_type][1].params
                slower_C = times.slower_packed(params, configs.gpus_C[columns])
                slower_JX[np.array(alike)[:, None], columns] = slower_C
                for row in alike:
                    of_type, *shape = held[row]
                    if of_type == number and shape[-1]:
                        slower_JX[row, -1] = times.slower(params, Shape._make(shape))
        return slower_JX

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


def _agrees(ratio: float) -> bool:
    return 1.0 / KIN_FACTOR <= ratio <= KIN_FACTOR


def _slower(profile: TypeProfile, ratio: float, own: TypeProfile) -> TypeProfile:
    values = {name: getattr(profile.params, name) for name in PARAM_NAMES}
    times = {name: value * ratio for name, value in values.items() if name != "gamma"}
    return TypeProfile(
        params=ThroughputParams(**times, gamma=values["gamma"]),
        num_replicas_profiled=max(profile.num_replicas_profiled, own.num_replicas_profiled),
        max_atomic=own.max_atomic,
    )
