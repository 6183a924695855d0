"""What the live page shows of a study: a slice of its trials, and what its charts are
drawn from.
"""

from collections.abc import Sequence
from typing import cast

from coadapt.model.wire import Json
from coadapt.service.studies.search_file import SearchFile

TRIALS_SHOWN = 50
# Trials of the charts. Of more, the history shows the newest and each new best, and the
# parallel coordinates the best.
HISTORY_SHOWN = 1_000
LINES_SHOWN = 200

Row = dict[str, Json]


def page_view(file: SearchFile, rows: Sequence[Row], first: int) -> dict[str, Json]:
    """Return the trials of a study from the `first` newest on, and its charts' data.

    rows: all trials, by number, as `trial_row` returns them.
    """
    sign = -1.0 if file.search.direction == "maximize" else 1.0
    valued = [row for row in rows if last_value(row) is not None]
    valued.sort(key=lambda row: sign * cast(float, last_value(row)))
    newest = rows[::-1][first : first + TRIALS_SHOWN]
    return {
        "space": cast("dict[str, Json]", file.search.space),
        "history": _history(rows, sign),
        "lines": [
            {
                "number": row["number"],
                "state": row["state"],
                "value": last_value(row),
                "params": row["params"],
            }
            for row in valued[:LINES_SHOWN]
        ],
        "trials": [
            {**row, "values": None, "last": last_value(row), "steps": _steps(row)}
            for row in newest
        ],
        "first": first,
        "num_all": len(rows),
    }


def last_value(row: Row) -> float | None:
    """Return a trial's final value, else its newest; None for one without values."""
    if row["value"] is not None:
        return cast(float, row["value"])
    values = cast("list[list[float]]", row["values"])
    return values[-1][1] if values else None


def _steps(row: Row) -> float | None:
    values = cast("list[list[float]]", row["values"])
    return values[-1][0] if values else None


def _history(rows: Sequence[Row], sign: float) -> list[Json]:
    """Return number, state, value and best completed value so far of each trial that
    has a value.
    """
    history: list[Json] = []
    best: float | None = None
    for index, row in enumerate(rows):
        value = last_value(row)
        better = (
            value is not None
            and row["state"] == "complete"
            and (best is None or sign * value < sign * best)
        )
        if better:
            best = value
        recent = index >= len(rows) - HISTORY_SHOWN
        if value is not None and (better or recent):
            history.append([row["number"], row["state"], value, best])
    return history
