"""The report of `coadapt what-if --html`: the futures as a table and as a picture of
what they cost, in one file that works offline.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from coadapt.cli.forecast.tables import compared, left_out
from coadapt.cli.forecast.words import cost_in_words, in_words, span
from coadapt.cli.svg import text
from coadapt.durable import write_whole
from coadapt.sim.ahead.estimate import Estimate, Range
from coadapt.sim.ahead.roll import Question

WIDTH = 760
HEIGHT = 300
LEFT = 80
RIGHT = 150
TOP = 14
BOTTOM = 44
MARKS = (0.1, 0.5, 0.9)
# Names that are nearer to each other than this overlap.
NAME_HEIGHT = 15
NAME_WIDTH = 110
NAME_MAX = 40


class _Point(NamedTuple):
    """A future: the mean time to the end (s), and the cost of the jobs."""

    name: str
    mean: Range
    cost: Range


class _Axis(NamedTuple):
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], start: float, end: float) -> "_Axis":
        """Return an axis with a little room beside all values."""
        low = min(values)
        high = max(values)
        room = 0.05 * (high - low) or 0.1 * abs(low) or 1.0
        return cls(low - room, high + room, start, end)

    def at(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    @property
    def marks(self) -> list[float]:
        return [self.low + part * (self.high - self.low) for part in MARKS]


def write_report(
    path: Path, found: Sequence[Estimate], question: Question, num_wanted: int
) -> None:
    """Write the report to `path`, whole or not at all.

    num_wanted: of futures, so that the report says if there are fewer.
    """
    prices = question.state.prices
    currency = "" if prices is None else prices.currency
    rows = [_row(each, found[0], currency) for each in found]
    drawn = cost_curve(found, currency)
    note = left_out(found[0], num_wanted)
    page = _PAGE.format(
        rows="\n".join(rows),
        drawn=f"<h2>Cost and mean time to the end</h2>\n{drawn}" if drawn else "",
        note=escape(f"Policy in force: {question.policy}. {note}".strip()),
    )
    write_whole(path, page)


def _row(estimate: Estimate, now: Estimate, currency: str) -> str:
    cells = [
        estimate.scenario,
        "" if estimate is now else compared(now, estimate),
        cost_in_words(estimate.cost, currency) or "no prices",
        in_words(estimate.mean_end, estimate.ahead_s),
        in_words(estimate.last_end, estimate.ahead_s),
    ]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def cost_curve(found: Sequence[Estimate], currency: str) -> str:
    """Return an SVG with a point for each future: its cost over its mean time to the
    end; "" where fewer than two futures have both.
    """
    points = [
        _Point(each.scenario, _finite(each.mean_end), each.cost)
        for each in found
        if each.cost is not None and math.isfinite(each.mean_end.median)
    ]
    if len(points) < 2:
        return ""
    means = [end for each in points for end in (each.mean.low, each.mean.high)]
    costs = [end for each in points for end in (each.cost.low, each.cost.high)]
    across = _Axis.of(means, LEFT, WIDTH - RIGHT)
    up = _Axis.of(costs, HEIGHT - BOTTOM, TOP)
    parts = _axes(across, up, currency)
    ordered = sorted(points, key=lambda each: each.mean.median)
    corners = " ".join(
        f"{across.at(each.mean.median):.1f},{up.at(each.cost.median):.1f}"
        for each in ordered
    )
    parts.append(f'<polyline points="{corners}" fill="none" stroke="#b3541e"/>')
    for each in points:
        parts += _drawn(each, across, up)
    parts += _names(points, across, up)
    label = "; ".join(
        f"{each.name}: {each.cost.median:.2f} {currency}, mean {span(each.mean.median)}"
        for each in points
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" role="img" aria-label="{escape(label)}" '
        'font-family="sans-serif" font-size="12">\n' + "\n".join(parts) + "\n</svg>"
    )


def _finite(found: Range) -> Range:
    high = found.high if math.isfinite(found.high) else found.median
    return Range(low=found.low, median=found.median, high=high)


def _axes(across: _Axis, up: _Axis, currency: str) -> list[str]:
    parts = []
    for mark in up.marks:
        y = up.at(mark)
        parts.append(_line(LEFT, WIDTH - RIGHT, y, y, "#d8dde3"))
        parts.append(text(LEFT - 8, y + 4, f"{mark:.2f}", anchor="end"))
    for mark in across.marks:
        parts.append(text(across.at(mark), HEIGHT - 26, span(mark), anchor="middle"))
    what = f"mean time to the end; cost in {currency}, upwards"
    parts.append(text(LEFT, HEIGHT - 6, what))
    return parts


def _drawn(point: _Point, across: _Axis, up: _Axis) -> list[str]:
    x = across.at(point.mean.median)
    y = up.at(point.cost.median)
    left = across.at(point.mean.low)
    right = across.at(point.mean.high)
    low = up.at(point.cost.low)
    high = up.at(point.cost.high)
    return [
        _line(left, right, y, y, "#59636e"),
        _line(x, x, low, high, "#59636e"),
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#0b5cad"/>',
    ]


def _line(left: float, right: float, top: float, bottom: float, colour: str) -> str:
    return (
        f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" '
        f'stroke="{colour}"/>'
    )


def _names(points: Sequence[_Point], across: _Axis, up: _Axis) -> list[str]:
    """Return the names, each right of its point, below a name that it would overlap."""
    placed: list[tuple[float, float]] = []
    parts = []
    for each in sorted(points, key=lambda each: up.at(each.cost.median)):
        x = across.at(each.mean.median) + 9
        y = up.at(each.cost.median) - 7
        while any(
            abs(other_y - y) < NAME_HEIGHT and abs(other_x - x) < NAME_WIDTH
            for other_x, other_y in placed
        ):
            y += NAME_HEIGHT
        placed.append((x, y))
        parts.append(text(x, y, each.name[:NAME_MAX]))
    return parts


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What if</title>
<style>body {{ font: 16px/1.4 system-ui, sans-serif; margin: 0 auto; max-width: 60rem;
padding: 1rem }}
h1, h2 {{ font-size: 1.3rem }} svg {{ max-width: 100%; height: auto }}
th, td {{ text-align: left; padding: 0.2rem 1rem 0.2rem 0; vertical-align: top }}</style>
</head><body>
<h1>What if</h1>
<table><thead><tr><th>Future</th><th>Against as it is</th><th>Cost</th>
<th>Mean time to the end</th><th>Last end</th></tr></thead>
<tbody>
{rows}
</tbody></table>
{drawn}
<p>In brackets: nine in ten futures. {note}</p>
</body></html>
"""
