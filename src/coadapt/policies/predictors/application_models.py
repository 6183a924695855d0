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


class _Lent(NamedTuple):
    """The step-time model that an application lends on a GPU type.

    num_settings: the number of settings in which `owner`, whose model it is, trained.
    """

    num_settings: int
    profile: TypeProfile
    owner: JobId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Application:
    """The pooled measurements of one application.

    initial: initial batch of all its jobs. profiles: by GPU type, the number of
    settings in which the owner of the model trained there, the model, and the owner.
    times: by GPU type, measured step times. edition: counts changes of what jobs may
    borrow. bins: mean logarithm of the noise scale by bin of progress. curve_B: the
    same for all bins, None if too little was seen. compared: how much the first step
    times of each of the latest jobs differ from those of the others, |log ratio|.
    alike: whether these differences are small.
    """

    initial: int
    profiles: Mapping[str, _Lent] = field(default_factory=dict)
    times: Mapping[str, StepTimes] = field(default_factory=dict)
    edition: int = 0
    first: GradStats | None = None
    first_progress: float = math.inf
    bins: Mapping[int, float] = field(default_factory=dict)
    curve_B: FloatArray | None = None
    compared: Mapping[JobId, float] = field(default_factory=dict)
    alike: bool = True


def _curve(bins: Mapping[int, float]) -> FloatArray | None:
    """Return the logarithm of the noise scale at each bin of progress, None if too
    little was seen.
    """
    known = sorted(bins)
    if not known or known[-1] - known[0] < OCTAVES_MIN * BINS_PER_OCTAVE:
        return None
    log_noise_S = np.array([bins[each] for each in known])
    curve_B = np.empty(NUM_BINS)
    _draw(np.array(known), log_noise_S, curve_B)
    return curve_B


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

    own: the job's own measurements. edition: that of its application. used: those used
    for it. types: the GPU types on which the step-time model is borrowed.
    """

    own: Measured
    edition: int
    used: Measured
    types: tuple[str, ...]


class _Member(NamedTuple):
    """A job of an application. last: its last report. borrowed: what it last borrowed.

    settings: by GPU type, the shapes and total batches in which it trained. log_ratio:
    by GPU type, log(its latest step time / that of its application).
    """

    key: Key
    job: JobId
    last: Measured | None = None
    settings: Mapping[str, frozenset[tuple[Shape, int]]] = {}
    log_ratio: Mapping[str, float] = {}
    borrowed: _Borrowed | None = None

    def reported(self, measured: Measured, held: Held | None) -> "_Member":
        """Return the member after a report, in which it trained on `held`."""
        settings = self.settings
        if held is not None and measured.batch is not None and measured.step_time_s:
            gpu_type, shape = held
            known = settings.get(gpu_type, frozenset())
            if (shape, measured.batch.total) not in known:
                known |= {(shape, measured.batch.total)}
                settings = {**settings, gpu_type: known}
        return self._replace(last=measured, settings=settings)


class _News(NamedTuple):
    """A new report of a member, and what the job holds."""

    member: _Member
    measured: Measured
    held: Held | None


class _Timed(NamedTuple):
    """A step time that a job reported, s, and the setting in which it was measured."""

    job: JobId
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


@dataclass(frozen=True, slots=True)
class Applications:
    """All applications by key, the longest unseen first, and the jobs of the last round
    that have one. It is a value: each method returns a new one where something changes.
    """

    known: Mapping[Key, _Application] = field(default_factory=dict)
    members: Mapping[JobId, _Member] = field(default_factory=dict)

    def observed(self, jobs: Sequence[JobView], held_of: HeldOf) -> "Applications":
        """Return what is known after new reports. held_of: a job's GPU type and shape,
        None if it has no single placement.
        """
        groups: dict[Key, list[JobView]] = {}
        for job in jobs:
            key = key_of(job)
            if key is not None:
                groups.setdefault(key, []).append(job)
        known = dict(self.known)
        members: dict[JobId, _Member] = {}
        any_timed = False
        for key, group in groups.items():
            application = known.pop(key, None) or _Application(initial=key[1])
            mine, news = self._with_reports(key, group, held_of)
            if news:
                application, ratios = _learned(application, news)
                mine |= {
                    job: mine[job]._replace(log_ratio=ratio)
                    for job, ratio in ratios.items()
                }
            known[key] = application
            members |= mine
            any_timed = any_timed or any(_timed(each) is not None for each in news)
        for oldest in list(known)[:-APPLICATIONS_MAX]:
            del known[oldest]
        return Applications(_compared(known) if any_timed else known, members)

    def _with_reports(
        self, key: Key, jobs: Sequence[JobView], held_of: HeldOf
    ) -> tuple[dict[JobId, _Member], list[_News]]:
        """Return the members of an application after their reports, and the new ones
        among these reports.
        """
        found = {}
        news = []
        for job in jobs:
            member = self.members.get(job.id)
            if member is None:
                member = _Member(key, job.id)
            elif member.key != key or key not in self.known:
                member = member._replace(key=key, borrowed=None)
            if member.last is not job.measured and job.measured.by_type:
                held = held_of(job)
                member = member.reported(job.measured, held)
                news.append(_News(member, job.measured, held))
            found[job.id] = member
        return found, news

    def _membership(self, job: JobView) -> tuple[_Member, _Application] | None:
        """Return the member for `job` and its application, None if it has no
        application of alike jobs.
        """
        member = self.members.get(job.id)
        application = None if member is None else self.known.get(member.key)
        if member is None or application is None or not application.alike:
            return None
        return member, application

    def borrowing(
        self, jobs: Sequence[JobView]
    ) -> tuple["Applications", tuple[JobView, ...]]:
        """Return what is known after these jobs have borrowed, and the jobs with the
        measurements that they borrow from their applications.
        """
        members = dict(self.members)
        found = []
        for job in jobs:
            membership = self._membership(job)
            if membership is None:
                found.append(job)
                continue
            member, application = membership
            borrowed = member.borrowed
            if (
                borrowed is None
                or borrowed.own is not job.measured
                or borrowed.edition != application.edition
            ):
                borrowed = _borrow(member, application, job.measured)
                members[job.id] = member._replace(borrowed=borrowed)
            is_own = borrowed.used is job.measured
            found.append(job if is_own else replace(job, measured=borrowed.used))
        return Applications(self.known, members), tuple(found)

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
        membership = self._membership(job)
        if membership is None:
            return None
        member, application = membership
        times = application.times.get(gpu_type)
        borrowed = member.borrowed
        if borrowed is None or gpu_type not in borrowed.types or times is None:
            return None
        return _BorrowedTimes(
            times,
            application.profiles[gpu_type].profile.params,
            math.exp(member.log_ratio.get(gpu_type, 0.0)),
        )

    def application_times(
        self, job: JobView, gpu_type: str, shape: Shape
    ) -> ApplicationTimes | None:
        """Return step times of the application on this shape. The job chooses its batch
        by them. None: there are none, or the job chooses no batch.
        """
        borrowed = self._borrowed_times(job, gpu_type)
        if borrowed is None or not job.spec.adaptive:
            return None
        return borrowed.times.application_times(gpu_type, borrowed.params, shape)

    def curves(self, jobs: Sequence[JobView]) -> tuple[FloatArray, IntArray]:
        """Return logarithms of noise scales over progress (applications, bins), and
        each job's row or -1.
        """
        rows: dict[Key, int] = {}
        curves: list[FloatArray] = []
        row_J = np.full(len(jobs), -1, dtype=np.int64)
        for number, job in enumerate(jobs if self.members else ()):
            membership = self._membership(job)
            if membership is None:
                continue
            member, application = membership
            if member.key not in rows:
                curve_B = application.curve_B
                rows[member.key] = -1 if curve_B is None else len(curves)
                curves += [] if curve_B is None else [curve_B]
            row_J[number] = rows[member.key]
        return np.array(curves).reshape(-1, NUM_BINS), row_J


def _compared(known: Mapping[Key, _Application]) -> dict[Key, _Application]:
    """Return the applications with `alike` set.

    An application with too few compared jobs is judged by those of all applications.
    """
    every = [
        each for application in known.values() for each in application.compared.values()
    ]
    found = {}
    for key, application in known.items():
        compared = list(application.compared.values())
        if len(compared) < COMPARED_MIN:
            compared = every
        few = len(compared) < COMPARED_MIN
        alike = few or fmean(compared) <= math.log(UNLIKE)
        is_same = alike == application.alike
        found[key] = application if is_same else replace(application, alike=alike)
    return found


def _learned(
    application: _Application, news: Sequence[_News]
) -> tuple[_Application, dict[JobId, Mapping[str, float]]]:
    """Return an application after new reports of its jobs, and the log_ratio of each
    job whose step time was compared.
    """
    profiles = dict(application.profiles)
    edition = application.edition
    for each in news:
        edition += _lend(profiles, each)
    learned = replace(application, profiles=profiles, edition=edition)
    learned = _with_noise(learned, news)
    timed: dict[str, list[_Timed]] = {}
    for each in news:
        step = _timed(each)
        if step is not None and each.held is not None:
            timed.setdefault(each.held[0], []).append(step)
    ratios = {each.member.job: each.member.log_ratio for each in news}
    for gpu_type, steps in timed.items():
        if gpu_type in profiles:
            learned = _with_times(learned, gpu_type, steps, ratios)
    return learned, ratios


def _lend(profiles: dict[str, _Lent], news: _News) -> int:
    """Replace the models in `profiles` by those of a job that trained in more settings.
    Return how many models are new.
    """
    member = news.member
    num_new = 0
    for gpu_type, profile in news.measured.by_type.items():
        num_settings = len(member.settings.get(gpu_type, ()))
        lent = profiles.get(gpu_type)
        owns = lent is not None and lent.owner == member.job
        known = -1 if lent is None else lent.num_settings
        if num_settings > known or (num_settings == known and owns):
            num_new += lent is None or profile is not lent.profile
            profiles[gpu_type] = _Lent(num_settings, profile, member.job)
    return num_new


def _with_noise(application: _Application, news: Sequence[_News]) -> _Application:
    """Return an application after the gradient statistics of new reports."""
    first = application.first
    first_progress = application.first_progress
    edition = application.edition
    bins = dict(application.bins)
    changed = False
    for each in news:
        grad = each.measured.grad
        progress = each.measured.progress
        if grad is None or progress <= 0.0:
            continue
        if progress < first_progress:
            edition += 1
            first = grad
            first_progress = progress
        noise = grad.noise_scale(application.initial)
        if 0.0 < noise < math.inf:
            at = _bin(progress)
            before = bins.get(at, math.log(noise))
            bins[at] = (1.0 - NEWEST) * before + NEWEST * math.log(noise)
            changed = True
    return replace(
        application,
        edition=edition,
        first=first,
        first_progress=first_progress,
        bins=bins,
        curve_B=_curve(bins) if changed else application.curve_B,
    )


def _timed(news: _News) -> _Timed | None:
    """Return the reported step time on what the job holds.

    None: none was reported, or it was measured on an earlier allocation.
    """
    batch = news.measured.batch
    step_s = news.measured.step_time_s
    if news.held is None or batch is None or not step_s:
        return None
    shape = news.held[1]
    if -(-batch.total // (batch.atomic * (batch.accumulation + 1))) != shape.gpus:
        return None
    setting = (shape, batch.atomic, batch.accumulation)
    return _Timed(news.member.job, setting, step_s)


def _with_times(
    application: _Application,
    gpu_type: str,
    steps: Sequence[_Timed],
    ratios: dict[JobId, Mapping[str, float]],
) -> _Application:
    """Return an application after step times on one GPU type, which are compared with
    earlier ones. The log_ratio of each job in `ratios` is replaced.

    If the owner of the model trained on one GPU only, the model has no synchronisation
    time. Then step times on several GPUs are not compared with it.
    """
    times = application.times.get(gpu_type, StepTimes())
    profile = application.profiles[gpu_type].profile
    if profile.num_replicas_profiled <= 1:
        steps = [each for each in steps if each.setting[0].gpus <= 1]
    params = profile.params
    compared = dict(application.compared)
    predicted = times.predict(params, [step.setting for step in steps])
    for job, setting, step_s in steps:
        log_s = math.log(step_s)
        over = log_s - predicted[setting]
        ratio = ratios[job].get(gpu_type)
        if ratio is None and setting[0] in times.taken:
            ratio = over - times.error(params, setting)
        if ratio is None or _agrees(ratio):
            times = times.noted(setting, log_s)
        after = over - times.error(params, setting)
        ratios[job] = {**ratios[job], gpu_type: after}
        if ratio is not None:
            compared.setdefault(job, abs(ratio))
            if len(compared) > COMPARED_MAX:
                del compared[next(iter(compared))]
    every = {**application.times, gpu_type: times}
    return replace(application, times=every, compared=compared)


def _borrow(
    member: _Member, application: _Application, measured: Measured
) -> _Borrowed:
    """Return the measurements used for a job whose own measurements are `measured`."""
    own = measured.by_type
    before = member.borrowed
    types = tuple(
        [
            gpu_type
            for gpu_type in application.profiles
            if _borrows(member, application, gpu_type, own)
        ]
    )
    if not types:
        by_type = own
    elif (
        before is not None
        and before.own.by_type is own
        and (before.edition, before.types) == (application.edition, types)
    ):
        by_type = before.used.by_type
    else:
        borrowed = {
            name: _combined(application.profiles[name].profile, own.get(name))
            for name in types
        }
        by_type = {**own, **borrowed}
    grad = measured.grad or application.first
    used = measured
    if types or grad is not measured.grad:
        used = replace(measured, by_type=by_type, grad=grad)
    return _Borrowed(measured, application.edition, used, types)


def _borrows(
    member: _Member,
    application: _Application,
    gpu_type: str,
    own: Mapping[str, TypeProfile],
) -> bool:
    """Return whether a job with the profiles `own` borrows the application's model on a
    GPU type.
    """
    if gpu_type not in own:
        return True
    ratio = member.log_ratio.get(gpu_type)
    settings = len(member.settings.get(gpu_type, ()))
    known, model, _ = application.profiles[gpu_type]
    if not settings and own[gpu_type].num_replicas_profiled <= 1:
        passes_s = [
            _pass_s(each, application.initial) for each in (own[gpu_type], model)
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
