"""What a job was measured to do, and what it used so far: values that only grow, by
pure methods.

The scheduler's state, a policy's view, histories and snapshots hold these values as
they are. A new figure is one field here with one line in `after`, and one field in
TrainingReport.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import Allocation
from coadapt.model.efficiency import EfficiencyPoint
from coadapt.model.report import (
    LOGGED_MAX,
    Forecast,
    GradStats,
    Logged,
    TrainingReport,
    TypeProfile,
)

# Metrics of a report that name the replica that is slower than its peers.
RANK = "straggler_rank"
RATIO = "straggler_ratio"
NO_STRAGGLER = -1
# Less than this is within what equal machines differ by from minute to minute.
RATIO_MIN = 1.25

# Metric of a report: the step in which a loss or the gradients were first not finite.
NOT_FINITE = "not_finite_step"

# Seconds that the last checkpoints cost training, in the mean.
SAVE_S = "checkpoint_save_seconds"

# And those by which a script tells how far it is that cannot say it in samples
# (KEP-2779): percent, seconds.
PERCENT_DONE = "progress_percentage"
REMAINING_S = "estimated_remaining_seconds"

# A job that adapts at every report for a week stays below this; older changes are
# dropped first.
BATCH_HISTORY_MAX = 20_000
# Branches are costly: a job that measures four batches each hour for a week has 672
# points.
EFFICIENCY_POINTS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a job has reported so far. A report without a value keeps the previous one;
    progress never decreases.
    """

    progress: float = 0.0
    """Scale-invariant samples: samples * efficiency."""
    progress_target: float | None = None
    """Progress at which the job ends, None while it is not known."""
    samples: float = 0.0
    """Samples used for training."""
    batch: BatchConfig | None = None
    """The batch in use: as reported, or as the policy dictated it."""
    batch_history: tuple[tuple[float, int], ...] = ()
    """(instant, total batch) at each change, the latest BATCH_HISTORY_MAX of them."""
    step_time_s: float | None = None
    """Seconds of one optimiser step, as last reported; None: none was since the batch
    was.
    """
    by_type: Mapping[str, TypeProfile] = field(default_factory=dict)
    """What was learned per GPU type."""
    grad: GradStats | None = None
    """Gradient statistics, None before the first were reported."""
    efficiency_points: tuple[EfficiencyPoint, ...] = ()
    """Efficiencies that the job measured directly, the latest EFFICIENCY_POINTS_MAX of
    them.
    """
    forecast: Forecast | None = None
    """What is left to do, and how fast it goes."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The user's own figures, such as loss and accuracy."""
    logged: tuple[Logged, ...] = ()
    """The latest LOGGED_MAX values of the metric whose values are all reported
    (ENV_LOGGED), in order.
    """

    @property
    def num_replicas_profiled(self) -> int:
        """The largest replica count whose step time was measured, on any GPU type."""
        return max(
            [each.num_replicas_profiled for each in self.by_type.values()], default=0
        )

    def after(self, report: TrainingReport, at: float) -> "Measured":
        """Return the measurements after `report`, which arrived at `at` (s). Values
        that the report lacks are kept.
        """
        batch = self.batch if report.batch is None else report.batch
        points = self.efficiency_points
        profiles = self.by_type
        history = self.batch_history
        target = report.progress_target
        step_s = report.step_time_s
        has_step_time = step_s is not None or report.batch is not None
        kept = batch is None or (
            history and history[-1][1] == batch.total
        )  # nearly always
        return Measured(
            progress=self.progress
            if self.progress > report.progress
            else report.progress,
            progress_target=self.progress_target if target is None else target,
            samples=self.samples if self.samples > report.samples else report.samples,
            batch=batch,
            batch_history=history if kept else self._history_with(batch, at),
            step_time_s=step_s if has_step_time else self.step_time_s,
            by_type=self._profiles_with(report.by_type) if report.by_type else profiles,
            grad=self.grad if report.grad is None else report.grad,
            efficiency_points=self._points_with(report.efficiency_points)
            if report.efficiency_points
            else points,
            forecast=self.forecast if report.forecast is None else report.forecast,
            metrics={**self.metrics, **report.metrics}
            if report.metrics
            else self.metrics,
            logged=(self.logged + report.logged)[-LOGGED_MAX:]
            if report.logged
            else self.logged,
        )

    def with_batch(self, batch: BatchConfig | None, at: float) -> "Measured":
        """Return the measurements of a job that trains with `batch` from `at` (s) on.
        None: the job chooses its own batch.
        """
        if batch is None or batch == self.batch:
            return self
        return replace(self, batch=batch, batch_history=self._history_with(batch, at))

    def _history_with(
        self, batch: BatchConfig | None, at: float
    ) -> tuple[tuple[float, int], ...]:
        history = self.batch_history
        if batch is None or (history and history[-1][1] == batch.total):
            return history
        return (*history[-(BATCH_HISTORY_MAX - 1) :], (at, batch.total))

    def _points_with(
        self, reported: tuple[EfficiencyPoint, ...]
    ) -> tuple[EfficiencyPoint, ...]:
        return (*self.efficiency_points, *reported)[-EFFICIENCY_POINTS_MAX:]

    def _profiles_with(
        self, reported: Mapping[str, TypeProfile]
    ) -> Mapping[str, TypeProfile]:
        known = self.by_type
        newer = {name: each.after(known.get(name)) for name, each in reported.items()}
        if all(known.get(name) is each for name, each in newer.items()):
            return known  # itself: what follows from it need not be worked out again
        return {**known, **newer}


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleCosts:
    """The training time that starts and rescales cost a job, as reported."""

    num_measured: int = 0
    """The number of pauses reported, one per generation at most."""
    total_s: float = 0.0
    """Their sum, seconds of training."""
    num_in_place: int = 0
    """Those of them without a restart."""
    pause: Mapping[str, float] = field(default_factory=dict)
    """Parts of the last pause of a rescale in place, seconds; empty before the
    first.
    """
    generation: int = 0
    """The latest generation that reported a pause."""

    @property
    def mean_s(self) -> float | None:
        """The mean cost in s; None before the first measurement."""
        return self.total_s / self.num_measured if self.num_measured else None

    def after(
        self, generation: int, cost_s: float, pause: Mapping[str, float]
    ) -> "RescaleCosts":
        """Return the costs including those of `generation`. A second report about a
        generation changes nothing.
        """
        if generation <= self.generation:
            return self
        return RescaleCosts(
            num_measured=self.num_measured + 1,
            total_s=self.total_s + cost_s,
            num_in_place=self.num_in_place + bool(pause),
            pause=pause or self.pause,
            generation=generation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a job has used of the cluster so far, and the cost of its changes."""

    attained_service_gpu_s: float = 0.0
    """GPU-seconds held up to `accounted_at`, starting and stopping included."""
    accounted_at: float = 0.0
    """Instant up to which service is booked, s."""
    started_at: float | None = None
    """First start, s; None before it."""
    num_starts: int = 0
    """Starts of replicas from nothing."""
    num_rescales: int = 0
    """Changes of allocation after the first start; a preemption counts when the job
    starts again.
    """
    num_failures: int = 0
    """Ends of its replicas that count against max_failures."""
    costs: RescaleCosts = RescaleCosts()
    """What starts and rescales cost."""

    def upto(self, at: float, num_gpus: float) -> "Usage":
        """Return the usage at instant `at` (s) of a job that held `num_gpus` since
        `accounted_at`.
        """
        held_s = max(at - self.accounted_at, 0.0)
        return Usage(
            attained_service_gpu_s=self.attained_service_gpu_s + num_gpus * held_s,
            accounted_at=at,
            started_at=self.started_at,
            num_starts=self.num_starts,
            num_rescales=self.num_rescales,
            num_failures=self.num_failures,
            costs=self.costs,
        )

    def after_start(self, at: float) -> "Usage":
        """Return the usage after a start at `at` (s). Each start but the first counts
        as a rescale.
        """
        return replace(
            self,
            started_at=at if self.started_at is None else self.started_at,
            num_starts=self.num_starts + 1,
            num_rescales=self.num_rescales + bool(self.num_starts),
        )

    def after_rescale(self) -> "Usage":
        """Return the usage after running replicas changed to another allocation."""
        return replace(self, num_rescales=self.num_rescales + 1)

    def after_failure(self) -> "Usage":
        """Return the usage after one more failure of the job's own."""
        return replace(self, num_failures=self.num_failures + 1)

    def after_cost(
        self, generation: int, cost_s: float, pause: Mapping[str, float]
    ) -> "Usage":
        """Return the usage after the first step of `generation`, whose start or rescale
        cost `cost_s`.
        """
        return replace(self, costs=self.costs.after(generation, cost_s, pause))


def straggler(metrics: Mapping[str, float], allocation: Allocation) -> str:
    """Return which replica of a job on `allocation` is slow, and by how much; "" where
    none is.
    """
    rank = int(metrics.get(RANK, NO_STRAGGLER))
    ratio = metrics.get(RATIO, 1.0)
    nodes = [node for node, count in allocation.slots for _ in range(count)]
    if len(nodes) < 2 or not 0 <= rank < len(nodes) or ratio < RATIO_MIN:
        return ""
    return (
        f"rank {rank} on {nodes[rank]} computes {ratio:.1f} times as long as the "
        f"median of its peers"
    )


def not_finite(metrics: Mapping[str, float]) -> str:
    """Return in which step the loss or the gradients were first not finite, in words;
    "" if they are.
    """
    step = metrics.get(NOT_FINITE, 0.0)
    if step < 1.0:
        return ""
    return f"loss or gradients are infinite or not a number (NaN) since step {step:.0f}"
