"""CPU time of one decision against the size of the cluster: castor and four others, as
a table and a picture.

`python -m benchmarks.castor.scale` times each policy on crowded clusters
(castor_views.py) of growing size,
until a decision takes longer than LIMIT_S. Of each decision the least CPU time over
several replays counts:
that is what it takes where no neighbour has part of the core. `--policy NAME` times one
policy. What it finds goes to benchmarks/results/castor_scale.json and, drawn, to
docs/policies/castor-scale.svg; `--draw` draws only.
"""

import argparse
import math
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks._svg import picture, text
from benchmarks.castor.views import crowded_views
from benchmarks.stored import load_results, store_results
from coadapt.policies import create_policy

RESULTS = Path(__file__).parents[1] / "results" / "castor_scale.json"
PICTURE = Path(__file__).parents[2] / "docs" / "policies" / "castor-scale.svg"
SIZES = (
    (16, 40),
    (64, 160),
    (256, 250),
    (1024, 400),
    (4096, 2000),
    (16384, 10000),
)  # GPUs, jobs
# fewer from so many jobs on; the first is not counted
ROUNDS = 26
FEW_ROUNDS = 4
FEW_FROM = 1_000
# of all rounds, until so much CPU time is spent
REPLAYS = 20
REPLAYS_S = 10.0
LIMIT_S = 2.0  # CPU seconds of a decision: larger clusters are left out after that
COLOURS = {
    "castor": "#0b6e4f",
    "pollux": "#1f5fa8",
    "pollux-genetic": "#7a3e9d",
    "sia": "#c2571a",
    "shockwave": "#8a6d00",
}
GOALS_MS = {64: 5.0, 1024: 100.0, 16384: 1000.0}  # castor's, by GPUs

Timed = dict[str, float]


def decision_ms(policy: str, num_gpus: int, num_jobs: int) -> float:
    """Return the CPU time of a decision, ms: of each the least over replays, of these
    the median over rounds.

    A neighbour on the same core makes a decision up to twice as long, and never
    shorter. Where one takes longer than the limit, return that.
    """
    views = list(
        crowded_views(
            num_gpus, num_jobs, FEW_ROUNDS if num_jobs >= FEW_FROM else ROUNDS
        )
    )
    least_s = [math.inf] * len(views)
    began_s = time.process_time()
    for _ in range(REPLAYS):
        chosen = create_policy(policy)
        for number, view in enumerate(views):
            asked_s = time.process_time()
            chosen.allocate(view)
            spent_s = time.process_time() - asked_s
            least_s[number] = min(least_s[number], spent_s)
            if number and spent_s > LIMIT_S:
                return round(1e3 * spent_s, 1)
        if time.process_time() - began_s > REPLAYS_S:
            break
    return round(1e3 * statistics.median(least_s[1:]), 2)


def loop_ms() -> float:
    """Return the median CPU time of 300,000 turns of a loop in Python, ms: what this
    machine does now.
    """
    spent_s = []
    for _ in range(9):
        began_s = time.process_time()
        number = 0
        for turn in range(300_000):
            number = (3 * number + turn) & 0xFFFF
        spent_s.append(time.process_time() - began_s)
    return round(1e3 * statistics.median(spent_s), 1)


def measure(policy: str) -> Timed:
    """Return the milliseconds of a decision by size, the smallest first, up to the
    first beyond the limit.
    """
    found: Timed = {}
    decision_ms(policy, 16, 8)  # so that no compiling is timed
    for num_gpus, num_jobs in SIZES:
        ms = found[f"{num_gpus} GPUs, {num_jobs} jobs"] = decision_ms(
            policy, num_gpus, num_jobs
        )
        print(policy, num_gpus, num_jobs, ms, flush=True)
        if ms > 1e3 * LIMIT_S:
            break
    return found


# The picture: both axes logarithmic, each policy's name where its line ends.
WIDTH = 760
HEIGHT = 460
# px
LEFT = 70
RIGHT = 130
TOP = 44
BOTTOM = 70
LOWEST_MS = 0.1
HIGHEST_MS = 100_000.0
APART = 15  # px, between names


def _x(num_gpus: float) -> float:
    low = math.log(SIZES[0][0])
    high = math.log(SIZES[-1][0])
    return LEFT + (math.log(num_gpus) - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def _y(ms: float) -> float:
    low = math.log(LOWEST_MS)
    high = math.log(HIGHEST_MS)
    return (
        HEIGHT - BOTTOM - (math.log(ms) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    )


def _grid() -> list[str]:
    """Return the axes: sizes below, times at the left."""
    lines = []
    bottom = HEIGHT - BOTTOM
    for num_gpus, num_jobs in SIZES:
        x = _x(num_gpus)
        lines.append(f'<path d="M{x:.0f} {TOP}V{bottom}" stroke="#e3e3e3"/>')
        lines.append(text(x, bottom + 18, f"{num_gpus:,}", text_anchor="middle"))
        lines.append(
            text(x, bottom + 35, f"{num_jobs:,}", text_anchor="middle", fill="#666")
        )
    names = {
        0.1: "0.1 ms",
        1.0: "1 ms",
        10.0: "10 ms",
        100.0: "100 ms",
        1e3: "1 s",
        1e4: "10 s",
    }
    for ms, name in (names | {6e4: "1 min"}).items():
        lines.append(
            f'<path d="M{LEFT} {_y(ms):.0f}H{WIDTH - RIGHT}" stroke="#e3e3e3"/>'
        )
        lines.append(text(LEFT - 8, _y(ms) + 4, name, text_anchor="end"))
    lines.append(text(LEFT - 22, bottom + 18, "GPUs", text_anchor="end"))
    lines.append(text(LEFT - 22, bottom + 35, "jobs", text_anchor="end", fill="#666"))
    return lines


def _curve(policy: str, found: Timed) -> tuple[list[str], tuple[float, float]]:
    """Return the line of a policy, and where it ends."""
    points = [(_x(int(size.split()[0])), _y(ms)) for size, ms in found.items()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    colour = COLOURS[policy]
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    dots = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
        for x, y in points
    ]
    return [line, *dots], points[-1]


def draw(timed: dict[str, Timed]) -> str:
    """Return the picture as SVG."""
    lines = _grid()
    for num_gpus, ms in GOALS_MS.items():
        x = _x(num_gpus)
        y = _y(ms)
        lines.append(
            f'<path d="M{x - 9:.0f} {y:.0f}h18" stroke="{COLOURS["castor"]}" '
            f'stroke-width="3"/>'
        )
    ends = []
    for policy, found in timed.items():
        curve, (x, y) = _curve(policy, found)
        lines += curve
        ends.append((y, x, policy))
    last_y = -math.inf
    for y, x, policy in sorted(ends):
        style = {"fill": COLOURS[policy], "font_weight": "bold"}
        if x < WIDTH - RIGHT - 1:  # beside it others go on
            lines.append(text(x, y - 10, policy, text_anchor="end", **style))
            continue
        last_y = max(y + 4, last_y + APART)
        lines.append(text(x + 14, last_y, policy, **style))
    title = "CPU time of one decision (median of rounds); bars: castor's goals"
    lines.append(text(LEFT, 24, title, font_size="15", font_weight="bold"))
    return picture(WIDTH, HEIGHT, title, lines)


def main(argv: list[str] | None = None) -> None:
    """Time, store and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--policy", action="append", choices=list(COLOURS))
    parser.add_argument(
        "--draw", action="store_true", help="draw what is stored; time nothing"
    )
    options = parser.parse_args(argv)
    stored = load_results(RESULTS) or {"ms": {}}
    for policy in () if options.draw else options.policy or COLOURS:
        stored["ms"][policy] = measure(policy)
        stored["machine"] = (
            f"{platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}"
        )
        stored.setdefault("loop_ms", {})[policy] = loop_ms()
        store_results(RESULTS, stored)
    PICTURE.write_text(
        draw({name: stored["ms"][name] for name in COLOURS if name in stored["ms"]}),
        "utf-8",
    )


if __name__ == "__main__":
    main()
