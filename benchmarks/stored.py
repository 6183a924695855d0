"""Results of benchmarks as JSON files, each with the commit and the machine of the run
that wrote it.
"""

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RUN = "run"  # the key of commit and machine
ROOT = Path(__file__).parents[1]


def load_results(path: Path) -> dict[str, Any]:
    """Return the figures in `path`, without what `store_results` added; none where
    there is no file.
    """
    if not path.exists():
        return {}
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    stored.pop(RUN, None)
    return stored


def store_results(path: Path, figures: Mapping[str, Any]) -> None:
    """Write `figures` with the commit and the machine of this run.

    A benchmark that renews a part of its file stores the commit of the part written
    last.
    """
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({RUN: this_run(), **figures}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def store_row(path: Path, place: Sequence[str], row: Mapping[str, Any]) -> None:
    """Write `row` at `place`, a path of keys, into the figures that `path` has now.

    Two runs at once keep each other's rows: they wait for each other here.
    """
    path.parent.mkdir(exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        figures = load_results(path)
        at = figures
        for key in place[:-1]:
            at = at.setdefault(key, {})
        at[place[-1]] = row
        store_results(path, figures)
    finally:
        os.close(folder)


def this_run() -> dict[str, str]:
    """Return what a reader needs to repeat a run: commit, machine, Python version."""
    return {
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }


def _commit() -> str:
    """Return the commit checked out, marked where files differ from it."""
    asked = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=ROOT)
    return found.stdout.strip() or "unknown"


def _processor() -> str:
    """Return the processor's name; the architecture where Linux does not say it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
