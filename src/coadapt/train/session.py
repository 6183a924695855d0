"""The state that the parts of one training process share: its group, its progress, and
what is running.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from torch import Tensor

from coadapt.goodput.batch import split_total
from coadapt.model import (
    BatchConfig,
    BatchLimits,
    GradStats,
    InputError,
    RescaleContract,
    RuleKind,
    ThroughputParams,
)
from coadapt.model.measured import NOT_FINITE
from coadapt.train.checkpoint_period import CheckpointPeriod
from coadapt.train.env import TrainConfig
from coadapt.train.group.group import Group
from coadapt.train.group.pass_weights import PassWeights, checked_weight
from coadapt.train.group.stragglers import Stragglers
from coadapt.train.group.totals import Totals
from coadapt.train.logged_values import LoggedValues
from coadapt.train.memory_ceiling import MemoryCeiling
from coadapt.train.noise.noise_scale import NoiseScale
from coadapt.train.noise.scaling_rules import BatchScale, batch_scale
from coadapt.train.samples.order import Ids, Pass, SampleOrder, samples_to_next
from coadapt.train.samples.stream import StreamPosition
from coadapt.train.step_times import StepTimes

logger = logging.getLogger(__name__)

# The scale of a step relative to the initial batch, if the batch never changes.
SAME_BATCH = BatchScale(scale=1.0, gain=1.0)


@dataclass(slots=True)
class Progress:
    """The position of the training.

    index: samples used in this epoch. step: optimiser steps. samples: samples in all.
    progress: samples x efficiency.
    """

    epoch: int = 0
    index: int = 0
    step: int = 0
    samples: int = 0
    progress: float = 0.0


@dataclass(slots=True)
class Profiles:
    """Measured step times and the parameters last fitted to them, by GPU type. They are
    kept over generations.
    """

    times: dict[str, StepTimes] = field(default_factory=dict)
    params: dict[str, ThroughputParams] = field(default_factory=dict)

    def of(self, gpu_type: str) -> StepTimes:
        found = self.times.get(gpu_type)
        if found is None:
            found = self.times[gpu_type] = StepTimes()
        return found


@dataclass(slots=True, kw_only=True)
class Sampling:
    """The state of the training data and its loader: allowed batches, the present
    batch, the order of samples, and the measured noise.

    stream: the position in a stream, None at the start of an epoch and for other data.
    further_noise: the noise scales of pairs of model and optimiser other than the
    first. trend: 1 if the last change of the batch was a growth, -1 if it was a
    reduction, else 0. decide_at: the samples trained on after which the run next
    chooses its batch. batches: (samples trained on, total batch) of each change; the
    first is at 0 samples. ids: the present epoch's sample ids in order, if the script's
    sampler gives them. ends: the positions at which the batches of a batch sampler end;
    each of these batches is a step. max_total: the largest requested batch; `limits`
    has less if the data set is smaller.
    """

    limits: BatchLimits
    order: SampleOrder
    batch: BatchConfig
    noise: NoiseScale
    further_noise: dict[str, NoiseScale] = field(default_factory=dict)
    trend: int = 0
    stream: StreamPosition | None = None
    decide_at: int = 0
    batches: list[tuple[int, int]] = field(default_factory=list)
    max_total: int = 0
    ids: Ids | None = None
    ends: Ids | None = None


@dataclass(slots=True)
class Figures:
    """The figures that the script records: the newest value of each metric, and this
    replica's part of the epoch's totals.

    validation: during a loop over a validation loader, the totals of this loop and the
    number of samples of the pass. computed_s: the seconds that this replica computed in
    the last timed step, 0 once they were reported.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    logged: LoggedValues = field(default_factory=LoggedValues)
    totals: Totals = field(default_factory=Totals)
    validation: tuple[Totals, float] | None = None
    # The weight of a validation pass from `run.weight`, and the pass that it belongs
    # to.
    validation_weight: tuple[object, float] | None = None
    computed_s: float = 0.0
    # The step in which a loss or the gradients were first infinite or not a number.
    not_finite: int | None = None
    stragglers: Stragglers = field(default_factory=Stragglers)

    def note_trouble(self, step: int, what: str, *, speaks: bool) -> None:
        """Record that in `step` something was not finite. what: describes it. speaks:
        whether this replica logs it. Only the first case is recorded.
        """
        if self.not_finite is not None:
            return
        self.not_finite = step
        if speaks:
            logger.warning(
                "step %d: %s: look at the data and the loss, lower the learning "
                "rate, or clip; training continues",
                step,
                what,
            )

    def trouble(self) -> dict[str, float]:
        """Return the metrics with which a report shows the first such step."""
        return {} if self.not_finite is None else {NOT_FINITE: float(self.not_finite)}


@dataclass(slots=True, kw_only=True)
class Session:
    """The state of a run. Only the step loop and the loader change it; all other code
    reads it.

    group: replaced when replicas join or leave. sampling: None until a loader exists.
    current: the running pass, None outside the loader's loop. memory_ceilings: the
    samples that fit into memory, by GPU type. trial: whether a pass runs separately, to
    test whether it fits. broken_off: the pass in which the script left the loop.
    random_seed: the seed of all random numbers of the run, except the script's own.
    noise_asked: whether the script has read the noise scale on this replica.
    noise_wanted: whether it has on any replica, as all have agreed. model_is_sharded:
    whether each of several replicas has a shard of the model. weights: the weights of
    passes. checkpoint_period: decides when a checkpoint is due. needs_two: whether a
    model normalises over the batch, and so refuses a pass of one sample.
    """

    config: TrainConfig
    group: Group
    progress: Progress = field(default_factory=Progress)
    sampling: Sampling | None = None
    profiles: Profiles = field(default_factory=Profiles)
    current: Pass | None = None
    figures: Figures = field(default_factory=Figures)
    memory_ceilings: dict[str, MemoryCeiling] = field(default_factory=dict)
    trial: bool = False
    broken_off: Pass | None = None
    random_seed: int = 0
    noise_asked: bool = False
    noise_wanted: bool = False
    model_is_sharded: bool = False
    weights: PassWeights = field(default_factory=PassWeights)
    checkpoint_period: CheckpointPeriod = field(default_factory=CheckpointPeriod)
    loss_scaled: bool = False  # by mixed precision's loss scaler
    # torch's own gather of a pass's rows, by its name, once the loop has called it.
    raw_gather: str = ""
    # Whether `run.gather` was called, so that a step must have a single pass.
    gathers: bool = False
    needs_two: bool = False

    @property
    def adaptive(self) -> bool:
        return self.config.contract is RescaleContract.ADAPTIVE

    @property
    def chooses_batch(self) -> bool:
        """Return whether the run itself chooses its batch. Otherwise the batch is
        fixed, declared or dictated.
        """
        return self.adaptive and self.config.job.batch is None

    @property
    def uses_noise(self) -> bool:
        """Return whether the noise scale is used. The result is the same on all
        replicas.
        """
        rule = self.data.limits.rule
        ruled = rule is not None and rule.kind is RuleKind.NOISE_SCALE
        return self.adaptive or ruled or self.noise_wanted or bool(self.config.job.url)

    @property
    def gpu_type(self) -> str:
        return self.config.job.gpu_type or self.group.device.type

    @property
    def memory_ceiling(self) -> MemoryCeiling:
        """Return the known memory ceiling of this replica's GPU type."""
        return self.memory_ceilings.get(self.gpu_type, MemoryCeiling())

    def __post_init__(self) -> None:
        self.figures.logged = LoggedValues(self.config.logged)

    def note_logged(self, names: Collection[str]) -> None:
        """Record that the script logged the newest values of these metrics."""
        self.figures.logged.note(
            float(self.progress.samples), self.figures.metrics, names
        )

    @property
    def scope(self) -> tuple[Totals, float]:
        """Return the totals to which figures of the present pass are added, and the
        number of its samples.
        """
        if self.figures.validation is not None:
            return self.figures.validation
        return self.figures.totals, 1.0 if self.current is None else float(
            self.current.num_samples
        )

    @property
    def mean_weight(self) -> tuple[float, bool]:
        """Return the weight of a mean over the present pass, and whether it comes from
        `run.weight`.
        """
        validation = self.figures.validation
        said = self.figures.validation_weight
        if validation is not None:
            if said is None or said[0] is not validation:
                return validation[1], False
            return said[1], True
        if self.current is None:
            return 1.0, False
        weight = self.weights.of_pass(self.current)
        return weight, self.weights.said

    def weigh_pass(self, amount: float | Tensor) -> None:
        """Set the weight of the present pass. Raises InputError outside of a loop, and
        for an invalid weight.
        """
        validation = self.figures.validation
        if validation is not None:
            value = checked_weight(amount) if validation[1] else 0.0
            self.figures.validation_weight = (validation, value)
        elif self.current is not None:
            self.weights.give(amount, self.current, self.progress.step)
        elif not self.trial:
            allowed = "a call in the body of the loop over the loader, before backward"
            raise InputError("run.weight(n)", "a call outside of the loop", allowed)

    @property
    def synchronising(self) -> bool:
        """Return whether a backward pass now ends an optimiser step. Outside the loader
        each backward does.
        """
        return self.current is None or self.current.synchronising

    @property
    def data(self) -> Sampling:
        """Return `sampling`, for parts that only run once a loader exists."""
        assert self.sampling is not None, "no loader yet"
        return self.sampling

    @property
    def epoch_over(self) -> bool:
        """Return whether the current epoch has no step left."""
        data = self.data
        if data.order.stream:
            return data.stream is not None and data.stream.over
        return not self.step_samples(self.progress.index)

    def step_samples(self, index: int) -> int:
        """Return the size of the step that begins at position `index` of the epoch, 0
        at the epoch's end.
        """
        data = self.data
        if data.ends is None:
            return data.order.step_samples(index, data.batch)
        return samples_to_next(data.ends, index)

    def epoch_ids(self) -> Ids:
        """Return the sample ids of the present epoch, in order."""
        data = self.data
        if data.ids is not None:
            return data.ids
        return data.order.epoch(self.progress.epoch)

    def set_length(self, num_samples: int) -> None:
        """Set the length of the present epoch: the length of the data set when the
        epoch begins.
        """
        data = self.data
        if num_samples != data.order.num_samples:
            data.order = replace(data.order, num_samples=num_samples)
            self.fit_largest_batch()

    def fit_largest_batch(self) -> None:
        """Keep an adaptive batch within the data set.

        A batch larger than the data set would be cut short. With `drop_last` there
        would be no step at all.
        """
        data = self.data
        if not self.adaptive or data.order.stream or data.order.num_samples is None:
            return
        limits = data.limits
        largest = max(min(data.max_total, data.order.num_samples), limits.initial)
        data.limits = replace(
            limits, max_total=largest, requested=min(limits.requested, largest)
        )
        if data.batch.total > largest:
            data.batch = split_total(largest, self.group.size, data.limits, exact=True)

    @property
    def halved(self) -> BatchConfig | None:
        """Return the present batch cut in two passes, which a single replica needs to
        measure the noise scale.

        Otherwise the gradient of a single pass could be compared only with that of the
        next step, which has other parameters. With learning rates at which steps
        overshoot, such a comparison gives arbitrary, even infinite noise scales. None:
        the batch needs no cut, or may not be cut.
        """
        data = self.data
        batch = data.batch
        half = data.batch.total // 2
        ruled = (
            data.limits.rule is not None
            and data.limits.rule.kind is RuleKind.NOISE_SCALE
        )
        alone = (
            (self.adaptive or ruled)
            and not self.group.distributed
            and not batch.accumulation
        )
        # Not 1: batch normalisation refuses a single sample.
        if self.gathers or not (
            alone
            and data.limits.accumulation
            and half >= max(data.limits.min_atomic, 2)
        ):
            return None
        return BatchConfig(
            total=batch.total, atomic=-(-batch.total // 2), accumulation=1
        )

    def end_stream(self) -> None:
        """Record that the loader has found no further step in this epoch. Raises
        RuntimeError if the epoch had no step at all.
        """
        data = self.data
        if not data.order.stream:
            return
        if not self.progress.index:
            least = (
                f"one batch of {data.batch.total} samples"
                if data.order.drop_last
                else "one sample"
            )
            raise RuntimeError(
                f"the stream had less than {least} to give in epoch "
                f"{self.progress.epoch}; it is iterated "
                "over once per epoch, which a generator does not survive"
            )
        data.stream = StreamPosition(over=True)

    def begin_epoch(self) -> None:
        """Begin the next epoch, after the previous one has ended."""
        data = self.data
        progress = self.progress
        if data.stream is not None and data.stream.over:
            data.order = replace(data.order, num_samples=progress.index)
        data.stream = self.broken_off = None
        progress.epoch += 1
        progress.index = 0
        self.figures.totals.clear()

    def grad_stats(self) -> GradStats | None:
        return self.data.noise.stats()

    def noise_of(self, name: str) -> NoiseScale:
        """Return the noise scale with which a pair scales its learning rate. name: the
        pair's name, empty for the first pair.
        """
        if not name:
            return self.data.noise
        return self.data.further_noise.setdefault(
            name, NoiseScale(self.data.limits.initial)
        )

    def scale(self, step_samples: int, name: str = "") -> BatchScale:
        """Return the scale and the gain of a step of `step_samples` relative to the
        initial batch.

        Both are 1 for jobs whose batch never changes. In jobs with a batch rule all
        samples count alike, so the gain is the scale. name: the pair whose noise scale
        is used, empty for the first.
        """
        limits = self.data.limits
        if limits.rule is not None:
            scale = max(step_samples / limits.requested, 1.0)
            return BatchScale(scale=scale, gain=scale)
        if not self.adaptive:
            return SAME_BATCH
        order = self.data.order
        epochs = float(self.progress.epoch)
        if order.num_samples:
            epochs += (self.progress.index + step_samples) / order.num_samples
        return batch_scale(
            step_samples, self.data.limits.initial, self.noise_of(name).stats(), epochs
        )
