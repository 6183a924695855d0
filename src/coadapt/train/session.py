"""What the parts of one training process share: its group, its progress, and what is
running.
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

# How a step compares with the initial batch where the batch never changes.
SAME_BATCH = BatchScale(scale=1.0, gain=1.0)


@dataclass(slots=True)
class Progress:
    """How far training is.

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
    """Measured step times and the parameters last fitted to them, per GPU type; they
    survive generations.
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
    """What follows from the training data and its loader: batches allowed and in use,
    order, noise seen.

    stream: where a stream stands, None at the start of its epochs and for other data.
    further_noise: of pairs of model and optimiser that do not lead. trend: 1 or -1 if
    the batch has last grown or shrunk, else 0. decide_at: samples trained on after
    which the run chooses its batch next. batches: (samples trained on, total batch) of
    each change, the first from 0 samples on.
    ids: the present epoch's sample ids in order, where the script's sampler gives them;
    ends: the positions at which the batches of a batch sampler end, each of which is a
    step.
    max_total: the largest batch that was asked for; `limits` have less where the data
    set is smaller.
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
    """What the script notes: the newest of each metric, and this replica's part of the
    epoch's totals.

    validation: where figures add up, and how many samples the pass has, while a
    validation loader is iterated over. computed_s: how long this replica computed in
    the last step that was timed, 0 once it was told.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    logged: LoggedValues = field(default_factory=LoggedValues)
    totals: Totals = field(default_factory=Totals)
    validation: tuple[Totals, float] | None = None
    # What `run.weight` said of a pass of validation, and of which one.
    validation_weight: tuple[object, float] | None = None
    computed_s: float = 0.0
    # The step in which a loss or the gradients were first infinite or not a number.
    not_finite: int | None = None
    stragglers: Stragglers = field(default_factory=Stragglers)

    def note_trouble(self, step: int, what: str, *, speaks: bool) -> None:
        """In `step` something was not finite; `what` says what. Told once, by the
        replica that `speaks`.
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
        """Return the metrics by which a report tells of it."""
        return {} if self.not_finite is None else {NOT_FINITE: float(self.not_finite)}


@dataclass(slots=True, kw_only=True)
class Session:
    """The state of a run. Only the step boundary and the loader change it; everything
    else reads.

    group: replaced when replicas come or go. sampling: None until a loader exists.
    current: the pass that is running, None outside the loader's loop. memory_ceilings:
    what fits into memory, per GPU type. trial: a pass runs by itself, to see whether it
    fits. broken_off: the pass in which the loop was left.
    random_seed: what all random numbers of the run follow from that are not the
    script's own.
    noise_asked: the script has asked for the noise scale on this replica. noise_wanted:
    on any of them, as all have agreed.
    model_is_sharded: each of several replicas has a shard of the model. weights: how
    much passes weigh. needs_two: a model normalises over the batch, so it refuses a
    pass of one sample.
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
    loss_scaled: bool = False  # by mixed precision's loss scaler
    # torch's own gather of a pass's rows, by its name, once the loop has called it.
    raw_gather: str = ""
    # `run.gather` was called: a step's samples are to be seen in one pass.
    gathers: bool = False
    needs_two: bool = False

    @property
    def adaptive(self) -> bool:
        return self.config.contract is RescaleContract.ADAPTIVE

    @property
    def chooses_batch(self) -> bool:
        """Return whether the run itself chooses its batch; else it is fixed, declared
        or dictated.
        """
        return self.adaptive and self.config.job.batch is None

    @property
    def uses_noise(self) -> bool:
        """Return whether anybody uses the noise scale. The same on all replicas."""
        rule = self.data.limits.rule
        ruled = rule is not None and rule.kind is RuleKind.NOISE_SCALE
        return self.adaptive or ruled or self.noise_wanted or bool(self.config.job.url)

    @property
    def gpu_type(self) -> str:
        return self.config.job.gpu_type or self.group.device.type

    @property
    def memory_ceiling(self) -> MemoryCeiling:
        """Return what is known of the memory of this replica's GPU type."""
        return self.memory_ceilings.get(self.gpu_type, MemoryCeiling())

    def __post_init__(self) -> None:
        self.figures.logged = LoggedValues(self.config.logged)

    def note_logged(self, names: Collection[str]) -> None:
        """Note that the script logged the newest values of these metrics."""
        self.figures.logged.note(
            float(self.progress.samples), self.figures.metrics, names
        )

    @property
    def scope(self) -> tuple[Totals, float]:
        """Return where figures of the present pass add up, and how many samples it
        has.
        """
        if self.figures.validation is not None:
            return self.figures.validation
        return self.figures.totals, 1.0 if self.current is None else float(
            self.current.num_samples
        )

    @property
    def mean_weight(self) -> tuple[float, bool]:
        """Return how much a mean over the present pass weighs, and whether `run.weight`
        said so.
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
        """The present pass weighs `amount`. Raises InputError outside of a loop, and
        for what is no weight.
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
        """Return whether a backward now ends an optimiser step; outside the loader each
        one does.
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
        """Let the present epoch have so many samples: the length of the data set as it
        begins.
        """
        data = self.data
        if num_samples != data.order.num_samples:
            data.order = replace(data.order, num_samples=num_samples)
            self.fit_largest_batch()

    def fit_largest_batch(self) -> None:
        """Keep an adaptive batch within the data set.

        A batch above the whole of it would be cut short, or with `drop_last` leave no
        step at all.
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
        """Return the batch in two passes, as one replica takes it whose batch goes by
        its noise.

        What one pass leaves can only be compared with that of the next step, from other
        parameters: where learning rates are such that steps overshoot, that finds any
        noise scale, infinite ones too. None: the batch is measured as it is, or may not
        be cut.
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
        """The loader has found no further step in this epoch. RuntimeError if it never
        found one.
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
        """The epoch before has ended: nothing of it is to be done any more."""
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
        """Return the noise scale by which a pair scales its rate. name: empty for the
        pair that leads.
        """
        if not name:
            return self.data.noise
        return self.data.further_noise.setdefault(
            name, NoiseScale(self.data.limits.initial)
        )

    def scale(self, step_samples: int, name: str = "") -> BatchScale:
        """Return how a step of that size compares with the initial batch, where the
        batch changes.

        That is, of `adaptive` jobs, and of those with a batch rule, whose samples all
        count alike: their gain is the scale itself. name: of the pair whose noise scale
        counts.
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
