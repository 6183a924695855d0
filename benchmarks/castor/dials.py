"""Castor's dials as curves: the mean completion time against the makespan, and against
who is late.

`python -m benchmarks.castor.dials --traces DIR` (the folder with osdi21/; or
$COADAPT_TRACES) plays drawn workloads of OSDI'21 at settings of `makespan_jobs` and of
`rho_max`. The figures, over those of pollux, go into
benchmarks/results/castor_dials.json and the picture into
docs/policies/castor-dials.svg.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._svg import picture, text
from benchmarks.castor.gap import NAMES, bench_of, store
from benchmarks.castor.generated import Drawn

RESULTS = Path(__file__).parents[1] / "results" / "castor_dials.json"
PICTURE = Path(__file__).parents[2] / "docs" / "policies" / "castor-dials.svg"
DIALS = {
    "makespan_jobs": (0.0, 1.0, 4.0, 8.0, 16.0, 32.0),
    "rho_max": (0.0, 2.0, 1.6, 1.2, 1.1, 1.0),
}
DEFAULTS = {"makespan_jobs": 4.0, "rho_max": 2.0}

Point = dict[
    str, float
]  # over pollux: jct, makespan; rho: the worst; late: part of the jobs
Curve = dict[str, Point]  # by the value of the dial


def at(bench: Drawn, dial: str, value: float) -> Point:
    """Return the means over workloads at one setting of a dial."""
    policy = "castor" if value == DEFAULTS[dial] else f"castor({dial}={value})"
    runs = [(bench.run(name, policy), bench.run(name, "pollux")) for name in NAMES]
    point = {
        name: statistics.mean(run[name] / rival[name] for run, rival in runs)
        for name in ("jct", "makespan")
    }
    point |= {"rho": statistics.mean(run["rho"] for run, _ in runs)}
    point |= {"late": statistics.mean(run["unfair"] for run, _ in runs)}
    return {name: round(each, 3) for name, each in point.items()}


class Panel(NamedTuple):
    """A curve, where it stands (px from the left), and what goes up: a figure, its name
    and its range.
    """

    dial: str
    left: int
    figure: str
    title: str
    low: float
    high: float
    step: float


# px; SIDE: of a panel
WIDTH = 860
HEIGHT = 420
TOP = 88
BOTTOM = 54
SIDE = 330
MEAN_LOW = 0.80
MEAN_HIGH = 0.96
MEAN_STEP = 0.04
PANELS = (
    Panel("makespan_jobs", 70, "makespan", "makespan over pollux", 0.90, 1.10, 0.05),
    Panel(
        "rho_max", 490, "late", "jobs later than on their fair share", 0.0, 0.3, 0.05
    ),
)
COLOUR = "#0b6e4f"
# Where the name of a value stands, px from its point, where left and below would be on
# the curve.
SIDES = {
    ("rho_max", "0"): (12, -6),
    ("rho_max", "2"): (13, 5),
    ("rho_max", "1.6"): (-10, 0),
    ("rho_max", "1.1"): (10, 16),
    ("rho_max", "1"): (-10, -5),
}


def draw(found: Mapping[str, Curve]) -> str:
    """Return both curves as SVG."""
    lines = [
        text(70, 24, "What castor's dials trade", font_size="15", font_weight="bold"),
        text(
            70,
            44,
            "each point is a value of the dial; ringed: the default",
            fill="#666",
        ),
    ]
    for panel in PANELS:
        lines += _panel(panel, found[panel.dial])
    return picture(
        WIDTH, HEIGHT, "mean completion time against makespan and late jobs", lines
    )


def _panel(panel: Panel, curve: Curve) -> list[str]:
    bottom = HEIGHT - BOTTOM

    def x(mean: float) -> float:
        return panel.left + (mean - MEAN_LOW) / (MEAN_HIGH - MEAN_LOW) * SIDE

    def y(value: float) -> float:
        return bottom - (value - panel.low) / (panel.high - panel.low) * (bottom - TOP)

    lines = [text(panel.left, TOP - 6, f"{panel.title}, by {panel.dial}")]
    for tick in _ticks(MEAN_LOW, MEAN_HIGH, MEAN_STEP):
        lines.append(f'<path d="M{x(tick):.0f} {TOP}V{bottom}" stroke="#e3e3e3"/>')
        lines.append(text(x(tick), bottom + 18, f"{tick:.2f}", text_anchor="middle"))
    for tick in _ticks(panel.low, panel.high, panel.step):
        lines.append(f'<path d="M{panel.left} {y(tick):.0f}h{SIDE}" stroke="#e3e3e3"/>')
        name = f"{tick:.0%}" if panel.figure == "late" else f"{tick:.2f}"
        lines.append(text(panel.left - 8, y(tick) + 4, name, text_anchor="end"))
    lines.append(
        text(
            panel.left + SIDE / 2,
            bottom + 38,
            "mean completion time over pollux",
            text_anchor="middle",
        )
    )
    places = [(x(point["jct"]), y(point[panel.figure])) for point in curve.values()]
    joined = " ".join(f"{left:.1f},{up:.1f}" for left, up in places)
    lines.append(
        f'<polyline points="{joined}" fill="none" stroke="{COLOUR}" stroke-width="2"/>'
    )
    for (left, up), value in zip(places, curve, strict=True):
        default = float(value) == DEFAULTS[panel.dial]
        if default:
            lines.append(
                f'<circle cx="{left:.1f}" cy="{up:.1f}" r="8" fill="none" '
                f'stroke="{COLOUR}"/>'
            )
        lines.append(f'<circle cx="{left:.1f}" cy="{up:.1f}" r="3.5" fill="{COLOUR}"/>')
        name = (
            "off"
            if panel.dial == "rho_max" and not float(value)
            else f"{float(value):g}"
        )
        across, down = SIDES.get((panel.dial, value), (-10, 16))
        anchor = "end" if across < 0 else "start"
        lines.append(
            text(left + across, up + down, name, fill=COLOUR, text_anchor=anchor)
        )
    return lines


def _ticks(low: float, high: float, step: float) -> Sequence[float]:
    return [low + number * step for number in range(round((high - low) / step) + 1)]


def main(argv: list[str] | None = None) -> None:
    """Play, print, store and draw."""
    bench = bench_of(__doc__, argv, RESULTS)
    found: dict[str, Curve] = {}
    for dial, values in DIALS.items():
        found[dial] = {}
        for value in values:
            found[dial][f"{value:g}"] = at(bench, dial, value)
            store(RESULTS, found, bench)
            print(dial, value, found[dial][f"{value:g}"], flush=True)
    PICTURE.write_text(draw(found), encoding="utf-8")


if __name__ == "__main__":
    main()
