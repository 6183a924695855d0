"""What ONES knows of each job: how fast it was on how many GPUs, how far it is, and how
many it may have.
"""

# Limits. A job starts on its fewest replicas. A job that fills its limit for two epochs
# may have twice as many; so no job jumps to a batch whose learning rate it has not been
# led to. No job has more than four times what its user named. The largest job gives way
# when it holds half the cluster and has run longer than the median: with T its run time
# over the median, it may keep 2 size / (T + 1), evened. A job that was paused and not
# taken back is halved.
#
# Throughput on n replicas is the mean of the last five measurements on n; between
# measured counts it is linear, through the origin and beyond the largest.

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from coadapt.model import JobView
from coadapt.policies.allocation.capacity import span
from coadapt.policies.ones.solve import FloatArray
from coadapt.policies.predictors.declared import declared_samples, declared_steps_left
from coadapt.policies.predictors.progress_beta import Features

NUM_MEASURED = 5  # measurements per replica count that count
# at its limit before a job may have twice as many, and before it may be taken out
EPOCHS_TO_GROW = 2.0
NOMINAL_TIMES = 4  # a job's replicas at most, in multiples of those requested
EPOCHS_UNKNOWN = 100  # epochs of a job that does not tell how many it has


@dataclass(slots=True, kw_only=True)
class Record:
    """One job's past. limit: of its replicas; allowed: the present one. Instants in s,
    work in epochs.

    rates: samples per second by replica count. features: at each new epoch, with the
    samples then.
    """

    limit: int
    allowed: int
    epochs: float = 0.0
    scaled_at: float = 0.0
    scheduled_at: float = 0.0
    held: int = 0
    samples: float = 0.0
    completed: float = 0.0
    first_loss: float | None = None
    rates: dict[int, deque[float]] = field(default_factory=dict)
    features: list[tuple[Features, float]] = field(default_factory=list)

    def note(self, job: JobView) -> None:
        """Take in what `job` reports now."""
        measured = job.measured
        held = job.allocation.num_replicas
        self.samples = measured.samples
        self.completed = completed_share(job) or 0.0
        epochs = measured.samples / epoch_samples(job)
        if (
            held
            and measured.step_time_s
            and measured.batch is not None
            and held == self.held
        ):
            rates = self.rates.setdefault(held, deque(maxlen=NUM_MEASURED))
            rates.append(measured.batch.total / measured.step_time_s)
        if int(epochs) > int(self.epochs):
            self.features.append((self._features(job, epochs), measured.samples))
        if held != self.held:
            self.scaled_at = epochs
            self.held = held
        self.epochs = epochs

    def now(self, job: JobView) -> Features:
        """Return the features of `job` at present."""
        return self._features(job, self.epochs)

    def _features(self, job: JobView, epochs: float) -> Features:
        loss = job.measured.metrics.get("loss")
        accuracy = job.measured.metrics.get("accuracy", 0.0)
        if loss is None:
            # Without a loss (simulation): the completed share stands for it, where it
            # is known.
            return Features(
                epoch_samples(job), 0.0, epochs, completed_share(job) or 0.0, accuracy
            )
        if self.first_loss is None:
            self.first_loss = max(loss, 1e-9)
        return Features(
            epoch_samples(job),
            self.first_loss,
            epochs,
            1.0 - loss / self.first_loss,
            accuracy,
        )

    def grow(self, job: JobView, num_gpus: int) -> None:
        """Let a job that has filled its limit for two epochs have twice as many."""
        high = most_replicas(job, num_gpus)
        settled = self.epochs - self.scaled_at >= EPOCHS_TO_GROW
        if self.held >= self.limit and settled and self.limit < num_gpus:
            self.limit = min(2 * self.limit, num_gpus)
            self.scaled_at = self.epochs
        self.allowed = min(self.limit, high)

    def halve(self, low: int) -> None:
        """Take back half of what a paused job may have."""
        self.limit, self.allowed = (
            max(self.limit // 2, low),
            max(self.allowed // 2, low),
        )

    def throughput(self, most: int) -> FloatArray:
        """Return samples per second on 0..most replicas; all 0 before the first
        measurement.
        """
        if not self.rates:
            return np.zeros(most + 1)
        known = sorted(self.rates)
        values = [float(np.mean(self.rates[count])) for count in known]
        inside = np.interp(np.arange(most + 1), [0, *known], [0.0, *values])
        slope = values[-1] / known[-1]
        rate_K: FloatArray = np.where(
            np.arange(most + 1) > known[-1], slope * np.arange(most + 1), inside
        )
        return rate_K


def most_replicas(job: JobView, num_gpus: int) -> int:
    """Return the most replicas that `job` may ever have: its own, its batch's, four
    times the nominal.
    """
    low, high = span(job)
    batch = job.spec.batch
    grows = job.spec.adaptive or batch.schedule is not None
    by_batch = (batch.max_total if grows else batch.requested) // batch.min_atomic
    return max(
        min(
            high,
            NOMINAL_TIMES * job.spec.replicas.requested,
            max(by_batch, 1),
            num_gpus,
        ),
        low,
    )


def epoch_samples(job: JobView) -> float:
    """Return the samples of an epoch of `job`; a hundredth of its work if the number is
    unknown.
    """
    forecast = job.measured.forecast
    length = job.spec.length
    num_epochs = float(forecast.num_epochs) if forecast is not None else 0.0
    if not num_epochs and length is not None:
        num_epochs = length.epochs or 0.0
    whole = job.measured.progress_target or declared_samples(job)
    return (
        max(whole / (num_epochs or EPOCHS_UNKNOWN), 1.0)
        if whole
        else 1000.0 * job.spec.batch.initial
    )


def completed_share(job: JobView) -> float | None:
    """Return the share of its work that `job` has done: by its own target, else by its
    declared length.

    None where neither is known, and for a job that was to have ended long ago by the
    latter.
    """
    if target := job.measured.progress_target:
        return min(job.measured.progress / target, 1.0)
    left = declared_steps_left(job)
    return (
        None
        if left is None
        else min(job.measured.samples / (declared_samples(job) or 1.0), 1.0)
    )


def decayed(size: int, run_s: float, median_s: float) -> int:
    """Return what the largest job may keep after `run_s`: 2 size / (T + 1), T over the
    median, made even.
    """
    kept = max(int(2.0 * size / (run_s / median_s + 1.0)), 1)
    return kept + kept % 2
