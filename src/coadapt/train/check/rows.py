"""The rows that replicas wrote, read back: per step, one of each replica."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from coadapt.train.wrappers.recorder import SHARES_FILE, StepRow

Steps = dict[int, list[StepRow]]


def last_step(folder: Path, member: str) -> int:
    """Return the last step of which `member` has written its row, -1 if there is
    none.
    """
    path = folder / f"{member}.jsonl"
    if not path.exists():
        return -1
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    return int(json.loads(lines[-1])["step"]) if lines else -1


def read_steps(folder: Path) -> Steps:
    """Return the rows of each step in rank order; of a step that was done again, those
    of the last time.
    """
    steps: Steps = {}
    for path in folder.glob("*-*.jsonl"):
        for line in path.read_text().splitlines():
            row = _row(json.loads(line))
            steps.setdefault(row.step, []).append(row)
    for step, rows in steps.items():
        newest = max(row.generation for row in rows)
        steps[step] = sorted(
            (row for row in rows if row.generation == newest), key=lambda row: row.rank
        )
    return dict(sorted(steps.items()))


def _row(data: dict[str, Any]) -> StepRow:
    """Not by the wire codec: figures of a training that failed may be infinite."""
    row = StepRow(**data)
    rates = tuple(tuple(group) for group in row.rates)
    return replace(
        row,
        ids=tuple(row.ids),
        rates=rates,
        sketch=tuple(row.sketch),
        updates=tuple(row.updates),
        forwards=tuple(row.forwards),
        backwards=tuple(row.backwards),
        losses=tuple((int(count), loss) for count, loss in row.losses),
        gradient=(row.gradient[0], row.gradient[1]),
        draws=tuple(row.draws),
    )


def sizes(folder: Path, most: int) -> list[int]:
    """Return the numbers of replicas, up to `most`, at which a run trains whose loop is
    another library's.

    Empty where the loop is the script's own.
    """
    path = folder / SHARES_FILE
    if not path.exists():
        return []
    num_shares = int(json.loads(path.read_text()))
    return [size for size in range(1, most + 1) if num_shares % size == 0]


def kinds(folder: Path) -> list[str]:
    """Return what the models are made of that differs between numbers of replicas."""
    return sorted({kind for door in _doors(folder) for kind in door["kinds"]})


def contents(folder: Path) -> list[dict[int, tuple[float, float]]]:
    """Return for each replica what some samples of its data set come to, read twice; by
    index.
    """
    return [
        {int(index): (first, again) for index, first, again in door["contents"]}
        for door in _doors(folder)
        if door["contents"]
    ]


def _doors(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.door"))]
