"""How fast each job trains on each GPU type, and how much it has left, at its present
pace.
"""

# What schedulers of rigid jobs know of a job: its optimiser step on the GPUs that it
# requested, per GPU type, and the steps that it has left. Of what is known on a type,
# the first that there is:
#
#   1. what the scheduler saw: the step time reported while the job held that type,
#      mended by half with each report (Gavel's moving average), as long as the batch
#      stays;
#   2. the job's own step-time model for the type (TypeProfile), at its present batch;
#   3. the job's forecast, which is about the type that the cluster has most of;
#   4. another type's, times the mean ratio of the two over the jobs that know both (1
#      if no job does).
#
# A job that changes its own batch is taken to stay with the present one: epochs left
# times the epoch's time.
# A job of which nothing is known takes a second per step, and has as many seconds left
# as it ran so far.

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, log
from typing import NamedTuple

import numpy as np

from coadapt.goodput.batch import limits_in_use
from coadapt.goodput.throughput import packed_placement, step_time
from coadapt.model import BatchMode, ClusterView, JobId, JobView
from coadapt.policies.allocation.capacity import gpu_type_held
from coadapt.policies.allocation.queue import requested_gpus
from coadapt.policies.predictors.declared import declared_steps_left

# Weight of the newest step time (Gavel's released code).
NEWEST = 0.5
# What a job without a forecast has left at least, s: it is never taken to be about to
# end.
LEAST_UNKNOWN_S = 600.0


class Pace(NamedTuple):
    """One job on the GPUs that it requested. step_s: of an optimiser step, per GPU type
    it may run on.

    passes: forward-backward passes of a step, over all replicas. steps_left: at the
    present batch.
    known: whether the job reported its length; else steps_left is a guess.
    """

    step_s: Mapping[str, float]
    passes: int
    steps_left: float
    known: bool

    def left_s(self, gpu_type: str) -> float:
        """Return the seconds left on `gpu_type`."""
        return self.steps_left * self.step_s[gpu_type]


@dataclass(slots=True)
class _Seen:
    """What the scheduler saw of one job: the type held in the last round, and step
    times at `total`.
    """

    held: str | None = None
    total: int = 0
    step_s: dict[str, float] = field(default_factory=dict)


class Paces:
    """Follows the step times of all jobs from round to round. Losing it loses point 1
    of the above.
    """

    def __init__(self) -> None:
        self._seen: dict[JobId, _Seen] = {}

    def observe(self, view: ClusterView) -> dict[JobId, Pace]:
        """Return the pace of each job, after noting what was measured since the last
        view.
        """
        for gone in set(self._seen) - {job.id for job in view.jobs}:
            del self._seen[gone]
        nodes = {node.id: node for node in view.nodes}
        for job in view.jobs:
            self._note(job, gpu_type_held(job, nodes))
        gpus, per_node = _gpus_by_type(view)
        commonest = max(gpus, key=lambda name: (gpus[name], name), default="")
        known = {job.id: self._known(job, commonest, per_node) for job in view.jobs}
        ratio = _ratios(known.values(), commonest, gpus)
        return {job.id: _pace(view, job, known[job.id], ratio) for job in view.jobs}

    def _note(self, job: JobView, held: str | None) -> None:
        seen = self._seen.setdefault(job.id, _Seen())
        measured = job.measured
        total = measured.batch.total if measured.batch is not None else 0
        if total != seen.total:
            seen.total = total
            seen.step_s = {}
        # Only if the job held this type in the previous view as well: otherwise the
        # report may be about the type before.
        whole = (
            job.allocation.num_replicas == requested_gpus(job)
            and not job.allocation.shared
        )
        if held is not None and held == seen.held and whole and measured.step_time_s:
            before = seen.step_s.get(held, measured.step_time_s)
            seen.step_s[held] = before + NEWEST * (measured.step_time_s - before)
        seen.held = held

    def _known(
        self, job: JobView, commonest: str, per_node: Mapping[str, int]
    ) -> dict[str, float]:
        """Return the seconds of a step on each type that the job reported or was seen
        on. commonest: the type that its forecast is about.
        """
        count = requested_gpus(job)
        known = {}
        forecast = job.measured.forecast
        mode = present_mode(job)
        if mode is not None:
            known[commonest] = mode.epoch_s / epoch_steps(job, mode)
        elif forecast is not None:
            known[commonest] = forecast.step_time_s[
                min(count, len(forecast.step_time_s)) - 1
            ]
        per_replica = -(-_total(job) // count)
        most = job.spec.batch.max_atomic or per_replica
        passes = max(-(-per_replica // most), 1)
        for name, profile in sorted(job.measured.by_type.items()):
            if name in per_node:
                placement = packed_placement(count, per_node[name])
                atomic = -(-per_replica // passes)
                known[name] = float(
                    np.asarray(step_time(profile.params, placement, atomic, passes - 1))
                )
        return {
            name: each
            for name, each in {**known, **self._seen[job.id].step_s}.items()
            if each > 0.0
        }


def present_mode(job: JobView) -> BatchMode | None:
    """Return the mode of a job that changes its own batch in which it is now; None for
    any other job.
    """
    forecast = job.measured.forecast
    modes = forecast.modes if forecast is not None else ()
    return min(modes, key=lambda mode: abs(mode.total - _total(job)), default=None)


def epoch_steps(job: JobView, mode: BatchMode) -> float:
    """Return the optimiser steps of an epoch of a job in `mode`."""
    forecast = job.measured.forecast
    target = job.measured.progress_target
    assert forecast is not None, "modes are part of a forecast"
    if target:
        return target / forecast.num_epochs / mode.total
    return (
        mode.epoch_s
        / forecast.step_time_s[min(requested_gpus(job), len(forecast.step_time_s)) - 1]
    )


def _pace(
    view: ClusterView,
    job: JobView,
    known: Mapping[str, float],
    ratio: Mapping[str, float],
) -> Pace:
    step_s = {}
    for name in ratio:
        if job.spec.replicas.allows_type(name):
            others = [known[other] / ratio[other] for other in known if other in ratio]
            mean_s = (
                exp(sum(log(each) for each in others) / len(others)) if others else 1.0
            )
            step_s[name] = known.get(name, mean_s * ratio[name])
    batch = job.measured.batch
    count = requested_gpus(job)
    passes = count * (batch.accumulation + 1 if batch is not None else 1)
    left = _steps_left(job)
    if left is None:
        ran_s = view.service_gpu_s(job) / count
        fastest_s = min(step_s.values(), default=1.0)
        return Pace(step_s, passes, max(ran_s, LEAST_UNKNOWN_S) / fastest_s, False)
    return Pace(step_s, passes, left, True)


def _steps_left(job: JobView) -> float | None:
    """Return the steps that a job has left by its forecast or its declared length; at
    least one.
    """
    forecast = job.measured.forecast
    mode = present_mode(job)
    if forecast is not None and mode is not None:
        target = job.measured.progress_target
        done = min(job.measured.progress / target, 1.0) if target else 0.0
        return max((1.0 - done) * forecast.num_epochs * epoch_steps(job, mode), 1.0)
    if forecast is not None:
        return max(forecast.remaining_steps, 1.0)
    left = declared_steps_left(job)
    return (
        None
        if left is None
        else max(left * limits_in_use(job).requested / _total(job), 1.0)
    )


def _total(job: JobView) -> int:
    batch = job.measured.batch
    return batch.total if batch is not None else job.spec.batch.requested


def _gpus_by_type(view: ClusterView) -> tuple[dict[str, int], dict[str, int]]:
    """Return the GPUs of each type in all, and on its largest node."""
    gpus: dict[str, int] = {}
    largest: dict[str, int] = {}
    for node in view.nodes:
        gpus[node.gpu_type] = gpus.get(node.gpu_type, 0) + node.num_gpus
        largest[node.gpu_type] = max(largest.get(node.gpu_type, 1), node.num_gpus)
    return gpus, largest


def _ratios(
    known: Iterable[Mapping[str, float]], reference: str, types: Iterable[str]
) -> dict[str, float]:
    """Return the step time on each type over that on `reference`: the mean over jobs
    that know both.
    """
    logs: dict[str, list[float]] = {name: [] for name in sorted(types)}
    for each in known:
        if reference in each:
            for name in sorted(each):
                if name in logs:
                    logs[name].append(log(each[name] / each[reference]))
    return {
        name: exp(sum(seen) / len(seen)) if seen else 1.0 for name, seen in logs.items()
    }
