"""Estimates side by side, as a table and as plain data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import cast

from coadapt.cli.forecast.words import cost_in_words, in_words, sizes, span
from coadapt.model import JobId
from coadapt.model.wire import Json
from coadapt.sim.ahead.estimate import Estimate, JobEstimate, Range
from coadapt.sim.ahead.roll import Question

JOBS_SHOWN = 30


def left_out(found: Estimate, num_wanted: int) -> str:
    """Return what a forecast left out because its time was over, "" if nothing."""
    parts = []
    if found.num_rolls < num_wanted:
        parts.append(
            f"{found.num_rolls} of {num_wanted} futures were computed, so that "
            f"intervals are too narrow"
        )
    if math.isfinite(found.ahead_s):
        num_later = sum(math.isinf(job.ends.median) for job in found.jobs.values())
        parts.append(
            f"they reach {span(found.ahead_s)} ahead, {num_later} of {len(found.jobs)} "
            f"jobs end later, and means count these as if they ended then"
        )
    if not parts:
        return ""
    return f"The time was over: {'; '.join(parts)}. --seconds allows more."


def show_estimates(
    found: Sequence[Estimate], question: Question, num_wanted: int
) -> None:
    """Print a row for each job, and a column for each scenario.

    num_wanted: of futures, so that the end says if there are fewer.
    """
    from rich.table import Table
    from rich.text import Text

    from coadapt.cli.console import make_console

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("ENDS IN", no_wrap=True)
    for estimate in found:
        table.add_column(estimate.scenario.upper())
    names = list(dict.fromkeys(job for each in found for job in each.jobs))
    for name in names[:JOBS_SHOWN]:
        cells = [Text(_cell(each.jobs.get(name), each.ahead_s)) for each in found]
        table.add_row(Text(name), *cells)
    table.add_section()
    means = [Text(in_words(each.mean_end, each.ahead_s)) for each in found]
    table.add_row("mean of all jobs", *means)
    lasts = [Text(in_words(each.last_end, each.ahead_s)) for each in found]
    table.add_row("last end", *lasts)
    prices = question.state.prices
    if prices is not None:
        costs = [Text(cost_in_words(each.cost, prices.currency)) for each in found]
        table.add_row("cost of all jobs", *costs)
    console = make_console()
    console.print(table)
    for each in found[1:]:
        console.print(f"{each.scenario}: {compared(found[0], each)}")
    if len(names) > JOBS_SHOWN:
        console.print(f"and {len(names) - JOBS_SHOWN} more jobs: --json shows all")
    if said := left_out(found[0], num_wanted):
        console.print(said)
    console.print(
        f"median (9 of 10), policy in force: {question.policy}", style="bright_black"
    )


def _cell(job: JobEstimate | None, ahead_s: float) -> str:
    if job is None:
        return "does not run"
    if math.isinf(job.ends.median):
        return span(job.ends.median, ahead_s)
    return f"{in_words(job.ends, ahead_s)}, {sizes(job)}"


def as_plain(found: Sequence[Estimate], question: Question) -> dict[str, Json]:
    """Return estimates as JSON data: seconds from `at`; null beyond the horizon."""
    prices = question.state.prices
    return {
        "at": question.at,
        "num_futures": found[0].num_rolls,
        "ahead_s": finite(found[0].ahead_s),
        "currency": None if prices is None else prices.currency,
        "scenarios": [{**_plain(each), **against(found[0], each)} for each in found],
    }


def against(now: Estimate, other: Estimate) -> dict[str, Json]:
    """Return by how many percent the jobs of a future end sooner than those of `now` on
    average, by how many they are dearer, and their cost; null where it is not known.
    """
    return {
        "sooner_percent": _lower_percent(now.mean_end, other.mean_end),
        "dearer_percent": _higher_percent(now.cost, other.cost),
        "cost": None if other.cost is None else range_values(other.cost),
    }


def _lower_percent(now: Range | None, other: Range | None) -> float | None:
    higher = _higher_percent(now, other)
    return None if higher is None else 0.0 - higher


def _higher_percent(now: Range | None, other: Range | None) -> float | None:
    if now is None or other is None or not now.median:
        return None
    percent = 100.0 * (other.median / now.median - 1.0)
    return round(percent, 1) if math.isfinite(percent) else None


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


def compared(now: Estimate, other: Estimate) -> str:
    """Return `18 % sooner, 9 % dearer`: the mean end and the cost against `now`."""
    found = against(now, other)
    parts = []
    for percent, more, less in (
        (found["sooner_percent"], "sooner", "later"),
        (found["dearer_percent"], "dearer", "cheaper"),
    ):
        if isinstance(percent, float):
            word = more if percent >= 0.0 else less
            parts.append(f"{abs(percent):.0f} % {word}")
    return ", ".join(parts) or "not comparable within 14 days"


def finite(seconds: float) -> float | None:
    """Return seconds; null for infinity, which JSON does not have."""
    return None if math.isinf(seconds) else round(seconds, 1)


def range_values(found: Range) -> Json:
    """Return seconds from now; null beyond the horizon."""
    values = cast("dict[str, float]", asdict(found))
    return {name: finite(value) for name, value in values.items()}
