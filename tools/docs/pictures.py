"""Draws the pictures of the documentation into docs/pictures.

`python -m tools.docs.pictures` draws all of them. The states come from the transition
table, the minutes of `castor` from a simulation; a test compares the states.
"""

import html
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks._svg import picture, text
from coadapt.core.lifecycle import TRANSITIONS, JobState
from coadapt.model import Node
from coadapt.runtime.history import History, JobHistory, Span
from coadapt.sim.experiment import new_policy, simulate_policy
from coadapt.sim.library.builtin import builtin_workload
from tools.house_rules import ROOT

FOLDER = ROOT / "docs" / "pictures"

INK = "#222"
PALE = "#eef1f6"
LINE = "#5a6b8c"
COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0")
FREE = "#e3e6ec"
CORE = "#dcebf0"

NUM_NODES = 4
GPUS_PER_NODE = 4
SEED = 1
NUM_JOBS = 6
# Instants of the simulation at which a plan changes what jobs hold, s.
MOMENTS_S = (123.0, 181.0, 245.0, 277.0, 490.0, 607.0)
TIMELINE_S = (100.0, 660.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a title and a line below it, in pixels."""

    x: float
    y: float
    width: float
    height: float
    title: str
    note: str = ""
    fill: str = PALE


def box_lines(box: Box) -> list[str]:
    """Return a box as SVG."""
    middle = box.x + box.width / 2
    title_y = box.y + box.height / 2 + (5 if not box.note else -4)
    lines = [
        (
            f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" '
            f'height="{box.height:.0f}" rx="6" fill="{box.fill}" stroke="{LINE}"/>'
        ),
        text(middle, title_y, box.title, text_anchor="middle", font_weight="600"),
    ]
    if box.note:
        lines.append(
            text(
                middle,
                box.y + box.height / 2 + 15,
                box.note,
                text_anchor="middle",
                font_size="11",
                fill="#555",
            )
        )
    return lines


def arrow(points: Sequence[tuple[float, float]], *, both: bool = False) -> str:
    """Return a line through `points` with a head at its end, or at both ends."""
    path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    start = ' marker-start="url(#head)"' if both else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.5" '
        f'marker-end="url(#head)"{start}/>'
    )


def arrow_head() -> str:
    """Return the definition that `arrow` uses."""
    return (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" '
        'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
        f'<path d="M0,0 L10,5 L0,10 z" fill="{LINE}"/></marker></defs>'
    )


def label(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    """Return small words beside an arrow."""
    return text(x, y, words, text_anchor=anchor, font_size="11", fill="#555")


def _box(
    x: float, y: float, width: float, title: str, note: str, *, fill: str = PALE
) -> Box:
    return Box(x=x, y=y, width=width, height=54, title=title, note=note, fill=fill)


def architecture() -> str:
    """Return the picture of Coadapt's parts."""
    boxes = [
        _box(20, 20, 190, "coadapt submit, ls, …", "command line"),
        _box(20, 110, 190, "HTTP API", "jobs, reports, metrics"),
        _box(270, 110, 150, "journal", "SQLite, every event"),
        _box(480, 110, 170, "core", "event → commands", fill=CORE),
        _box(480, 20, 170, "policy", "view → plan", fill=CORE),
        _box(480, 210, 170, "engine", "local, Ray, Slurm, Kubernetes"),
        _box(480, 310, 170, "launcher", "one per job"),
        _box(180, 310, 240, "replicas: coadapt.train", "one process per GPU"),
        _box(700, 110, 150, "simulator", "virtual clock, traces"),
    ]
    lines = [arrow_head()]
    for box in boxes:
        lines += box_lines(box)
    lines += [
        arrow([(115, 74), (115, 108)]),
        arrow([(210, 137), (268, 137)]),
        label(239, 130, "events"),
        arrow([(420, 137), (478, 137)]),
        arrow([(565, 110), (565, 76)], both=True),
        label(573, 97, "Solve, PlanReady", anchor="start"),
        arrow([(565, 164), (565, 208)], both=True),
        label(573, 190, "Start, Rescale, Stop", anchor="start"),
        arrow([(565, 264), (565, 308)]),
        arrow([(480, 337), (422, 337)]),
        arrow([(180, 337), (60, 337), (60, 166)]),
        label(68, 240, "reports: step times,", anchor="start"),
        label(68, 255, "gradient noise", anchor="start"),
        arrow([(700, 137), (652, 137)], both=True),
        label(775, 182, "the same core and policies"),
    ]
    return picture(870, 385, "The parts of Coadapt and what they exchange", lines)


# Where each state is drawn, its centre.
STATE_PLACES = {
    JobState.PENDING: (110, 60),
    JobState.STARTING: (330, 60),
    JobState.RUNNING: (550, 60),
    JobState.RESCALING: (770, 60),
    JobState.STOPPING: (330, 210),
    JobState.SUCCEEDED: (550, 210),
    JobState.FAILED: (770, 210),
    JobState.CANCELLED: (110, 210),
}
STATE_NOTES = {
    JobState.PENDING: "waits for GPUs",
    JobState.STARTING: "processes start",
    JobState.RUNNING: "trains",
    JobState.RESCALING: "replicas change",
    JobState.STOPPING: "saves and ends",
    JobState.SUCCEEDED: "final",
    JobState.FAILED: "final",
    JobState.CANCELLED: "final",
}


def job_states() -> str:
    """Return the picture of a job's states, without the arrows that every state has.

    Each active state can also lead to pending, succeeded and failed. These arrows are a
    sentence below the states. Raises ValueError if the table has a state without place.
    """
    lines = [arrow_head()]
    for state in JobState:
        if state not in STATE_PLACES:
            raise ValueError(f"no place for the state {state}")
        x, y = STATE_PLACES[state]
        final = STATE_NOTES[state] == "final"
        lines += box_lines(
            Box(
                x=x - 70,
                y=y - 27,
                width=140,
                height=54,
                title=state.value,
                note=STATE_NOTES[state],
                fill="#fff" if final else PALE,
            )
        )
    lines += [
        arrow([(180, 52), (258, 52)]),
        label(219, 45, "allocated"),
        arrow([(258, 70), (182, 70)]),
        label(219, 84, "released"),
        arrow([(400, 60), (478, 60)]),
        label(439, 53, "started"),
        arrow([(620, 52), (698, 52)]),
        label(659, 45, "rescale"),
        arrow([(698, 70), (622, 70)]),
        label(659, 84, "done or kept"),
        arrow([(330, 87), (330, 181)]),
        label(338, 130, "stop ordered", anchor="start"),
        arrow([(530, 87), (405, 190)]),
        arrow([(720, 87), (720, 110), (480, 110), (400, 183)]),
        arrow([(110, 87), (110, 181)]),
        label(118, 130, "cancelled", anchor="start"),
        arrow([(258, 210), (182, 210)]),
        label(219, 203, "cancelled"),
        arrow([(560, 87), (560, 181)]),
        label(568, 150, "exit code 0", anchor="start"),
        arrow([(610, 87), (745, 181)]),
        label(714, 150, "gave up", anchor="start"),
        text(
            40,
            275,
            "Every active state also leads to pending (replicas ended, the job runs "
            "again), to succeeded and to failed.",
            font_size="12",
            fill="#555",
        ),
    ]
    return picture(870, 295, "The states of a job", lines)


def drawn_states() -> frozenset[JobState]:
    """Return the states that the picture has a place for."""
    return frozenset(STATE_PLACES)


def known_states() -> frozenset[JobState]:
    """Return the states of the transition table."""
    return frozenset(before for before, _ in TRANSITIONS) | frozenset(
        TRANSITIONS.values()
    )


def simulated() -> History:
    """Return the history of six jobs under `castor` on four nodes of four GPUs."""
    num_gpus = NUM_NODES * GPUS_PER_NODE
    workload, applications = builtin_workload("busy", NUM_JOBS, SEED, num_gpus=num_gpus)
    cluster = tuple(
        Node(id=f"node-{index}", num_gpus=GPUS_PER_NODE) for index in range(NUM_NODES)
    )
    result = simulate_policy(
        workload,
        applications,
        cluster,
        lambda: new_policy("castor", 0),
        policy_name="castor",
    )
    return result.history


def span_at(job: JobHistory, at: float) -> Span | None:
    """Return what the job held at `at` (s), or None if it had not come or had ended."""
    for span in job.spans:
        if span.start <= at < span.end:
            return span
    return None


def reason_at(job: JobHistory, at: float) -> str:
    """Return the newest reason of the job at `at` (s)."""
    reasons = [sentence for instant, sentence in job.reasons if instant <= at]
    return reasons[-1] if reasons else ""


def castor_minutes() -> str:
    """Return six moments of a simulation, and a timeline of the GPUs that jobs hold."""
    history = simulated()
    jobs = sorted(history.jobs.values(), key=lambda job: job.submitted_at)
    colour_of = {
        job.id: COLOURS[index % len(COLOURS)] for index, job in enumerate(jobs)
    }
    width = 930
    lines: list[str] = []
    for index, at in enumerate(MOMENTS_S):
        x = 15 + (index % 3) * 305
        y = 15 + (index // 3) * 205
        lines += _moment(jobs, colour_of, at, x=x, y=y)
    lines += _timeline(jobs, colour_of, y=445, width=width)
    title = "Six minutes of castor: which job holds which share of 16 GPUs, and why"
    return picture(width, 700, title, lines)


def _moment(
    jobs: Sequence[JobHistory],
    colour_of: dict[str, str],
    at: float,
    *,
    x: float,
    y: float,
) -> list[str]:
    """Return the GPUs at `at` (s) as squares, and why a job changed last."""
    lines = [text(x, y + 14, f"{at - 1 - TIMELINE_S[0]:.0f} s", font_weight="600")]
    held: list[str] = []
    changed: tuple[float, JobHistory] | None = None
    for job in jobs:
        span = span_at(job, at)
        if span is None:
            continue
        held += [colour_of[job.id]] * int(span.num_gpus)
        if span.num_gpus and (changed is None or span.start >= changed[0]):
            changed = (span.start, job)
    held += [FREE] * (NUM_NODES * GPUS_PER_NODE - len(held))
    for number, colour in enumerate(held[: NUM_NODES * GPUS_PER_NODE]):
        node = number // GPUS_PER_NODE
        left = x + number * 15 + node * 6
        lines.append(
            f'<rect x="{left:.0f}" y="{y + 24:.0f}" width="13" height="26" rx="2" '
            f'fill="{colour}"/>'
        )
    row = y + 70
    for job in jobs:
        span = span_at(job, at)
        if span is None:
            continue
        gpus = int(span.num_gpus)
        shown = f"{_name(job)}: {gpus} GPU{'' if gpus == 1 else 's'}"
        lines.append(
            f'<rect x="{x:.0f}" y="{row - 9:.0f}" width="10" height="10" rx="2" '
            f'fill="{colour_of[job.id]}"/>'
        )
        lines.append(text(x + 15, row, shown, font_size="12"))
        row += 16
    if changed is not None:
        sentence = f"{_name(changed[1])} {reason_at(changed[1], at)}."
        for line in textwrap.wrap(sentence, 50)[:4]:
            row += 14
            lines.append(text(x, row, html.escape(line), font_size="11", fill="#555"))
    return lines


def _timeline(
    jobs: Sequence[JobHistory], colour_of: dict[str, str], *, y: float, width: int
) -> list[str]:
    """Return the GPUs of each job over time, stacked."""
    begin, end = TIMELINE_S
    left = 60.0
    height = 176.0
    across = (width - left - 20) / (end - begin)
    up = height / (NUM_NODES * GPUS_PER_NODE)
    edges = sorted(
        {
            edge
            for job in jobs
            for span in job.spans
            for edge in (span.start, span.end)
            if begin < edge < end
        }
        | {begin, end}
    )
    lines = []
    for start, stop in itertools.pairwise(edges):
        base = y + height
        for job in jobs:
            span = span_at(job, (start + stop) / 2)
            if span is None or not span.num_gpus:
                continue
            tall = span.num_gpus * up
            base -= tall
            lines.append(
                f'<rect x="{left + (start - begin) * across:.1f}" y="{base:.1f}" '
                f'width="{(stop - start) * across + 0.4:.1f}" height="{tall:.1f}" '
                f'fill="{colour_of[job.id]}"/>'
            )
    for gpus in (0, 4, 8, 12, 16):
        at_y = y + height - gpus * up
        lines.append(label(left - 8, at_y + 4, str(gpus), anchor="end"))
        lines.append(
            f'<line x1="{left:.0f}" x2="{width - 20}" y1="{at_y:.1f}" y2="{at_y:.1f}" '
            'stroke="#fff" stroke-width="0.6"/>'
        )
    for at in MOMENTS_S:
        x = left + (at - 1 - begin) * across
        lines.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 6:.0f}" '
            f'y2="{y + height:.0f}" stroke="{INK}" stroke-dasharray="3 3"/>'
        )
    for seconds in range(0, int(end - begin) + 1, 60):
        x = left + seconds * across
        lines.append(label(x, y + height + 18, f"{seconds} s"))
    lines.append(label(left, y - 12, "GPUs held by each job", anchor="start"))
    lines.append(
        label(
            left,
            y + height + 42,
            "Dashed: the moments above. Simulated on 4 nodes of 4 GPUs, one decision a "
            "minute, and one after each arrival or end.",
            anchor="start",
        )
    )
    return lines


def _name(job: JobHistory) -> str:
    return str(job.spec.application or job.id).partition("-")[0] + f" ({job.id[0]})"


def main() -> None:
    """Draw all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in (
        ("architecture.svg", architecture),
        ("job-states.svg", job_states),
        ("castor-minutes.svg", castor_minutes),
    ):
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
