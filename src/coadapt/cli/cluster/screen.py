"""The picture that `coadapt top` shows: from the API's snapshot of the cluster to
rich's renderables.
"""

from collections import deque
from datetime import datetime
from typing import cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from coadapt.cli.client import JsonObject
from coadapt.cli.cluster.bought import counts_line, reason_line
from coadapt.cli.jobs.job_states import ENDED
from coadapt.cli.jobs.job_table import colours_of, job_view, share

# One look per second; the curve and its figures fit into 80 columns.
NUM_LOOKS = 46
NUM_ENDED_SHOWN = 5
# Lines beside the jobs' own: header, slots, curve, counts, headings and blanks.
NUM_OTHER_LINES = 12
LEVELS = " ▁▂▃▄▅▆▇█"
SLOT = "■"
FREE_STYLE = "grey35"


class Screen:
    """Remembers how many GPUs were held at the last looks."""

    def __init__(self) -> None:
        self._held: deque[float] = deque(maxlen=NUM_LOOKS)

    def picture(
        self,
        cluster: JsonObject,
        width: int,
        height: int | None = None,
        notice: str = "",
    ) -> RenderableType:
        """Return what to show of a snapshot, on `width` columns and `height` lines
        (None: no limit).
        """
        jobs = cast("list[JsonObject]", cluster["jobs"])
        colours = colours_of(jobs)
        num_gpus = cast(int, cluster["num_gpus"])
        used = cast(float, cluster["num_gpus_used"])
        self._held.append(used / num_gpus if num_gpus else 0.0)
        parts: list[RenderableType] = [
            _header(cluster),
            Rule(style="grey35"),
            _nodes(cluster, jobs, colours),
            self._curve(),
            _counts(cluster),
        ]
        buying = cast("JsonObject | None", cluster["buying"])
        if buying is not None:
            line = Text("").append("Nodes  ", style="bold")
            parts.append(line.append(f"{counts_line(buying)} ({reason_line(buying)})"))
        if cluster["plan_error"]:
            parts.append(
                Text(
                    f"the last plan was refused: {cluster['plan_error']}",
                    style="bold red",
                )
            )
        if notice:
            parts.append(Text(notice, style="bold red"))
        limit = None if height is None else max(height - NUM_OTHER_LINES, 1)
        parts.append(
            Padding(job_view(_shown(jobs, limit), colours, width), (1, 0, 0, 0))
        )
        return Group(*parts)

    def _curve(self) -> Text:
        """Return the share of GPUs that is held, over the last looks."""
        steps = [LEVELS[round(level * (len(LEVELS) - 1))] for level in self._held]
        mean = sum(self._held) / len(self._held)
        line = Text("").append("Held   ", style="bold")
        line.append("".join(steps).ljust(NUM_LOOKS), style="#56b4e9")
        line.append(
            f"  {share(self._held[-1])} now, {share(mean)} mean", style="bright_black"
        )
        return line


def _header(cluster: JsonObject) -> Table:
    header = Table.grid(expand=True)
    header.add_column()
    header.add_column(justify="right")
    left = Text("").append("coadapt", style="bold #56b4e9")
    left.append(f"  {cluster['policy']} · round {cluster['round']}")
    at = datetime.fromtimestamp(cast(float, cluster["at"])).astimezone()
    header.add_row(left, Text(f"{at:%H:%M:%S}", style="bright_black"))
    return header


def _nodes(
    cluster: JsonObject, jobs: list[JsonObject], colours: dict[str, str]
) -> Table:
    """Return a row of slots per node, coloured by the job that holds them."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_column(style="bright_black", no_wrap=True)
    for index, node in enumerate(cast("list[JsonObject]", cluster["nodes"])):
        slots = Text()
        num_gpus = cast(int, node["num_gpus"])
        for job in jobs:
            for held_node, count in cast("list[tuple[str, int]]", job["allocation"]):
                if held_node == node["id"] and str(job["id"]) in colours:
                    slots.append(f"{SLOT} " * count, style=colours[str(job["id"])])
        num_free = num_gpus - len(slots.plain) // 2
        slots.append(f"{SLOT} " * num_free, style=FREE_STYLE)
        used = cast(float, node["num_gpus_used"])
        legend = f"{used:g} of {num_gpus} {node['gpu_type']}"
        grid.add_row("GPUs  " if index == 0 else "", str(node["id"]), slots, legend)
    return grid


def _counts(cluster: JsonObject) -> Text:
    """Return how many jobs there are of each kind; the picture shows the first of them
    only.
    """
    numbers = cast("dict[str, int]", cluster["num_jobs"])
    waiting = numbers.get("pending", 0)
    ended = sum(number for state, number in numbers.items() if state in ENDED)
    line = Text("").append("Jobs   ", style="bold")
    line.append(f"{sum(numbers.values()) - waiting - ended} hold GPUs", style="green")
    line.append(" · ")
    line.append(f"{waiting} wait", style="yellow")
    line.append(" · ")
    line.append(f"{ended} ended", style="bright_black")
    return line


def _shown(jobs: list[JsonObject], limit: int | None) -> list[JsonObject]:
    """Return the active jobs, then the ones that ended last, as many as there is room
    for.
    """
    active = [job for job in jobs if job["state"] not in ENDED]
    ended = sorted(
        (job for job in jobs if job["state"] in ENDED),
        key=lambda job: -cast(float, job["ended_at"]),
    )
    return [*active, *ended[:NUM_ENDED_SHOWN]][:limit]
