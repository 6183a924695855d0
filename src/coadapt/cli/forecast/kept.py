"""Past estimates: kept beside the journal, scored against the outcomes, and used to
correct the next ones.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from coadapt.cli.forecast.live_question import Live
from coadapt.cli.state_dir import StateDir
from coadapt.durable import write_whole
from coadapt.model import JobId
from coadapt.sim.ahead.calibration import Calibration, Past
from coadapt.sim.ahead.estimate import Estimate, JobEstimate, Range
from coadapt.sim.ahead.scenario import Scenario

# About a thousand outcomes are used; most lines wait for theirs, or lost it.
LINES_KEPT = 5_000
# An interval of fewer futures is too narrow, and its score says nothing of others.
ROLLS_MIN = 10


class Kept(NamedTuple):
    """What was said of a job at an instant (s since 1970), in seconds from then."""

    at: float
    job: JobId
    kind: str
    low: float
    median: float
    high: float


def corrected(
    found: Sequence[Estimate], directory: StateDir, live: Live
) -> list[Estimate]:
    """Return the estimates with intervals that past ones correct. The first of `found`
    is kept for later, if it is of things as they are, and of enough futures.

    Where the directory cannot be written nothing is kept.
    """
    path = directory.path / "estimates.jsonl"
    lines = list(_read(path))
    at = live.question.at
    kinds = {
        kind: Calibration.of(_past(lines, kind, live), at)
        for kind in ("starts", "ends")
    }
    if found[0].scenario == Scenario().name and found[0].num_rolls >= ROLLS_MIN:
        with suppress(OSError):
            _write(path, [*lines, *_lines(found[0], live)][-LINES_KEPT:])
    return [_of_estimate(each, kinds["starts"], kinds["ends"]) for each in found]


def _past(lines: Sequence[Kept], kind: str, live: Live) -> Iterator[Past]:
    """Yield the estimates of a kind whose outcome is known or still comes; those of
    other jobs, which failed or were cancelled, lost it.
    """
    came = live.started_at if kind == "starts" else live.ended_at
    comes = {job.id for job in live.question.state.active}.difference(came)
    for each in lines:
        if each.kind != kind:
            continue
        came_s = came.get(each.job, math.inf) - each.at
        if came_s > 0.0 and (math.isfinite(came_s) or each.job in comes):
            said = Range(low=each.low, median=each.median, high=each.high)
            yield Past(said=said, at=each.at, came_s=came_s)


def _of_estimate(found: Estimate, starts: Calibration, ends: Calibration) -> Estimate:
    jobs = {name: _of_job(job, starts, ends) for name, job in found.jobs.items()}
    return replace(found, jobs=jobs)


def _of_job(job: JobEstimate, starts: Calibration, ends: Calibration) -> JobEstimate:
    runs = job.starts.high <= 1.0
    begins = job.starts if runs else starts.corrected(job.starts)
    return replace(job, starts=begins, ends=ends.corrected(job.ends))


def _lines(found: Estimate, live: Live) -> Iterator[Kept]:
    at = live.question.at
    for record in live.question.state.active:
        job = found.jobs.get(record.id)
        if job is None:
            continue
        kinds = {"ends": job.ends}
        if record.usage.started_at is None:
            kinds["starts"] = job.starts
        for kind, said in kinds.items():
            if math.isfinite(said.high):
                yield Kept(at, record.id, kind, said.low, said.median, said.high)


def _read(path: Path) -> Iterator[Kept]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return
    for line in text.splitlines():
        # A line that is no estimate is left out, as one whose job is not known.
        with suppress(ValueError, TypeError):
            at, job, kind, *ends = json.loads(line)
            low, median, high = map(float, ends)
            if kind in ("starts", "ends"):
                yield Kept(float(at), str(job), kind, low, median, high)


def _write(path: Path, lines: Sequence[Kept]) -> None:
    text = "".join(json.dumps(each) + "\n" for each in lines)
    write_whole(path, text)
