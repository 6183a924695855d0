"""All that the page shows of one job, as plain data: what it is, and its life on one
time axis.
"""

from collections.abc import Sequence
from typing import TypeVar, cast

from coadapt.core.state import JobRecord
from coadapt.model import JobSpec
from coadapt.model.wire import Json, to_json
from coadapt.runtime.history import Point, Span
from coadapt.runtime.job_history import points_of, rescales_of, spans_of, story_of
from coadapt.runtime.job_index import EndedJob, JobIndex
from coadapt.service.listing import picture

# A chart has about so many pixels; a longer story is read with `coadapt story`.
POINTS_SHOWN = 600
SPANS_SHOWN = 600
LINES_SHOWN = 300
METRICS_SHOWN = 3

T = TypeVar("T")

# Of the launch, without its environment variables: they may hold secrets.
LAUNCH_SHOWN = ("run", "setup", "workdir", "image")


def job_values(
    job: JobRecord | EndedJob, index: JobIndex, at: float, plan_error: str
) -> dict[str, Json]:
    """Return what the page shows of a job at `at` (s)."""
    until = job.ended_at if job.ended_at is not None else at
    story = story_of(index, job.id)
    return {
        "at": at,
        "until": until,
        "job": picture(job, at, plan_error),
        "spec": _spec(job),
        "spans": [
            _span(each) for each in spans_of(index, job.id, until)[-SPANS_SHOWN:]
        ],
        "points": [_point(each) for each in thinned(points_of(index, job.id))],
        "rescales": [
            [each.at, each.before, each.now, each.cost_s, to_json(each.pause)]
            for each in rescales_of(index, job.id)[-SPANS_SHOWN:]
        ],
        "story": [[line.at, line.text] for line in story[-LINES_SHOWN:]],
        "story_left_out": max(len(story) - LINES_SHOWN, 0),
    }


def thinned(points: Sequence[T], most: int = POINTS_SHOWN) -> list[T]:
    """Return at most `most` points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return list(points)
    apart = (len(points) - 1) / (most - 1)
    return [points[round(number * apart)] for number in range(most)]


def _span(span: Span) -> list[Json]:
    return [span.start, span.end, span.num_gpus, list(span.shape), span.state.value]


def _point(point: Point) -> list[Json]:
    named = sorted(point.metrics.items(), key=lambda item: (item[0] != "loss", item[0]))
    metrics: dict[str, Json] = dict(named[:METRICS_SHOWN])
    return [
        point.at,
        point.total_batch,
        point.efficiency,
        point.progress,
        point.step_time_s,
        point.noise_scale,
        metrics,
    ]


def _spec(job: JobRecord | EndedJob) -> dict[str, Json]:
    spec = job.spec
    record = to_json(spec) if isinstance(spec, JobSpec) else spec
    fields = cast("dict[str, Json]", record)
    launch = cast("dict[str, Json] | None", fields.get("launch")) or {}
    return {
        "application": fields.get("application"),
        "batch": fields.get("batch"),
        "replicas": fields.get("replicas"),
        "deadline_at": fields.get("deadline_at"),
        "max_failures": fields.get("max_failures"),
        "launch": {name: launch.get(name) for name in LAUNCH_SHOWN},
    }
