"""Application models: measurements of earlier jobs of an application, used for a job
that has fewer measurements of its own.
"""

# A new job has no measurements. Its first fit uses one batch at one size, may be wrong
# by a factor of ten, and causes a useless rescale. But jobs of the same application
# (the same name and the same limits of the batch) ran before. For each application,
# these are kept and pooled:
#
#   - for each GPU type, the step-time model of the job that trained there in most
#     settings, and the errors of that model for all jobs (`times`). A job borrows the
#     model if the job trained there in no more settings, and if its latest step time
#     agrees with the model within RATIO_MAX. Its predicted step times are then those of
#     the application, times that ratio. A job that was only timed on one GPU at its
#     start has no step times: then its time of a pass must agree instead.
#   - the first gradient statistics, for jobs that have not reported any;
#   - the noise scale over progress, in eighths of an octave of progress. `noise_growth`
#     predicts the noise of other jobs from it.
#
# A job without an application borrows nothing. Nor does a job whose application has
# unlike jobs: their step times differ by more than UNLIKE on average.

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.model import (
    ApplicationTimes,
    GradStats,
    JobId,
    JobView,
    Measured,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.predictors.best_goodputs import Configs
from coadapt.policies.predictors.measured_step_times import (
    NO_ERROR,
    Setting,
    Shape,
    Slower,
    StepTimes,
)
from coadapt.policies.predictors.noise_growth import BINS_PER_OCTAVE, NUM_BINS
from coadapt.policies.solvers.arrays import FloatArray, IntArray

APPLICATIONS_MAX = 256  # number of applications; the longest unseen are forgotten
# Largest ratio of a job's step time to that of its application. A job with a larger
# ratio is another training of the same name, and borrows nothing.
RATIO_MAX = 2.0
# Largest mean ratio of step times between jobs of one application. Measured: 1.00 to
# 1.01 if jobs run the same training, 1.2 to 1.7 otherwise.
UNLIKE = 1.1
# Number of jobs compared per application. With fewer than the first, the comparison is
# over the jobs of all applications.
COMPARED_MIN = 3
COMPARED_MAX = 50
ONE_GPU = Shape(1, 1, 1)
OCTAVES_MIN = 1.5  # shortest range of progress from which noise growth is predicted
NEWEST = 0.2  # weight of a new noise scale in the moving mean of its bin
NOISE_EXPONENT = 0.5  # the noise grows as this power of progress beyond the last bin
LOG_2 = math.log(2.0)

Key = tuple[str, int, int, bool]
Held = tuple[str, Shape]  # GPU type, and the placement there
HeldOf = Callable[[JobView], Held | None]


@dataclass(slots=True, eq=False)
class _Application:
    """The pooled measurements of one application.

    initial: initial batch of all its jobs. profiles: by GPU type, the number of
    settings in which the owner of the model trained there, the model, and the owner.
    times: by GPU type, measured step times. edition: counts changes of what jobs may
    borrow. bins: mean logarithm of the noise scale by bin of progress. curve_B: the
    same for all bins, None after a bin has changed. compared: how much the step times
    of each of the latest jobs differ from those of the others, |log ratio|. alike:
    whether these differences are small.
    """

    initial: int
    profiles: dict[str, tuple[int, TypeProfile, JobId]] = field(default_factory=dict)
    times: dict[str, StepTimes] = field(default_factory=dict)
    edition: int = 0
    first: GradStats | None = None
    first_progress: float = math.inf
    bins: dict[int, float] = field(default_factory=dict)
    curve_B: FloatArray | None = None
    compared: dict[JobId, float] = field(default_factory=dict)
    alike: bool = True

    def compare(self, job: JobId, log_ratio: float) -> None:
        """Record how much the first step time of a job differs from the others."""
        self.compared.setdefault(job, abs(log_ratio))
        if len(self.compared) > COMPARED_MAX:
            del self.compared[next(iter(self.compared))]

    def curve(self) -> FloatArray | None:
        """Return the logarithm of the noise scale at each bin of progress; None: too
        little was seen.
        """
        if self.curve_B is None:
            known = sorted(self.bins)
            if not known or known[-1] - known[0] < OCTAVES_MIN * BINS_PER_OCTAVE:
                return None
            log_noise_S = np.array([self.bins[each] for each in known])
            self.curve_B = np.empty(NUM_BINS)
            _draw(np.array(known), log_noise_S, self.curve_B)
        return self.curve_B


@compiled_lean
def _draw(seen_S: IntArray, log_noise_S: FloatArray, curve_B: FloatArray) -> None:
    """Write the logarithm of the noise scale of each bin.

    Bins without measurements are interpolated. Bins before the first measured one have
    its noise scale; beyond the last one the noise grows by NOISE_EXPONENT.
    """
    low = 0
    last = len(seen_S) - 1
    for b in range(len(curve_B)):
        while low < last and seen_S[low + 1] <= b:
            low += 1
        curve_B[b] = log_noise_S[low]
        if low == last:
            curve_B[b] += NOISE_EXPONENT * (
                max(b - seen_S[last], 0) / BINS_PER_OCTAVE * LOG_2
            )
        elif b > seen_S[low]:
            slope = (log_noise_S[low + 1] - log_noise_S[low]) / (
                seen_S[low + 1] - seen_S[low]
            )
            curve_B[b] = slope * (b - seen_S[low]) + log_noise_S[low]


class _Borrowed(NamedTuple):
    """The measurements used for a job, and what they were computed from.

    own: the job's own measurements. used: those used for it. types: the GPU types on
    which the step-time model is borrowed from the application.
    """

    own: Measured
    application: _Application
    edition: int
    used: Measured
    types: tuple[str, ...]


@dataclass(slots=True)
class _Member:
    """A job of an application. last: its last report. borrowed: what it last borrowed.

    settings: by GPU type, the shapes and total batches in which it trained. log_ratio:
    by GPU type, log(its latest step time / that of its application).
    """

    application: _Application
    job: JobId
    last: Measured | None = None
    settings: dict[str, set[tuple[Shape, int]]] = field(default_factory=dict)
    log_ratio: dict[str, float] = field(default_factory=dict)
    borrowed: _Borrowed | None = None


class _Report(NamedTuple):
    """A step time that a job reported, s, and the setting in which it was measured."""

    member: _Member
    setting: Setting
    step_s: float


class _BorrowedTimes(NamedTuple):
    """Step times of an application on a GPU type that a job borrows.

    params: the step-time model to which they are relative. ratio: the job's own step
    times over them.
    """

    times: StepTimes
    params: ThroughputParams
    ratio: float


@dataclass(slots=True)
class _Curves:
    """Curves of model errors, each computed once. found: their arrays, in order.

    numbers: the number of the first curve, by step times and shape. The shape is None
    for the curves of all configurations.
    """

    found: list[FloatArray] = field(default_factory=lambda: [NO_ERROR])
    size: int = 1
    numbers: dict[tuple[int, Shape | None], int] = field(default_factory=dict)

    def of_all(self, borrowed: _BorrowedTimes, gpus_C: IntArray) -> int:
        """Return the number of the first of the curves of all configurations."""
        key = id(borrowed.times), None
        if key not in self.numbers:
            self._add(key, borrowed.times.packed(borrowed.params, gpus_C))
        return self.numbers[key]

    def on(self, borrowed: _BorrowedTimes, shape: Shape) -> int:
        """Return the number of the curve of a shape."""
        key = id(borrowed.times), shape
        if key not in self.numbers:
            self._add(key, borrowed.times.on(borrowed.params, shape))
        return self.numbers[key]

    def _add(self, key: tuple[int, Shape | None], curves: FloatArray) -> None:
        self.numbers[key] = self.size
        self.found.append(curves)
        self.size += len(curves)


@dataclass(slots=True)
class Applications:
    """All applications by key, and the jobs of the last round that have one."""

    known: "OrderedDict[Key, _Application]" = field(default_factory=OrderedDict)
    members: dict[JobId, _Member] = field(default_factory=dict)

    def observe(self, jobs: Sequence[JobView], held_of: HeldOf) -> None:
        """Learn from new reports. held_of: a job's GPU type and shape, None if it has
        no single placement.
        """
        here = {}
        reports: dict[tuple[int, str], list[_Report]] = {}
        for job in jobs:
            key = key_of(job)
            if key is None:
                continue
            application = self._application(key)
            member = here[job.id] = self.members.get(job.id) or _Member(
                application, job.id
            )
            member.application = application
            if member.last is job.measured or not job.measured.by_type:
                continue
            member.last = job.measured
            held = held_of(job)
            _learn(member, job, held)
            report = None if held is None else _report(member, held[1])
            if held is not None and report is not None:
                reports.setdefault((id(application), held[0]), []).append(report)
        for (_, gpu_type), timed in reports.items():
            _time(timed[0].member.application, gpu_type, timed)
        if reports:
            self._compare_applications()
        self.members = here

    def _application(self, key: Key) -> _Application:
        application = self.known.get(key)
        if application is None:
            _, initial, *_ = key
            application = self.known[key] = _Application(initial)
        self.known.move_to_end(key)
        if len(self.known) > APPLICATIONS_MAX:
            self.known.popitem(last=False)
        return application

    def _compare_applications(self) -> None:
        """Set for each application whether its jobs are alike.

        An application with too few compared jobs is judged by those of all
        applications.
        """
        every = [
            each
            for application in self.known.values()
            for each in application.compared.values()
        ]
        for application in self.known.values():
            compared = list(application.compared.values())
            if len(compared) < COMPARED_MIN:
                compared = every
            few = len(compared) < COMPARED_MIN
            application.alike = few or fmean(compared) <= math.log(UNLIKE)

    def _member_of(self, job: JobView) -> _Member | None:
        """Return the member for `job`, None if it has no application of alike jobs."""
        member = self.members.get(job.id)
        return member if member is not None and member.application.alike else None

    def with_borrowed(self, job: JobView) -> JobView:
        """Return `job` with the measurements that it borrows from its application."""
        member = self._member_of(job)
        if member is None:
            return job
        application = member.application
        borrowed = member.borrowed
        if (
            borrowed is None
            or borrowed.own is not job.measured
            or borrowed.application is not application
            or borrowed.edition != application.edition
        ):
            borrowed = member.borrowed = _borrow(member, job.measured)
        return (
            job
            if borrowed.used is job.measured
            else replace(job, measured=borrowed.used)
        )

    def slower(
        self,
        jobs: Sequence[JobView],
        gpu_types: Sequence[str],
        configs: Configs,
        held_JX: IntArray,
    ) -> Slower:
        """Return step times over those of the borrowed model; 1 for jobs without one.

        The columns are all configurations, then the current allocation.
        """
        curves = _Curves()
        shape = len(jobs), len(configs.gpus_C) + 1
        curve_JX = np.zeros(shape, dtype=np.int64)
        ratio_JX = np.ones(shape)
        held = held_JX.tolist() if self.members else []
        for number, gpu_type in enumerate(gpu_types if self.members else ()):
            begin, end = np.searchsorted(configs.type_C, (number, number + 1)).tolist()
            gpus_C = configs.gpus_C[begin:end]
            every_C = np.arange(end - begin)
            for row, job in enumerate(jobs):
                borrowed = self._borrowed_times(job, gpu_type)
                if borrowed is None:
                    continue
                curve_JX[row, begin:end] = curves.of_all(borrowed, gpus_C) + every_C
                ratio_JX[row, begin:end] = borrowed.ratio
                of_type, nodes, racks, gpus = held[row]
                if of_type == number:
                    on = Shape(nodes, racks, gpus) if gpus else ONE_GPU
                    curve_JX[row, -1] = curves.on(borrowed, on)
                    ratio_JX[row, -1] = borrowed.ratio
        return Slower(np.concatenate(curves.found), curve_JX, ratio_JX)

    def _borrowed_times(self, job: JobView, gpu_type: str) -> "_BorrowedTimes | None":
        """Return the step times that a job borrows on a GPU type, None if none."""
        member = self._member_of(job)
        if (
            member is None
            or member.borrowed is None
            or gpu_type not in member.borrowed.types
        ):
            return None
        times = member.application.times.get(gpu_type)
        if times is None:
            return None
        return _BorrowedTimes(
            times,
            member.application.profiles[gpu_type][1].params,
            math.exp(member.log_ratio.get(gpu_type, 0.0)),
        )

    def application_times(
        self, job: JobView, gpu_type: str, shape: Shape
    ) -> ApplicationTimes | None:
        """Return step times of the application on this shape. The job chooses its batch
        by them. None: there are none, or the job chooses no batch.
        """
        member = self._member_of(job)
        if member is None or member.borrowed is None or not job.spec.adaptive:
            return None
        times = member.application.times.get(gpu_type)
        if times is None or gpu_type not in member.borrowed.types:
            return None
        return times.application_times(
            gpu_type, member.application.profiles[gpu_type][1].params, shape
        )

    def curves(self, jobs: Sequence[JobView]) -> tuple[FloatArray, IntArray]:
        """Return logarithms of noise scales over progress (applications, bins), and
        each job's row or -1.
        """
        rows: dict[int, int] = {}
        curves: list[FloatArray] = []
        row_J = np.full(len(jobs), -1, dtype=np.int64)
        for number, job in enumerate(jobs if self.members else ()):
            member = self._member_of(job)
            if member is None:
                continue
            if id(member.application) not in rows:
                curve = member.application.curve()
                rows[id(member.application)] = -1 if curve is None else len(curves)
                curves += [] if curve is None else [curve]
            row_J[number] = rows[id(member.application)]
        return np.array(curves).reshape(-1, NUM_BINS), row_J


def _learn(member: _Member, job: JobView, held: Held | None) -> None:
    """Learn from the report of `job`, except from its step time."""
    application = member.application
    measured = job.measured
    if held is not None and measured.batch is not None and measured.step_time_s:
        gpu_type, shape = held
        member.settings.setdefault(gpu_type, set()).add((shape, measured.batch.total))
    for gpu_type, profile in measured.by_type.items():
        num_settings = len(member.settings.get(gpu_type, ()))
        known, model, owner = application.profiles.get(gpu_type, (-1, None, ""))
        if num_settings > known or (num_settings == known and owner == job.id):
            application.profiles[gpu_type] = (num_settings, profile, job.id)
            application.edition += profile is not model
    grad = measured.grad
    progress = measured.progress
    if grad is None or progress <= 0.0:
        return
    if progress < application.first_progress:
        application.edition += 1
        application.first = grad
        application.first_progress = progress
    noise = grad.noise_scale(job.spec.batch.initial)
    if 0.0 < noise < math.inf:
        at = _bin(progress)
        before = application.bins.get(at, math.log(noise))
        application.bins[at] = (1.0 - NEWEST) * before + NEWEST * math.log(noise)
        application.curve_B = None


def _report(member: _Member, shape: Shape) -> _Report | None:
    """Return the reported step time on this shape.

    None: none was reported, or it was measured on an earlier allocation.
    """
    last = member.last
    if last is None or last.batch is None or not last.step_time_s:
        return None
    batch = last.batch
    if -(-batch.total // (batch.atomic * (batch.accumulation + 1))) != shape.gpus:
        return None
    return _Report(member, (shape, batch.atomic, batch.accumulation), last.step_time_s)


def _time(application: _Application, gpu_type: str, reports: Sequence[_Report]) -> None:
    """Learn from step times on one GPU type, and compare them with earlier ones.

    If the owner of the model trained on one GPU only, the model has no synchronisation
    time. Then step times on several GPUs are not compared with it.
    """
    if gpu_type not in application.profiles:
        return
    times = application.times.setdefault(gpu_type, StepTimes())
    profile = application.profiles[gpu_type][1]
    if profile.num_replicas_profiled <= 1:
        reports = [each for each in reports if each.setting[0].gpus <= 1]
    params = profile.params
    predicted = times.predict(params, [report.setting for report in reports])
    for member, setting, step_s in reports:
        shape = setting[0]
        log_s = math.log(step_s)
        over = log_s - predicted[setting]
        ratio = member.log_ratio.get(gpu_type)
        if ratio is None and shape in times.taken:
            ratio = over - times.error(params, setting)
        if ratio is None or _agrees(ratio):
            times.note(setting, log_s)
        member.log_ratio[gpu_type] = over - times.error(params, setting)
        if ratio is not None:
            application.compare(member.job, ratio)


def _borrow(member: _Member, measured: Measured) -> _Borrowed:
    """Return the measurements used for a job whose own measurements are `measured`."""
    application = member.application
    own = measured.by_type
    before = member.borrowed
    types = tuple(
        [
            gpu_type
            for gpu_type in application.profiles
            if _borrows(member, gpu_type, own)
        ]
    )
    if not types:
        by_type = own
    elif (
        before is not None
        and before.own.by_type is own
        and (before.application, before.edition, before.types)
        == (application, application.edition, types)
    ):
        by_type = before.used.by_type
    else:
        borrowed = {
            name: _combined(application.profiles[name][1], own.get(name))
            for name in types
        }
        by_type = {**own, **borrowed}
    grad = measured.grad or application.first
    used = measured
    if types or grad is not measured.grad:
        used = replace(measured, by_type=by_type, grad=grad)
    return _Borrowed(measured, application, application.edition, used, types)


def _borrows(member: _Member, gpu_type: str, own: Mapping[str, TypeProfile]) -> bool:
    """Return whether a job with the profiles `own` borrows the application's model on a
    GPU type.
    """
    if gpu_type not in own:
        return True
    ratio = member.log_ratio.get(gpu_type)
    settings = len(member.settings.get(gpu_type, ()))
    known, model, _ = member.application.profiles[gpu_type]
    if not settings and own[gpu_type].num_replicas_profiled <= 1:
        passes_s = [
            _pass_s(each, member.application.initial) for each in (own[gpu_type], model)
        ]
        return (
            known > 0
            and min(passes_s) > 0.0
            and _agrees(math.log(passes_s[0] / passes_s[1]))
        )
    return ratio is not None and _agrees(ratio) and known >= settings


def _pass_s(profile: TypeProfile, atomic: int) -> float:
    """Return the seconds of a pass with `atomic` samples."""
    return profile.params.alpha_c + profile.params.beta_c * atomic


def key_of(job: JobView) -> Key | None:
    """Return the application of a job: name, batch limits, and whether it is adaptive.

    None: the user named no application.
    """
    spec = job.spec
    if not spec.application:
        return None
    return spec.application, spec.batch.initial, spec.batch.max_total, spec.adaptive


def _bin(progress: float) -> int:
    return int(
        min(
            max(round(BINS_PER_OCTAVE * math.log2(max(progress, 1.0))), 0), NUM_BINS - 1
        )
    )


def _agrees(log_ratio: float) -> bool:
    return abs(log_ratio) <= math.log(RATIO_MAX)


def _combined(model: TypeProfile, own: TypeProfile | None) -> TypeProfile:
    """Return the profile `model` with the memory of `own`, and the larger number of
    replicas.
    """
    if own is None:
        return model
    timed = max(model.num_replicas_profiled, own.num_replicas_profiled)
    return TypeProfile(
        params=model.params, num_replicas_profiled=timed, max_atomic=own.max_atomic
    )
