"""Turns a History into the plain values that the report page draws. No HTML is here.

Instants on the page are seconds after the first submission. So runs of different days
share one axis, and hours before the first job take no room. The page of a live run
shows the time of day.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from coadapt.core.lifecycle import JobState
from coadapt.runtime.history import History, JobHistory, Point, Span
from coadapt.sim.foresight import Foretold
from coadapt.sim.report.changes import idle_times, in_place, overlap_s

Json = str | float | int | bool | None | list["Json"] | dict[str, "Json"]

# The page's limits keep it near 1 MB per run beside plotly's own code, whatever the
# run.
NUM_JOBS_MAX = 1000  # rows of the chart; the newest are shown
NUM_BINS = 240  # of the curves over time: about one per four pixels
NUM_POINTS_PER_RUN_MAX = 16_000
NUM_REASONS_PER_RUN_MAX = 3_000
NUM_REASONS_PER_JOB_MIN = 6
NUM_CHANGES_PER_RUN_MAX = 4_000
NUM_FORETOLD_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRun:
    """One run on the page: its label (usually the policy), its history, and its figures
    by name.

    wall_clock: instants are seconds since 1970, and the page says when the run began.
    foretold: the policy's predictions of when jobs end.
    """

    label: str
    history: History
    metrics: Mapping[str, float] = field(default_factory=dict)
    wall_clock: bool = False
    foretold: Sequence[Foretold] = ()


def run_values(run: ReportRun) -> dict[str, Json]:
    """Return all that the page shows of one run, as values that json can write."""
    history = run.history
    jobs = sorted(history.jobs.values(), key=lambda job: (job.submitted_at, job.id))
    shown = jobs[-NUM_JOBS_MAX:]
    origin = _origin(history)
    texts = _Texts()
    return {
        "label": run.label,
        "began_at": origin if run.wall_clock else None,
        "end": history.at - origin,
        "metrics": {key: _finite(value) for key, value in run.metrics.items()},
        "states": _count_states(jobs),
        "num_jobs": len(jobs),
        "num_left_out": history.num_left_out,
        "jct": _completion_times(jobs),
        "gpus": history.capacity[-1][1] if history.capacity else 0,
        "curves": _curves(history, jobs, origin),
        "jobs": [
            {"label": label, **_job_values(job, origin, texts, len(shown))}
            for job, label in zip(shown, _labels(shown), strict=True)
        ],
        "planless": [
            [start - origin, end - origin] for start, end in _planless(history)
        ],
        "foretold": _foretold(run.foretold),
        "refused": [
            [r.at - origin, r.round, r.error] for r in history.rounds if r.error
        ],
        "texts": list(texts.index_of),
    }


def _foretold(words: Sequence[Foretold]) -> dict[str, Json]:
    """Return how many predictions there are, how many came true within their interval,
    and an evenly chosen part of them to draw: the values of each, rounded.
    """
    drawn = words[:: -(-len(words) // NUM_FORETOLD_MAX) or 1]
    return {
        "number": len(words),
        "within": sum(word.within for word in words),
        "drawn": [[round(seconds, 1) for seconds in word] for word in drawn],
    }


def _labels(jobs: Sequence[JobHistory]) -> list[str]:
    """Return a label for each job: its name, or its id if several jobs share it."""
    names = Counter(job.spec.name for job in jobs)
    return [job.spec.name if names[job.spec.name] == 1 else job.id for job in jobs]


def _planless(history: History) -> list[tuple[float, float]]:
    """Return the periods (start, end) without a valid plan. Each begins with a round
    whose plan failed, and ends with the next round that had a plan, or with the run.
    """
    stretches: list[tuple[float, float]] = []
    since: float | None = None
    for each in history.rounds:
        if each.error and since is None:
            since = each.at
        elif not each.error and since is not None:
            stretches.append((since, each.at))
            since = None
    return stretches if since is None else [*stretches, (since, history.at)]


class _Texts:
    """All sentences of the page, each once. Jobs refer to them by index."""

    def __init__(self) -> None:
        self.index_of: dict[str, int] = {}

    def add(self, text: str) -> int:
        return self.index_of.setdefault(text, len(self.index_of))


def _origin(history: History) -> float:
    return min((job.submitted_at for job in history.jobs.values()), default=history.at)


def _count_states(jobs: Sequence[JobHistory]) -> dict[str, Json]:
    counts: dict[str, Json] = {}
    for state in JobState:
        count = sum(job.state is state for job in jobs)
        if count:
            counts[state.value] = count
    return counts


def _completion_times(jobs: Sequence[JobHistory]) -> list[Json]:
    done = [
        job
        for job in jobs
        if job.state is JobState.SUCCEEDED and job.ended_at is not None
    ]
    return [
        *sorted(
            round(job.ended_at - job.submitted_at, 3)
            for job in done
            if job.ended_at is not None
        )
    ]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _job_values(
    job: JobHistory, origin: float, texts: _Texts, num_jobs: int
) -> dict[str, Json]:
    reasons = _reasons(job, num_jobs)
    measured = job.measured
    target = measured.progress_target
    points = _thin(job, max(NUM_POINTS_PER_RUN_MAX // num_jobs, 2))
    return {
        "id": job.id,
        "name": job.spec.name,
        "application": job.spec.application,
        "tenant": job.spec.tenant,
        "contract": job.spec.contract.value,
        "state": job.state.value,
        "submitted": round(job.submitted_at - origin, 3),
        "started": None
        if job.usage.started_at is None
        else round(job.usage.started_at - origin, 3),
        "ended": None if job.ended_at is None else round(job.ended_at - origin, 3),
        "rescales": job.usage.num_rescales,
        "rescale_s": round(job.usage.costs.total_s, 1),
        **_change_values(job, origin, max(NUM_CHANGES_PER_RUN_MAX // num_jobs, 2)),
        "gpu_s": round(
            sum((span.end - span.start) * span.num_gpus for span in job.spans), 1
        ),
        "progress": round(measured.progress / target, 4) if target else None,
        "metrics": {
            key: _finite(value) for key, value in sorted(measured.metrics.items())
        },
        "spans": _all_span_values(job, origin, texts),
        "reasons": [[round(at - origin, 3), texts.add(text)] for at, text in reasons],
        "points": [
            [
                round(point.at - origin, 1),
                point.total_batch,
                None if point.efficiency is None else round(point.efficiency, 4),
            ]
            for point in points
        ],
    }


def _change_values(job: JobHistory, origin: float, limit: int) -> dict[str, Json]:
    """Return the number and pauses of the job's changes in place, and its latest starts
    and changes, each as [instant, replicas before, replicas now, seconds, {part:
    seconds}].
    """
    pauses_s = [rescale.cost_s for rescale in in_place(job)]
    return {
        "in_place": len(pauses_s),
        "pause_p50_s": round(median(pauses_s), 4) if pauses_s else None,
        "pause_max_s": round(max(pauses_s), 4) if pauses_s else None,
        "changes": [
            [
                round(rescale.at - origin, 3),
                rescale.before,
                rescale.now,
                round(rescale.cost_s, 4),
                {part: round(seconds, 4) for part, seconds in rescale.pause.items()},
            ]
            for rescale in job.rescales[-limit:]
        ],
    }


@dataclass(slots=True)
class _Stay:
    """Neighbouring spans with the same GPUs, whatever the state."""

    span: Span
    end: float


def _stays(spans: Sequence[Span]) -> list[_Stay]:
    stays: list[_Stay] = []
    for span in spans:
        same = stays and (stays[-1].span.num_gpus, stays[-1].span.shape) == (
            span.num_gpus,
            span.shape,
        )
        if same and span.state is not JobState.STARTING:
            stays[-1].end = span.end
        else:
            stays.append(_Stay(span, span.end))
    return stays


def _all_span_values(job: JobHistory, origin: float, texts: _Texts) -> list[Json]:
    idle = idle_times(job)
    return [
        _span_values(
            stay, job, origin, texts, overlap_s(idle, stay.span.start, stay.end)
        )
        for stay in _stays(job.spans)
    ]


def _span_values(
    stay: _Stay, job: JobHistory, origin: float, texts: _Texts, idle_s: float
) -> Json:
    """Return [start, end, GPUs, shape, idle seconds, index of the reason or -1]. The
    idle seconds of a job without GPUs are 0.
    """
    span = stay.span
    reason = -1
    if len(texts.index_of) < NUM_REASONS_PER_RUN_MAX:
        # The reason is written when the span begins. The reason of a waiting job is
        # written soon after that.
        index = bisect_right(job.reasons, span.start, key=lambda row: row[0]) - 1
        if index < 0 and job.reasons and job.reasons[0][0] <= stay.end:
            index = 0
        reason = texts.add(job.reasons[index][1]) if index >= 0 else -1
    return [
        round(span.start - origin, 3),
        round(stay.end - origin, 3),
        span.num_gpus,
        "+".join(str(count) for count in span.shape),
        round(idle_s if span.num_gpus else 0.0, 2),
        reason,
    ]


def _reasons(job: JobHistory, num_jobs: int) -> list[tuple[float, str]]:
    """Return the reasons that explain changes: the first one of each period with the
    same GPUs, the last one of each period of waiting, and the last of all. If these are
    too many, return the first and the latest ones.
    """
    stays = _stays(job.spans)
    starts = [stay.span.start for stay in stays]
    stretch = [bisect_right(starts, at) - 1 for at, _ in job.reasons]
    kept = []
    for i, reason in enumerate(job.reasons):
        begins = i == 0 or stretch[i] != stretch[i - 1]
        ends = i + 1 == len(stretch) or stretch[i] != stretch[i + 1]
        waits = 0 <= stretch[i] < len(stays) and not stays[stretch[i]].span.num_gpus
        if begins or (ends and (waits or i + 1 == len(stretch))):
            kept.append(reason)
    limit = max(NUM_REASONS_PER_RUN_MAX // num_jobs, NUM_REASONS_PER_JOB_MIN)
    return kept if len(kept) <= limit else [kept[0], *kept[-(limit - 1) :]]


def _thin(job: JobHistory, limit: int) -> list[Point]:
    """Return the points at which the batch changed, and points spread evenly over the
    job's life.
    """
    points = job.points
    changed = [
        i
        for i in range(len(points))
        if i == 0 or points[i].total_batch != points[i - 1].total_batch
    ]
    even = (
        np.linspace(0, len(points) - 1, min(limit, len(points))).astype(int).tolist()
        if points
        else []
    )
    kept = sorted({*changed[-limit:], *even})
    return [points[i] for i in kept]


def _curves(
    history: History, jobs: Sequence[JobHistory], origin: float
) -> dict[str, Json]:
    """Return means over periods of equal length: the share of GPUs in use, the number
    of waiting jobs, and the efficiency. They begin where the history has every job.
    """
    end = history.at
    begin = origin if history.since is None else max(origin, history.since)
    if end <= begin or not jobs:
        return {"at": [], "used": [], "waiting": [], "efficiency": []}
    edges = np.linspace(begin, end, NUM_BINS + 1)
    used = [
        (span.start, span.end, span.num_gpus)
        for job in jobs
        for span in job.spans
        if span.num_gpus
    ]
    waiting = [
        (span.start, span.end, 1.0)
        for job in jobs
        for span in job.spans
        if not span.num_gpus
    ]
    capacity = [
        (start, after, float(num_gpus))
        for (start, num_gpus), (after, _) in pairwise([*history.capacity, (end, 0)])
    ]
    useful, weight = _weighted_efficiency(jobs)
    used_T = _integral(used, edges)
    capacity_T = _integral(capacity, edges)
    waiting_T = _integral(waiting, edges) / np.diff(edges)
    return {
        "at": [round(float(at - origin), 1) for at in (edges[:-1] + edges[1:]) / 2],
        "used": _rounded(_ratio(used_T, capacity_T)),
        "waiting": _rounded(waiting_T),
        "efficiency": _rounded(
            _ratio(_integral(useful, edges), _integral(weight, edges))
        ),
    }


Block = tuple[float, float, float]  # start, end, height


def _weighted_efficiency(jobs: Sequence[JobHistory]) -> tuple[list[Block], list[Block]]:
    """Return the blocks of GPUs times efficiency and of GPUs alone, wherever a job's
    efficiency is known.
    """
    useful: list[Block] = []
    weight: list[Block] = []
    for job in jobs:
        starts = [span.start for span in job.spans]
        points = [point for point in job.points if point.efficiency is not None]
        ends = [
            *(point.at for point in points[1:]),
            job.spans[-1].end if job.spans else 0.0,
        ]
        for point, end in zip(points, ends, strict=False):
            held = (
                job.spans[max(bisect_right(starts, point.at) - 1, 0)].num_gpus
                if job.spans
                else 0.0
            )
            useful.append((point.at, end, held * (point.efficiency or 0.0)))
            weight.append((point.at, end, held))
    return useful, weight


def _integral(
    blocks: Sequence[Block], edges_T: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the area of all blocks within each pair of neighbouring edges, exactly."""
    if not blocks:
        return np.zeros(len(edges_T) - 1)
    array = np.array(blocks)
    at = np.concatenate([array[:, 0], array[:, 1]])
    step = np.concatenate([array[:, 2], -array[:, 2]])
    order = np.argsort(at, kind="stable")
    at = at[order]
    height = np.cumsum(step[order])
    area = np.concatenate([[0.0], np.cumsum(height[:-1] * np.diff(at))])
    return np.diff(np.interp(edges_T, at, area))


def _ratio(
    part_T: NDArray[np.float64], whole_T: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.divide(
        part_T, whole_T, out=np.full_like(part_T, np.nan), where=whole_T > 0
    )


def _rounded(values_T: NDArray[np.float64]) -> list[Json]:
    return [None if np.isnan(value) else round(float(value), 4) for value in values_T]
