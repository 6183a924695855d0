"""Draws the diagram of job states in docs/architecture.md from the transition table.

`python -m tools.state_diagram` prints it, `--write` puts it into the page; a test holds
the two together.
"""

import sys
from pathlib import Path

from coadapt.core.lifecycle import ENDED, TRANSITIONS, JobState

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN = "<!-- states: drawn from core/lifecycle.py by tools/state_diagram.py -->\n"
END = "<!-- end of states -->\n"


def diagram() -> str:
    """Return the table as a Mermaid state diagram; triggers between the same two states
    share an arrow.
    """
    arrows: dict[tuple[JobState, JobState], list[str]] = {}
    for (before, trigger), after in TRANSITIONS.items():
        arrows.setdefault((before, after), []).append(trigger)
    lines = ["stateDiagram-v2", f"    [*] --> {JobState.PENDING}"]
    order = {state: index for index, state in enumerate(JobState)}
    for (before, after), triggers in sorted(
        arrows.items(), key=lambda row: tuple(order[s] for s in row[0])
    ):
        lines.append(f"    {before} --> {after}: {', '.join(triggers)}")
    lines += [f"    {state} --> [*]" for state in JobState if state in ENDED]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def with_diagram(page: str) -> str:
    """Return `page` with the present diagram between its two marks. Raises ValueError
    without the marks.
    """
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page lacks the marks {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + diagram() + END + after


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(
            with_diagram(PAGE.read_text(encoding="utf-8")), encoding="utf-8"
        )
    else:
        print(diagram(), end="")
