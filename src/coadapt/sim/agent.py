"""A simulated job as pure functions of values: it trains, measures its steps, fits a
step-time model, chooses its batch, and reports. The order of these steps is that of the
Pollux artifact's simulator (OSDI'21).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

import numpy as np

from coadapt.goodput.batch import split_total
from coadapt.goodput.efficiency import gain
from coadapt.goodput.efficiency_models import model_of
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.step_time_kriging import optimistic_step_times
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    DEFAULT_GPU_TYPE,
    ApplicationTimes,
    BatchConfig,
    BatchLimits,
    EfficiencyKind,
    Forecast,
    GradStats,
    JobSpec,
    RescaleContract,
    TrainingReport,
    TypeProfile,
)
from coadapt.sim.applications import (
    Application,
    ForecastsItself,
    Setting,
    TellsMetrics,
    packed,
    step_s,
)
from coadapt.sim.fit_cache import best_of, search_of
from coadapt.sim.learned import ONE_GPU, UNTIMED, Learned, TimedSteps, first_look
from coadapt.sim.pace import Pace, pace_of
from coadapt.sim.ramp import steps_to_come

ForecastAt = Callable[
    [int, float, float], Forecast
]  # epochs, progress and samples so far
Cut = Callable[
    [BatchLimits, int], BatchConfig
]  # the requested batch over a number of replicas

_KEEP_THEIR_BATCH = (RescaleContract.FIXED, RescaleContract.FROZEN)


@dataclass(slots=True)
class SpeedCache:
    """Speeds of one assignment, each computed once: they stay the same while it lasts.

    step_times: what `Application.step_time` returns, by atomic batch. paces: steps per
    second and the pace of a job that keeps its batch, by its share of the full speed.
    """

    step_times: dict[int, tuple[float, float]] = field(default_factory=dict)
    paces: dict[float, tuple[float, Pace]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An assignment: what one order gives a job.

    dictated: the policy's batch, None if the job chooses its own. limits: the job's
    batch limits within the memory of the setting. application_times: step times of
    other jobs of its application on that shape. cache: saves time only (without it a
    simulation takes a third longer); `with_setting` replaces it.
    """

    spec: JobSpec
    setting: Setting
    limits: BatchLimits
    dictated: BatchConfig | None = None
    application_times: ApplicationTimes | None = None
    cache: SpeedCache = field(default_factory=SpeedCache, compare=False, repr=False)

    @property
    def keeps_batch(self) -> bool:
        """Whether the batch stays the same for the whole assignment."""
        return self.dictated is not None or self.spec.contract in _KEEP_THEIR_BATCH

    def with_setting(self, setting: Setting) -> "Assignment":
        """Return the assignment in another setting."""
        return replace(self, setting=setting, cache=SpeedCache())

    def step_time(self, application: Application, atomic: int) -> tuple[float, float]:
        """Return `application.step_time` in this setting."""
        times = self.cache.step_times.get(atomic)
        if times is None:
            times = application.step_time(self.setting, atomic)
            self.cache.step_times[atomic] = times
        return times

    def step_s(self, application: Application, batch: BatchConfig) -> float:
        """Return the seconds of one optimiser step in this setting, accumulation
        included.
        """
        whole_s, sync_s = self.step_time(application, batch.atomic)
        return whole_s + batch.accumulation * (whole_s - sync_s)

    def pace(
        self, application: Application, batch: BatchConfig, speed: float
    ) -> tuple[float, Pace]:
        """Return steps per second and the pace of a job that keeps `batch`."""
        found = self.cache.paces.get(speed)
        if found is None:
            steps_per_s = speed / self.step_s(application, batch)
            initial = self.spec.batch.initial
            pace = pace_of(application, batch.total, initial, steps_per_s)
            found = steps_per_s, pace
            self.cache.paces[speed] = found
        return found

    def best(self, timed: TimedSteps, grad: GradStats) -> BatchConfig:
        """Return the best batch by noise scale. A job that uses the step times of its
        application needs no fit of its own.
        """
        times = self.application_times or timed.params
        return best_of(search_of(self.limits, self.setting.placement, times), grad)

    def with_times(self, times: ApplicationTimes | None) -> "Assignment":
        """Return the assignment with these step times of the application.

        It is unchanged if the job keeps its batch, shares its GPUs, or if the times are
        those of another placement.
        """
        if self.keeps_batch or self.setting.neighbours:
            return self
        if times == self.application_times:
            return self
        gpu_type = self.setting.gpu_type
        if times is not None and not times.are_of(gpu_type, self.setting.placement):
            return self
        return replace(self, application_times=times)

    def learn(self, application: Application, learned: Learned, atomic: int) -> Learned:
        """Return `learned` with the time of a step of `atomic` samples in this setting,
        unchanged if it has one.
        """
        if learned.on(self.setting).knows(self.setting.placement, atomic):
            return learned
        whole_s, sync_s = self.step_time(application, atomic)
        return learned.with_step(self.setting, atomic, whole_s - sync_s, whole_s)


def assignment(
    application: Application,
    spec: JobSpec,
    setting: Setting,
    dictated: BatchConfig | None = None,
) -> Assignment:
    """Return a job's assignment to `setting`. A dictated batch that does not fit into
    memory is divided into more passes.
    """
    limits = within_memory(spec.batch, application, setting)
    if (
        dictated is not None
        and limits.max_atomic is not None
        and dictated.atomic > limits.max_atomic
    ):
        dictated = _in_more_passes(dictated, limits.max_atomic)
    return Assignment(spec=spec, setting=setting, limits=limits, dictated=dictated)


def within_memory(
    limits: BatchLimits, application: Application, setting: Setting
) -> BatchLimits:
    """Return `limits` with passes that fit into the memory of `setting`."""
    ceiling = application.max_atomic(setting)
    if ceiling is None or ceiling >= (limits.max_atomic or limits.max_total):
        return limits
    return replace(limits, max_atomic=max(ceiling, limits.min_atomic))


def _in_more_passes(batch: BatchConfig, max_atomic: int) -> BatchConfig:
    share = batch.atomic * (batch.accumulation + 1)
    passes = -(-share // max_atomic)
    return BatchConfig(
        total=batch.total, atomic=-(-share // passes), accumulation=passes - 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A job's training at one instant: the content of a checkpoint, and the delay
    before the job trains on.

    epoch: finished epochs. progress: steps at the initial batch size. delay_s: rest of
    the rescale time. grad: gradient statistics of the latest step.
    """

    epoch: int = 0
    progress: float = 0.0
    samples: float = 0.0
    delay_s: float = 0.0
    batch: BatchConfig | None = None
    grad: GradStats | None = None
    learned: Learned = field(default_factory=Learned)


@dataclass(frozen=True, slots=True)
class Segment:
    """The training after a period of time. finished_s: seconds from its start to the
    end of the last epoch, None if the job has not finished.
    """

    training: Training
    finished_s: float | None = None


def assign(
    application: Application, assigned: Assignment, training: Training, delay_s: float
) -> Training:
    """Return the training under a new assignment: its batch is chosen, and `delay_s`
    passes before it trains.
    """
    batch = choose_batch(
        application,
        assigned,
        training.epoch,
        training.learned,
        training.grad,
        progress=training.progress,
        samples=training.samples,
    )
    return replace(training, batch=batch, delay_s=delay_s)


def choose_batch(
    application: Application,
    assigned: Assignment,
    epoch: int,
    learned: Learned,
    grad: GradStats | None,
    *,
    progress: float = 0.0,
    samples: float = 0.0,
) -> BatchConfig:
    """Return the batch after `epoch` epochs, `progress` steps and `samples`.

    It is the policy's, the script's own, the scheduled one, the fixed one, the smallest
    while nothing was measured on the GPU type, or the best by the job's efficiency
    model.
    """
    if assigned.dictated is not None:
        return assigned.dictated
    limits = assigned.limits
    num_replicas = assigned.setting.placement.num_replicas
    if not assigned.spec.adaptive:
        own = None
        if assigned.spec.contract is RescaleContract.SELF:
            own = application.own_batch(min(epoch, application.num_epochs - 1))
        elif limits.schedule is not None:
            own = limits.schedule.total_at(samples)
        return kept_batch(limits, num_replicas, own)
    timed = learned.on(assigned.setting)
    if grad is None or timed is UNTIMED:
        smallest = max(limits.initial, limits.min_atomic * num_replicas)
        return split_total(smallest, num_replicas, limits, accumulate_alone=True)
    if assigned.spec.efficiency.kind is not EfficiencyKind.NOISE_SCALE:
        shared = assigned.application_times
        model = model_of(
            assigned.spec, grad, progress=progress * limits.initial, samples=samples
        )
        return best_batch(
            limits,
            timed.params,
            grad,
            assigned.setting.placement,
            model=step_time if shared is None else optimistic_step_times(shared),
            efficiency_model=model,
        ).config
    return assigned.best(timed, grad)


def kept_batch(
    limits: BatchLimits, num_replicas: int, total: int | None = None
) -> BatchConfig:
    """Return the batch of exactly `total` samples, by default `limits.requested`, over
    the replicas.
    """
    return split_total(
        total or limits.requested,
        num_replicas,
        limits,
        accumulate_alone=True,
        exact=True,
    )


def advance(
    application: Application,
    assigned: Assignment,
    training: Training,
    seconds: float,
    speed: float = 1.0,
) -> Segment:
    """Return the training `seconds` later, or at its end if that comes first.

    The delay is paid first. Epochs take whole seconds, as in the artifact; after each
    epoch, and at the end of the stretch, the batch is chosen again. `speed` < 1 slows
    all steps (interference). Raises UnmeasuredError where the application's truth is
    not known for the assignment.
    """
    delay_s = min(training.delay_s, seconds)
    train = _train_keeping if assigned.keeps_batch else _train_choosing
    after, left_s = train(application, assigned, training, seconds - delay_s, speed)
    if delay_s > 0.0:
        after = replace(after, delay_s=training.delay_s - delay_s)
    ended = after.epoch >= application.num_epochs
    return Segment(after, seconds - left_s if ended else None)


def _train_choosing(
    application: Application,
    assigned: Assignment,
    training: Training,
    left_s: float,
    speed: float,
) -> tuple[Training, float]:
    """Train for `left_s` seconds; the batch is chosen again after each epoch, and at
    the end. Return the training then, and the seconds left over.
    """
    batch = training.batch
    assert batch is not None, "a batch is chosen when a job is assigned"
    epoch = training.epoch
    progress = training.progress
    samples = training.samples
    grad = training.grad
    learned = training.learned
    initial = assigned.spec.batch.initial
    num_epochs = application.num_epochs
    timed: BatchConfig | None = None
    steps_per_s = scale = rate = 0.0
    rated: GradStats | None = None
    next_at = math.inf
    ramped = assigned.spec.batch.schedule is not None
    while left_s > 0.0 and epoch < num_epochs:
        if batch is not timed:  # most periods have one batch and several epochs
            learned = assigned.learn(application, learned, batch.atomic)
            steps_per_s = speed / assigned.step_s(application, batch)
            timed = batch
            rated = None
            scale = batch.total / initial
        grad = application.grad_stats(batch.total, epoch)
        if grad is not rated:
            rate = gain(scale, grad.sqr, grad.var) * steps_per_s
            rated = grad
        target = application.progress_at(epoch + 1)
        if ramped:
            next_at = _next_change(assigned, samples)
        change_s = (next_at - samples) / (steps_per_s * batch.total)
        here_s = min(left_s, change_s)
        if progress + rate * here_s < target:
            used_s = here_s
            progress += rate * here_s
        else:
            used_s = min(float(round((target - progress) / rate)), here_s)
            progress = target
            epoch += 1
        left_s -= used_s
        # Exactly the key, whatever rounding did: below it, the earlier batch would be
        # chosen again.
        samples = (
            next_at
            if used_s == change_s
            else samples + used_s * steps_per_s * batch.total
        )
        batch = choose_batch(
            application,
            assigned,
            epoch,
            learned,
            grad,
            progress=progress,
            samples=samples,
        )
    after = Training(
        epoch=epoch,
        progress=progress,
        samples=samples,
        delay_s=training.delay_s,
        batch=batch,
        grad=grad,
        learned=learned,
    )
    return after, left_s


def _train_keeping(
    application: Application,
    assigned: Assignment,
    training: Training,
    left_s: float,
    speed: float,
) -> tuple[Training, float]:
    """Train a job that keeps its batch, as `_train_choosing` does for other jobs."""
    batch = training.batch
    assert batch is not None, "a batch is chosen when a job is assigned"
    epoch = training.epoch
    progress = training.progress
    samples = training.samples
    grad = training.grad
    learned = training.learned
    total = batch.total
    num_epochs = application.num_epochs
    if left_s > 0.0 and epoch < num_epochs:
        learned = assigned.learn(application, learned, batch.atomic)
        steps_per_s, pace = assigned.pace(application, batch, speed)
        epochs = pace.epochs
        while left_s > 0.0 and epoch < num_epochs:
            if epoch >= len(epochs):
                pace.look_ahead(epoch)
            grad, rate, begins, target, whole_s, whole_samples = epochs[epoch]
            if (
                progress == begins and left_s > whole_s + 1.0
            ):  # the whole epoch, independent of rounding
                epoch += 1
                progress = target
                left_s = left_s - whole_s
                samples = samples + whole_samples
                continue
            reached = progress + rate * left_s
            used_s = left_s
            if reached >= target:
                used_s = min(float(round((target - progress) / rate)), left_s)
                reached = target
                epoch += 1
            progress = reached
            left_s -= used_s
            samples += used_s * steps_per_s * total
    after = Training(
        epoch=epoch,
        progress=progress,
        samples=samples,
        delay_s=training.delay_s,
        batch=batch,
        grad=grad,
        learned=learned,
    )
    return after, left_s


def _next_change(assigned: Assignment, samples: float) -> float:
    """Return after how many samples the declared schedule changes the batch; infinity
    if it never does.
    """
    schedule = assigned.spec.batch.schedule
    change = None if schedule is None else schedule.next_change(samples)
    return math.inf if change is None else float(change)


def report(
    application: Application,
    assigned: Assignment,
    training: Training,
    forecast: Forecast,
) -> TrainingReport:
    """Return the job's report. Only jobs that choose their batch fit a step-time
    model.
    """
    learned = training.learned
    batch = training.batch
    assert batch is not None, "a batch is chosen when a job is assigned"
    initial = assigned.spec.batch.initial
    fits = assigned.dictated is None and training.grad is not None
    return TrainingReport(
        progress=training.progress * initial,
        progress_target=application.progress_at(application.num_epochs) * initial,
        samples=training.samples,
        batch=batch,
        by_type=_reported_by_type(application, learned) if fits else {},
        grad=training.grad,
        forecast=forecast,
        # Before its delay is over the job has timed no step here.
        step_time_s=None
        if training.delay_s > 0.0
        else assigned.step_s(application, batch),
        metrics=_metrics(application, batch.total, training.epoch),
    )


def _metrics(application: Application, total: int, epoch: int) -> Mapping[str, float]:
    if not epoch or not _tells_metrics(type(application)):
        return {}
    return cast("TellsMetrics", application).metrics(total, epoch)


@cache
def _tells_metrics(kind: type) -> bool:
    """Return whether applications of `kind` have metrics. Cached, because checking a
    Protocol is slow.
    """
    return issubclass(kind, TellsMetrics)


def _reported_by_type(
    application: Application, learned: Learned
) -> dict[str, TypeProfile]:
    return {
        name: steps.profile_within(application.max_atomic(Setting(ONE_GPU, name)))
        for name, steps in learned.by_type().items()
    }


@cache
def _forecasts_itself(kind: type) -> bool:
    """Return whether applications of `kind` forecast themselves. Cached, because
    checking a Protocol is slow.
    """
    return issubclass(kind, ForecastsItself)


class Oracle:
    """Forecasts from true speeds at the job's requested batch: the best that a
    predictor like that of Optimus could know.

    For a job with a declared schedule, a forecast has all remaining steps of the
    schedule, at the mean of their times.

    Step times are those of replicas packed on nodes of `gpus_per_node` GPUs of
    `gpu_type`, up to `num_gpus` in all.
    """

    def __init__(
        self, gpus_per_node: int, num_gpus: int, gpu_type: str = DEFAULT_GPU_TYPE
    ) -> None:
        self._gpus_per_node = gpus_per_node
        self._num_gpus = num_gpus
        self._gpu_type = gpu_type
        self._step_times: dict[
            tuple[str, BatchLimits, int, Cut], tuple[float, ...]
        ] = {}
        self._forecasts: dict[tuple[str, BatchLimits, int], dict[int, Forecast]] = {}
        self._first_looks: dict[str, Learned] = {}

    def __call__(
        self,
        application: Application,
        spec: JobSpec,
        epoch: int,
        progress: float = 0.0,
        samples: float = 0.0,
    ) -> Forecast:
        """Return the forecast of a job after `epoch` epochs, at `progress` in steps at
        its initial batch.

        samples: trained on so far, for declared schedules.
        """
        return self.of(application, spec)(epoch, progress, samples)

    def of(self, application: Application, spec: JobSpec) -> ForecastAt:
        """Return a function that forecasts one job from its epoch, progress and
        samples. It is called at each report.
        """
        if _forecasts_itself(type(application)):
            own = cast("ForecastsItself", application)
            return lambda _, progress, __: own.forecast(progress)
        if spec.batch.schedule is not None:
            return lambda *now: self._along_ramp(
                application, spec, steps_to_come(application, spec, *now)
            )
        limits = spec.batch
        most = min(
            spec.replicas.max,
            max(limits.requested // limits.min_atomic, 1),
            self._num_gpus,
        )
        by_epoch = self._forecasts.setdefault((application.name, limits, most), {})

        def after(epoch: int, _progress: float, _samples: float) -> Forecast:
            if epoch not in by_epoch:
                by_epoch[epoch] = self._after(application, limits, most, epoch)
            return by_epoch[epoch]

        return after

    def _after(
        self, application: Application, limits: BatchLimits, most: int, epoch: int
    ) -> Forecast:
        # The artifact counts from the end of the present epoch. In the last epoch a
        # single step is left.
        last = application.num_epochs
        steps = [
            application.steps(limits.requested, each)
            for each in (min(epoch + 1, last), last)
        ]
        return Forecast(
            remaining_steps=steps[1] - steps[0] if epoch + 1 < last else 1.0,
            step_time_s=self._packed_step_times(
                application, limits, most, _oracle_batch
            ),
        )

    def _along_ramp(
        self,
        application: Application,
        spec: JobSpec,
        steps_by_total: Mapping[int, float],
    ) -> Forecast:
        limits = spec.batch
        assert limits.schedule is not None
        num_steps = sum(steps_by_total.values())
        if num_steps <= 0.0:  # at its end a single step is left, as for any job
            steps_by_total = {limits.schedule.totals[-1]: 1.0}
            num_steps = 1.0
        most_gpus = min(spec.replicas.max, self._num_gpus)
        most = min(most_gpus, max(max(steps_by_total) // limits.min_atomic, 1))
        weighed_s = np.zeros(most)
        for total, count in steps_by_total.items():
            at_total = replace(limits, requested=total, schedule=None)
            # A batch that is too small for all replicas is trained on fewer.
            filled = min(most_gpus, max(total // limits.min_atomic, 1))
            times_s = self._packed_step_times(application, at_total, filled, kept_batch)
            weighed_s += count * np.array(times_s + times_s[-1:] * (most - filled))
        return Forecast(
            remaining_steps=num_steps,
            step_time_s=tuple((weighed_s / num_steps).tolist()),
        )

    def first_look(self, application: Application, gpu_types: Iterable[str]) -> Learned:
        """Return `first_look`, computed once per application, so that its jobs share
        the fits.
        """
        if application.name not in self._first_looks:
            self._first_looks[application.name] = first_look(application, gpu_types)
        return self._first_looks[application.name]

    def _packed_step_times(
        self, application: Application, limits: BatchLimits, most: int, cut: Cut
    ) -> tuple[float, ...]:
        key = (application.name, limits, most, cut)
        if key not in self._step_times:
            settings = [
                packed(n, self._gpus_per_node, self._gpu_type)
                for n in range(1, most + 1)
            ]
            self._step_times[key] = tuple(
                step_s(
                    application,
                    setting,
                    cut(within_memory(limits, application, setting), number),
                )
                for number, setting in enumerate(settings, start=1)
            )
        return self._step_times[key]


def _oracle_batch(limits: BatchLimits, num_replicas: int) -> BatchConfig:
    # The artifact's Optimus accumulates on one GPU always, even at the initial batch
    # size.
    if (
        num_replicas == 1
        and limits.accumulation
        and limits.requested >= 2 * limits.min_atomic
    ):
        limits = replace(limits, initial=1)
    return split_total(limits.requested, num_replicas, limits, accumulate_alone=True)
