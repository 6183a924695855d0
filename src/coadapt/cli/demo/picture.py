"""The picture of `coadapt demo`: each job's GPUs over time, on both sides."""

from collections.abc import Sequence
from html import escape

from coadapt.cli.demo.plan import NUM_SLOTS
from coadapt.cli.demo.side import JobRun, Side
from coadapt.cli.svg import text

WIDTH = 760
LEFT = 90
ROW = 44
BAR_MAX = 32
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5")


def picture(sides: Sequence[Side]) -> str:
    """Return an SVG: a panel per side, a row per job, height of a bar by its GPUs."""
    end_s = max(run.ended_s or 0.0 for side in sides for run in side.runs) or 1.0
    scale = (WIDTH - LEFT - 20) / end_s
    parts: list[str] = []
    top = 10
    for side in sides:
        sizes = "each job from 1 to 4 GPUs" if side.elastic else "fixed sizes"
        parts.append(text(10, top + 16, f"{side.policy}, {sizes}", weight="bold"))
        top += 26
        for index, run in enumerate(side.runs):
            parts += _row(run, top, scale, COLOURS[index % len(COLOURS)])
            top += ROW
        top += 10
    parts += _axis(end_s, scale, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 34}" '
        f'width="{WIDTH}" font-family="sans-serif" font-size="12">\n'
        '<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _row(run: JobRun, top: float, scale: float, colour: str) -> list[str]:
    base = top + BAR_MAX
    parts = [text(10, base - 4, run.job.name)]
    ended_s = run.ended_s if run.ended_s is not None else run.arrived_s
    begin = LEFT + run.arrived_s * scale
    length = (ended_s - run.arrived_s) * scale
    parts.append(
        f'<rect class="life" x="{begin:.1f}" y="{base - 1}" width="{length:.1f}" '
        'height="1" fill="#718096"/>'
    )
    for (at_s, gpus), (until_s, _) in zip(
        run.gpus, [*run.gpus[1:], (ended_s, 0)], strict=True
    ):
        if gpus and until_s > at_s:
            height = BAR_MAX * gpus / NUM_SLOTS
            parts.append(
                f'<rect class="held" x="{LEFT + at_s * scale:.1f}" '
                f'y="{base - height:.1f}" width="{(until_s - at_s) * scale:.1f}" '
                f'height="{height:.1f}" fill="{colour}"><title>{escape(run.job.name)}: '
                f"{gpus} GPUs from {at_s:.1f} s to {until_s:.1f} s</title></rect>"
            )
    return parts


def _axis(end_s: float, scale: float, top: float) -> list[str]:
    parts = []
    for at_s in range(0, int(end_s) + 1, 10):
        x = LEFT + at_s * scale
        parts.append(text(x, top + 12, f"{at_s} s", anchor="middle"))
    parts.append(
        text(LEFT, top + 28, "height of a bar: GPUs held, 1 to 4; line: the job waits")
    )
    return parts
