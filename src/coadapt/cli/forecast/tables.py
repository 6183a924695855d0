"""Estimates side by side, as a table and as plain data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import cast

from coadapt.cli.forecast.words import in_words, sizes, span
from coadapt.model import JobId
from coadapt.model.wire import Json
from coadapt.sim.ahead.estimate import Estimate, JobEstimate, Range
from coadapt.sim.ahead.roll import Question

JOBS_SHOWN = 30


def show_estimates(found: Sequence[Estimate], question: Question) -> None:
    """Print a row for each job, and a column for each scenario."""
    from rich.table import Table
    from rich.text import Text

    from coadapt.cli.console import make_console

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("ENDS IN", no_wrap=True)
    for estimate in found:
        table.add_column(estimate.scenario.upper())
    names = list(dict.fromkeys(job for each in found for job in each.jobs))
    for name in names[:JOBS_SHOWN]:
        cells = [Text(_cell(each.jobs.get(name))) for each in found]
        table.add_row(Text(name), *cells)
    table.add_section()
    means = [Text(in_words(each.mean_end)) for each in found]
    table.add_row("mean of all jobs", *means)
    lasts = [Text(in_words(each.last_end)) for each in found]
    table.add_row("last end", *lasts)
    console = make_console()
    console.print(table)
    if len(names) > JOBS_SHOWN:
        console.print(f"and {len(names) - JOBS_SHOWN} more jobs: --json shows all")
    console.print(
        f"median (9 of 10), policy in force: {question.policy}", style="bright_black"
    )


def _cell(job: JobEstimate | None) -> str:
    if job is None:
        return "does not run"
    if math.isinf(job.ends.median):
        return span(job.ends.median)
    return f"{in_words(job.ends)}, {sizes(job)}"


def as_plain(found: Sequence[Estimate], at: float) -> dict[str, Json]:
    """Return estimates as JSON data: seconds from `at`; null beyond the horizon."""
    return {"at": at, "scenarios": [_plain(each) for each in found]}


def _plain(estimate: Estimate) -> dict[str, Json]:
    jobs: Mapping[JobId, JobEstimate] = estimate.jobs
    return {
        "scenario": estimate.scenario,
        "mean_end_s": range_values(estimate.mean_end),
        "last_end_s": range_values(estimate.last_end),
        "jobs": {
            name: {
                "starts_s": range_values(job.starts),
                "ends_s": range_values(job.ends),
                "gpus": list(job.sizes),
            }
            for name, job in jobs.items()
        },
    }


def range_values(found: Range) -> Json:
    """Return seconds from now; null beyond the horizon."""
    values = cast("dict[str, float]", asdict(found))
    return {
        name: None if math.isinf(value) else round(value, 1)
        for name, value in values.items()
    }
