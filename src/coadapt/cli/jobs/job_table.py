"""How jobs look in a terminal: one row per job, the same in `ls` and `top`."""

from collections.abc import Iterable, Sequence
from typing import cast

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coadapt.cli.client import JsonObject
from coadapt.cli.jobs.job_states import ENDED

# Styles of a job's state. The state's name is shown too, so colour-blind readers lose
# nothing.
STATE_STYLES = {
    "pending": "yellow",
    "starting": "cyan",
    "running": "green",
    "rescaling": "cyan",
    "stopping": "magenta",
    "succeeded": "bright_black",
    "failed": "bold red",
    "cancelled": "bright_black",
}
# Colours by which a job is found again in the map of the slots (Okabe and Ito's, safe
# for most eyes).
JOB_COLOURS = (
    "#56b4e9",
    "#e69f00",
    "#009e73",
    "#f0e442",
    "#cc79a7",
    "#d55e00",
    "#0072b2",
)
BAR_WIDTH = 14
# Columns of the terminal from which on there is room for bars, and for a reason in each
# row.
WIDTH_FOR_BARS = 96
WIDTH_FOR_REASONS = 124
NOTHING = "–"
OWNERS = {"TENANT": "tenant", "PRIO": "priority"}
# Reports come about every 30 s.
SILENT_SHOWN_S = 120.0


def job_view(
    jobs: Sequence[JsonObject], colours: dict[str, str], width: int
) -> RenderableType:
    """Return the jobs as they fit into `width` columns; `colours` by job id mark those
    that hold GPUs.

    In a wide terminal each row ends with its reason; in a narrower one the reasons
    are below the table.
    """
    table = _table(jobs, colours, width)
    if width >= WIDTH_FOR_REASONS or not jobs:
        return table
    reasons = Table.grid(padding=(0, 1))
    for job in jobs:
        if job["state"] not in ENDED:
            reasons.add_row(
                _mark(job, colours),
                Text(f"{named(job)}:"),
                Text(first_line(job["explanation"])),
            )
    return Group(table, Text(""), reasons)


def colours_of(jobs: Iterable[JsonObject]) -> dict[str, str]:
    """Return a colour for each job that holds GPUs; a job keeps its own while others
    come and go.
    """
    colours: dict[str, str] = {}
    for index, job in enumerate(jobs):
        if job["num_gpus"]:
            colours[str(job["id"])] = JOB_COLOURS[index % len(JOB_COLOURS)]
    return colours


def duration(seconds: float) -> str:
    """Return `42s`, `3m07s`, `5h12m` or `2d03h`."""
    whole = int(max(seconds, 0.0))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def gpus(job: JsonObject) -> str:
    """Return `2 of 1..4`: held, and allowed; the latter alone for a job that has
    ended.
    """
    least = job["gpus_min"]
    most = job["gpus_max"]
    allowed = f"{least}" if least == most else f"{least}..{most}"
    return allowed if job["state"] in ENDED else f"{job['num_gpus']} of {allowed}"


def batch(job: JsonObject) -> str:
    """Return the total batch in use, in samples."""
    config = cast("JsonObject | None", job["batch"])
    return NOTHING if config is None else str(config["total"])


def share(value: object) -> str:
    """Return a share in percent, or a dash where it is not known."""
    return f"{100 * value:.0f}%" if isinstance(value, int | float) else NOTHING


def first_line(text: object) -> str:
    return str(text).split("\n", 1)[0]


def done(job: JsonObject) -> float | None:
    """Return the share of the job's progress that is done, None while its target is not
    known.
    """
    if job["state"] == "succeeded":
        return 1.0
    target = cast("float | None", job["progress_target"])
    return min(cast(float, job["progress"]) / target, 1.0) if target else None


def named(job: JsonObject) -> str:
    """Return the id, with the name where the id cannot hold it: ids have ASCII letters
    only.
    """
    name = str(job.get("name", ""))
    return str(job["id"]) if name.isascii() else f"{job['id']} {name}"


def _owner_columns(jobs: Iterable[JsonObject]) -> list[str]:
    """Return the columns that tell jobs apart by their owner; none where all are
    alike.
    """
    usual: dict[str, set[object]] = {"TENANT": {"default", None}, "PRIO": {0, None}}
    return [
        heading
        for heading, key in OWNERS.items()
        if any(job.get(key) not in usual[heading] for job in jobs)
    ]


def _table(jobs: Sequence[JsonObject], colours: dict[str, str], width: int) -> Table:
    wide = width >= WIDTH_FOR_REASONS
    table = Table(box=None, header_style="bold", pad_edge=False, expand=wide)
    table.add_column("", width=1)
    table.add_column("JOB", no_wrap=True)
    owners = _owner_columns(jobs)
    for heading in owners:
        table.add_column(heading, no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    for heading in ("GPUS", "BATCH", "EFF", "AGE"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("PROGRESS", no_wrap=True)
    if wide:
        table.add_column("WHY", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in jobs:
        state = str(job["state"])
        style = "bright_black" if state in ENDED else ""
        cells = [
            _mark(job, colours),
            Text(named(job), style=style),
            *[
                Text(str(job.get(OWNERS[each], NOTHING)), style=style)
                for each in owners
            ],
            Text(state + _silent(job), style=STATE_STYLES.get(state, "")),
            Text(gpus(job), style=style),
            Text(batch(job), style=style),
            Text(share(job["efficiency"]), style=style),
            Text(duration(cast(float, job["age_s"])), style=style),
            _progress(job, with_bar=width >= WIDTH_FOR_BARS),
        ]
        table.add_row(
            *cells, *[Text(first_line(job["explanation"]), style=style)] * wide
        )
    return table


def _silent(job: JsonObject) -> str:
    """Return how long a job that trains has been silent, once that is longer than
    reports are apart.
    """
    seconds = cast("float | None", job.get("silent_s"))
    return (
        f", silent {duration(seconds)}"
        if seconds is not None and seconds >= SILENT_SHOWN_S
        else ""
    )


def _mark(job: JsonObject, colours: dict[str, str]) -> Text:
    colour = colours.get(str(job["id"]))
    return Text("■", style=colour) if colour else Text(" ")


def _progress(job: JsonObject, with_bar: bool) -> RenderableType:
    part = done(job)
    style = "bright_black" if job["state"] in ENDED else ""
    if part is None or not with_bar:
        return Text(share(part), style=style)
    done_style = style or "green"
    bar = ProgressBar(
        total=1.0,
        completed=part,
        width=BAR_WIDTH,
        complete_style=done_style,
        finished_style=done_style,
        style="grey23",
    )
    row = Table.grid(padding=(0, 1))
    row.add_row(bar, Text(share(part), style=style))
    return row
