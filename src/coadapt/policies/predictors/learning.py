"""What is seen of jobs while they learn: their losses, how long alike ones trained, how
their steps scale.
"""

# Step time on n replicas (Optimus, EuroSys'18, §3.2, synchronous, without parameter
# servers):
#
#   T(n) = p / n + q + r n,   p, q, r >= 0
#
# (the batch cut over n, what does not depend on n, communication)
#
# fitted to the step times seen so far at the same batch, relative errors alike, over
# all jobs of the application. Where fewer counts were seen than there are terms, the
# first terms have to do: jobs are taken to scale until they are seen not to. Optimus's
# sample runs before a job starts are replaced by that.

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from coadapt.model import Allocation, ClusterView, JobId, JobView, gpus_by_type
from coadapt.policies.allocation.capacity import gpu_type_held
from coadapt.policies.predictors.loss_curves import LossCurve, fit_curve, normalised
from coadapt.policies.predictors.nonnegative import least_squares

# Metrics that show the progress of a job, best first; "validation_metric" is what
# measured traces have.
LOSS_NAMES = ("loss", "train_loss", "validation_loss", "validation_metric")
POINTS_MAX = 256  # of one job; then every other one is dropped
NEWEST = 0.5  # weight of the newest step time at a count
UNSEEN_STEP_S = 1.0
LEAST_FALL = 1e-9  # of the range: nothing is divided by 0


@dataclass(slots=True)
class _Seen:
    """One job. points: (samples, loss) at each change of what it logs. num_losses: the
    number of these changes.

    samples: trained so far. held: at the last view.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    num_losses: int = 0
    samples: float = 0.0
    held: Allocation | None = None
    application: str = ""
    curve: LossCurve | None = None
    fitted_at: tuple[int, bool] = (0, False)


@dataclass(slots=True)
class _Ended:
    """Jobs of one application that are gone: how many, and the samples that they
    trained on in all.
    """

    count: int = 0
    samples: float = 0.0


class Learning:
    """Follows all jobs from round to round. Losing it loses their curves so far."""

    def __init__(self, metric: str = "") -> None:
        self._names = (metric,) if metric else LOSS_NAMES
        self._seen: dict[JobId, _Seen] = {}
        self._ended: dict[str, _Ended] = {}
        self._step_s: dict[tuple[str, int, str], dict[int, float]] = {}
        self._fits: dict[tuple[str, int, str], tuple[float, float, float]] = {}

    def observe(self, view: ClusterView) -> None:
        """Note what jobs logged and how long their steps took since the last view."""
        jobs = {job.id for job in view.jobs}
        for gone in [job_id for job_id in self._seen if job_id not in jobs]:
            self._bury(gone)
        nodes = {node.id: node for node in view.nodes}
        for job in view.jobs:
            seen = self._seen.setdefault(
                job.id, _Seen(application=job.spec.application)
            )
            seen.samples = job.measured.samples
            loss = self._loss(job.measured.metrics)
            if loss is not None and (not seen.points or loss != seen.points[-1][1]):
                self._tell(seen, loss)
            held = job.allocation
            step_s = job.measured.step_time_s
            kind = gpu_type_held(job, nodes)
            if (
                held
                and held == seen.held
                and not held.shared
                and step_s
                and kind is not None
            ):
                times = self._step_s.setdefault(_kind(job, kind), {})
                before = times.get(held.num_replicas, step_s)
                times[held.num_replicas] = before + NEWEST * (step_s - before)
                self._fits.pop(_kind(job, kind), None)
            seen.held = held

    def curve(self, job: JobView, *, quadratic: bool = False) -> LossCurve | None:
        """Return the curve through the losses of `job` over samples; None if it
        reported too few.
        """
        seen = self._seen[job.id]
        if seen.fitted_at != (seen.num_losses, quadratic):
            seen.curve = fit_curve(seen.points, quadratic=quadratic)
            seen.fitted_at = (seen.num_losses, quadratic)
        return seen.curve

    def epoch_samples(self, job: JobView) -> float | None:
        """Return the mean samples between two losses of `job`, which count as an epoch;
        None before one.
        """
        seen = self._seen[job.id]
        return (
            seen.points[-1][0] / seen.num_losses
            if seen.num_losses and seen.points[-1][0] > 0.0
            else None
        )

    def largest_fall(self, job: JobView) -> float:
        """Return the largest fall of the losses of `job` from one to the next, in
        ranges of them.

        Raises ValueError for a job without a curve.
        """
        losses = normalised(np.array([loss for _, loss in self._seen[job.id].points]))
        if losses is None:
            raise ValueError(f"job {job.id!r} has no curve")
        return max(float((losses[:-1] - losses[1:]).max(initial=0.0)), LEAST_FALL)

    def usual_samples(self, job: JobView) -> float | None:
        """Return the mean samples of jobs of its application that are gone; None before
        one is.
        """
        ended = self._ended.get(job.spec.application)
        return ended.samples / ended.count if ended is not None else None

    def step_s(self, job: JobView, gpu_type: str, most: int) -> tuple[float, ...]:
        """Return seconds of a step of `job` on 1 to `most` replicas of `gpu_type`."""
        kind = _kind(job, gpu_type)
        if kind not in self._fits:
            self._fits[kind] = fit_steps(self._step_s.get(kind, {}))
        p, q, r = self._fits[kind]
        return tuple(p / n + q + r * n for n in range(1, most + 1))

    def _loss(self, metrics: Mapping[str, float]) -> float | None:
        return next((metrics[name] for name in self._names if name in metrics), None)

    def _tell(self, seen: _Seen, loss: float) -> None:
        # At equal samples (a job that has not trained on since) the newer loss counts.
        if seen.points and seen.points[-1][0] >= seen.samples:
            seen.points.pop()
        else:
            seen.num_losses += 1
        seen.points.append((seen.samples, loss))
        if len(seen.points) > POINTS_MAX:
            del seen.points[1::2]

    def _bury(self, job_id: JobId) -> None:
        seen = self._seen.pop(job_id)
        if seen.application and seen.samples > 0.0:
            ended = self._ended.setdefault(seen.application, _Ended())
            ended.count += 1
            ended.samples += seen.samples


def _kind(job: JobView, gpu_type: str) -> tuple[str, int, str]:
    """Return what jobs must have in common to share step times."""
    return job.spec.application or job.id, total_batch(job), gpu_type


def types_to_count_on(view: ClusterView) -> tuple[dict[JobId, str], int]:
    """Return the GPU type whose speed counts for each job, and the most GPUs that there
    are of one type.

    What the job holds, else the type that the cluster has most of (the last by name
    where two have as many).
    """
    num_gpus = gpus_by_type(view.nodes)
    nodes = {node.id: node for node in view.nodes}
    roomiest = max(num_gpus, key=lambda name: (num_gpus[name], name), default="")
    chosen = {job.id: gpu_type_held(job, nodes) or roomiest for job in view.jobs}
    return chosen, max(num_gpus.values(), default=1)


def total_batch(job: JobView) -> int:
    """Return the total batch that `job` trains with: the requested one, or what it
    chose by itself.
    """
    batch = job.measured.batch
    return (
        batch.total
        if job.spec.batch_is_own and batch is not None
        else job.spec.batch.requested
    )


def fit_steps(step_s: Mapping[int, float]) -> tuple[float, float, float]:
    """Return p, q, r of T(n) = p / n + q + r n for step times (s) by replicas; of 1 s
    without any.
    """
    if not step_s:
        return UNSEEN_STEP_S, 0.0, 0.0
    n_P = np.array(sorted(step_s), dtype=np.float64)
    time_P = np.array([step_s[int(n)] for n in n_P])
    terms = np.stack([1.0 / n_P, np.ones_like(n_P), n_P], axis=1)[:, : len(n_P)]
    found = least_squares(
        (terms / time_P[:, None])[None, :, :], np.ones((1, len(n_P)))
    )[0]
    p, q, r = (*found.tolist(), 0.0, 0.0)[:3]
    return p, q, r
