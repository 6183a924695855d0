"""Turns a live run into a workload: the requests of its jobs, and how long and how fast
they trained.

The workload is written as a plain table (plain.py), in which each job has its own
curve.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coadapt.core.lifecycle import JobState
from coadapt.durable import write_whole
from coadapt.goodput.table import goodput_table
from coadapt.model import DEFAULT_TENANT, JobView
from coadapt.runtime.history import History, JobHistory

TRAINING = frozenset({JobState.RUNNING, JobState.RESCALING})
COLUMNS = (
    "name",
    "arrival_s",
    "gpus",
    "gpus_min",
    "gpus_max",
    "curve",
    "length_s",
    "tenant",
    "priority",
)
# The largest number of sizes whose rates are written. The curve is linear in between.
SIZES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The rows of a table, the jobs that are left out (by reason), and the cost of a
    start.

    start_s: mean seconds from an order to the first step, 0 if none was measured.
    """

    rows: Sequence[Mapping[str, str]]
    left_out: Mapping[str, int]
    start_s: float


def recorded(history: History) -> Recorded:
    """Return the jobs of a run that succeeded, in the order of their submission."""
    jobs = sorted(history.jobs.values(), key=lambda job: (job.submitted_at, job.id))
    left_out: dict[str, int] = {}
    rows: list[dict[str, str]] = []
    costs: list[float] = []
    first_at = min((job.submitted_at for job in jobs), default=0.0)
    for job in jobs:
        trained = _trained_s(job)
        if job.state is not JobState.SUCCEEDED:
            why = job.state.value if job.ended_at is not None else "not ended"
            left_out[why] = left_out.get(why, 0) + 1
        elif not trained:
            left_out["no training time"] = left_out.get("no training time", 0) + 1
        else:
            rows.append(_row(job, trained, first_at))
            costs += _start_costs(job)
    mean_s = sum(costs) / len(costs) if costs else 0.0
    return Recorded(rows=rows, left_out=left_out, start_s=mean_s)


def write_recorded(path: Path, found: Recorded) -> None:
    """Write the table, whole or not at all."""
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.rows)
    write_whole(path, text.getvalue())


def _trained_s(job: JobHistory) -> dict[int, float]:
    """Return the seconds that the job trained on each number of GPUs."""
    found: dict[int, float] = {}
    for span in job.spans:
        count = sum(span.shape)
        if span.state in TRAINING and count:
            found[count] = found.get(count, 0.0) + span.end - span.start
    # The time that starts and changes cost is subtracted, because the simulator adds it
    # again. Where a generation's first step is known, the job is in the state
    # `starting` before it, and that time is not counted either.
    for rescale in job.rescales:
        if rescale.pause and rescale.now in found:
            found[rescale.now] = max(found[rescale.now] - rescale.cost_s, 0.0)
    return {count: seconds for count, seconds in found.items() if seconds > 0.0}


def _start_costs(job: JobHistory) -> list[float]:
    """Return the seconds from each start until the job trained."""
    return [
        span.end - span.start for span in job.spans if span.state is JobState.STARTING
    ]


def _row(
    job: JobHistory, trained_s: Mapping[int, float], first_at: float
) -> dict[str, str]:
    rates = _rates(job, trained_s)
    requested = job.spec.replicas.requested
    gpus = min(rates, key=lambda count: (abs(count - requested), count))
    work = sum(seconds * _rate(rates, count) for count, seconds in trained_s.items())
    return {
        "name": job.id,
        "arrival_s": f"{job.submitted_at - first_at:.3f}",
        "gpus": str(gpus),
        "gpus_min": str(min(rates)),
        "gpus_max": str(max(rates)),
        "curve": " ".join(f"{count}:{rate:.6g}" for count, rate in rates.items()),
        "length_s": f"{work / rates[gpus]:.3f}",
        "tenant": job.spec.tenant or DEFAULT_TENANT,
        "priority": str(job.spec.priority),
    }


def _rates(job: JobHistory, trained_s: Mapping[int, float]) -> dict[int, float]:
    """Return progress per second by number of GPUs, from the step-time model. Without a
    model, the rates of the sizes on which the job trained are proportional to the size.
    """
    low = job.spec.replicas.min
    high = job.spec.replicas.max
    if not job.measured.by_type or high == low:
        return {count: float(count) for count in sorted(trained_s)}
    step = max((high - low) // SIZES_MAX, 1)
    counts = sorted({*range(low, high + 1, step), high, *trained_s})
    gpu_type = min(job.measured.by_type)
    view = JobView(
        id=job.id,
        spec=job.spec,
        submitted_at=job.submitted_at,
        measured=job.measured,
        usage=job.usage,
    )
    table = goodput_table([view], [1] * len(counts), counts, gpu_type=gpu_type)
    found = {
        count: float(rate)
        for count, rate in zip(counts, table.goodput_JC[0], strict=True)
        if rate > 0.0
    }
    return found or {count: float(count) for count in sorted(trained_s)}


def _rate(rates: Mapping[int, float], count: int) -> float:
    """Return the rate at `count` GPUs, scaled in proportion from the nearest known
    size.
    """
    nearest = min(rates, key=lambda each: (abs(each - count), each))
    return rates[nearest] * count / nearest
