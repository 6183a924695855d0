"""What a job does by itself while it trains, as pure functions of values: it measures its steps, fits them,
picks its batch, and reports. The order of things is that of the Pollux artifact's simulator (OSDI'21).
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

from coadapt.goodput.batch import split_total
from coadapt.goodput.efficiency import gain
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.profile import ProfileBuilder
from coadapt.model import (
    DEFAULT_GPU_TYPE,
    BatchConfig,
    BatchLimits,
    Forecast,
    GradStats,
    JobSpec,
    Placement,
    ThroughputParams,
    TrainingReport,
)
from coadapt.sim.applications import Application, packed, step_s


@dataclass(frozen=True)
class Learned:
    """The steps that a job has timed, the first of each kind; the model is fitted to them when asked for."""

    profile: ProfileBuilder = field(default_factory=ProfileBuilder)

    def knows(self, placement: Placement, atomic: int) -> bool:
        key = (placement.num_nodes, placement.num_racks, placement.num_replicas, atomic)
        return key in self.profile.rows

    def with_step(self, placement: Placement, atomic: int, compute_s: float, step_s: float) -> "Learned":
        """Return what is known after one more kind of step."""
        profile = ProfileBuilder(rows={**self.profile.rows})
        profile.add(placement, atomic, compute_s, step_s)
        return Learned(profile)

    @cached_property
    def params(self) -> ThroughputParams:
        from coadapt.goodput.fit import fit_throughput  # scipy.optimize: only where a job fits at all

        return fit_throughput(self.profile.build())

    @cached_property
    def num_replicas(self) -> int:
        """The largest replica count that was timed."""
        return self.profile.num_replicas_profiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one order gives a job. `dictated`: the policy's batch, None where the job picks its own."""

    spec: JobSpec
    placement: Placement
    dictated: BatchConfig | None = None
    gpu_type: str = DEFAULT_GPU_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A job's training at one instant: all that a checkpoint holds, and the delay before it goes on.

    epoch: epochs finished. progress: in steps at the initial batch size. delay_s: rescale time still to pay.
    grad: what the latest step saw.
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
    """Training after a stretch of time, and when after its start the last epoch ended (None: it did not)."""

    training: Training
    finished_s: float | None = None


def assign(assignment: Assignment, training: Training, delay_s: float) -> Training:
    """Return the training as it goes on under a new assignment: batch chosen, `delay_s` to pay first."""
    batch = choose_batch(assignment, training.learned, training.grad)
    return replace(training, batch=batch, delay_s=delay_s)


def choose_batch(assignment: Assignment, learned: Learned, grad: GradStats | None) -> BatchConfig:
    """Return the job's batch: dictated, fixed, the smallest while nothing is known, or the best."""
    if assignment.dictated is not None:
        return assignment.dictated
    spec, num_replicas = assignment.spec, assignment.placement.num_replicas
    if not spec.adaptive:
        return split_total(spec.batch.requested, num_replicas, spec.batch, accumulate_alone=True, exact=True)
    if grad is None:
        smallest = max(spec.batch.initial, spec.batch.min_atomic * num_replicas)
        return split_total(smallest, num_replicas, spec.batch, accumulate_alone=True)
    return best_batch(spec.batch, learned.params, grad, assignment.placement).config


def advance(
    application: Application, assignment: Assignment, training: Training, seconds: float, speed: float = 1.0
) -> Segment:
    """Return the training `seconds` later, or at its end if that comes first.

    The delay is paid first. Epochs take whole seconds, as in the artifact; after each epoch, and at the end
    of the stretch, the batch is chosen anew. `speed` < 1 slows all steps (interference). Raises
    UnmeasuredError where the application's truth is not known for the assignment.
    """
    placement, batch = assignment.placement, training.batch
    assert batch is not None, "a batch is chosen when a job is assigned"
    shape = placement.replicas_per_node
    epoch, progress, samples = training.epoch, training.progress, training.samples
    grad, learned = training.grad, training.learned
    initial = assignment.spec.batch.initial
    delay_s = min(training.delay_s, seconds)
    left_s = seconds - delay_s
    while left_s > 0.0 and epoch < application.num_epochs:
        whole_s, sync_s = application.step_time(shape, batch.atomic)
        grad = application.grad_stats(batch.total, epoch)
        if not learned.knows(placement, batch.atomic):
            learned = learned.with_step(placement, batch.atomic, whole_s - sync_s, whole_s)
        steps_per_s = speed / (whole_s + batch.accumulation * (whole_s - sync_s))
        rate = gain(batch.total / initial, grad.sqr, grad.var) * steps_per_s
        target = application.progress_at(epoch + 1)
        if progress + rate * left_s < target:
            used_s = left_s
            progress += rate * left_s
        else:
            used_s = min(float(round((target - progress) / rate)), left_s)
            progress = target
            epoch += 1
        left_s -= used_s
        samples += used_s * steps_per_s * batch.total
        if assignment.dictated is None:
            batch = choose_batch(assignment, learned, grad)
    after = Training(
        epoch=epoch,
        progress=progress,
        samples=samples,
        delay_s=training.delay_s - delay_s,
        batch=batch,
        grad=grad,
        learned=learned,
    )
    return Segment(after, seconds - left_s if epoch >= application.num_epochs else None)


def report(
    application: Application, assignment: Assignment, training: Training, forecast: Forecast
) -> TrainingReport:
    """Return what the job tells the scheduler. Only a job that picks its own batch fits a step-time model."""
    learned, batch = training.learned, training.batch
    assert batch is not None, "a batch is chosen when a job is assigned"
    initial = assignment.spec.batch.initial
    fits = assignment.dictated is None and training.grad is not None
    return TrainingReport(
        progress=training.progress * initial,
        progress_target=application.progress_at(application.num_epochs) * initial,
        samples=training.samples,
        batch=batch,
        throughput={assignment.gpu_type: learned.params} if fits else {},
        grad=training.grad,
        num_replicas_profiled=learned.num_replicas,
        forecast=forecast,
        step_time_s=step_s(application, assignment.placement.replicas_per_node, batch),
    )


class Oracle:
    """Forecasts from the truth, at the job's requested batch: what Optimus's predictor would know at best.

    Step times are those of replicas packed on nodes of `gpus_per_node`, up to `num_gpus` in all.
    """

    def __init__(self, gpus_per_node: int, num_gpus: int) -> None:
        self._gpus_per_node = gpus_per_node
        self._num_gpus = num_gpus
        self._step_times: dict[tuple[str, BatchLimits, int], tuple[float, ...]] = {}
        self._forecasts: dict[tuple[str, BatchLimits, int, int], Forecast] = {}

    def __call__(self, application: Application, spec: JobSpec, epoch: int) -> Forecast:
        """Return the forecast of a job that has finished `epoch` epochs."""
        limits = spec.batch
        most = min(spec.replicas.max, max(limits.requested // limits.min_atomic, 1), self._num_gpus)
        key = (application.name, limits, most, epoch)
        forecast = self._forecasts.get(key)
        if forecast is None:
            # The artifact counts from the end of the epoch under way: in the last one a single step is left.
            last = application.num_epochs
            steps = [application.steps(limits.requested, each) for each in (min(epoch + 1, last), last)]
            forecast = self._forecasts[key] = Forecast(
                remaining_steps=steps[1] - steps[0] if epoch + 1 < last else 1.0,
                step_time_s=self._packed_step_times(application, limits, most),
            )
        return forecast

    def _packed_step_times(
        self, application: Application, limits: BatchLimits, most: int
    ) -> tuple[float, ...]:
        key = (application.name, limits, most)
        if key not in self._step_times:
            self._step_times[key] = tuple(
                step_s(
                    application,
                    packed(n, self._gpus_per_node),
                    _oracle_batch(limits, n),
                )
                for n in range(1, most + 1)
            )
        return self._step_times[key]


def _oracle_batch(limits: BatchLimits, num_replicas: int) -> BatchConfig:
    # The artifact's Optimus accumulates on one GPU always, even at the initial batch size.
    if num_replicas == 1 and limits.accumulation and limits.requested >= 2 * limits.min_atomic:
        limits = replace(limits, initial=1)
    return split_total(limits.requested, num_replicas, limits, accumulate_alone=True)
