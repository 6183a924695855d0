"""Every guard of the core earns its place: without it, a fault seed fails, or else a
story.

python -m tests.sim.faults.test_mutants    prints the list `guard -> caught by`, and
                                           writes it to caught_by.json
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from coadapt.core.scheduler import Scheduler
from coadapt.sim.faults.fault_run import run_seed
from coadapt.sim.faults.scenario import Family
from tests.sim.faults.mutants import MUTANTS, Mutant, installed

ROOT = Path(__file__).parents[3]
NUM_SEEDS = 25
FIRST_SEEDS = 5
STORIES = (
    "tests/core/test_scheduler.py",
    "tests/core/test_hang.py",
    "tests/core/test_nodes.py",
    "tests/core/test_retract.py",
    "tests/core/test_settling.py",
    "tests/sim/faults/test_guard_stories.py",
)


# guard -> what caught its mutant when the file was written: a story, or a family and a
# seed. It is tried first. Where it does not catch the mutant any more, all are tried.
FILE = Path(__file__).with_name("caught_by.json")


@cache
def on_file() -> dict[str, str]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_the_core_without_this_guard_is_caught(mutant: Mutant) -> None:
    known = on_file().get(mutant.guard)
    assert (known and caught_by(mutant, known)) or search(mutant), (
        f"no seed below {NUM_SEEDS} and no story in {STORIES} misses it"
    )


def test_the_file_names_guards_that_there_are() -> None:
    assert on_file().keys() <= {mutant.guard for mutant in MUTANTS}


def caught_by(mutant: Mutant, known: str) -> str:
    """Return `known`, the story or the seed, if it catches the mutant, else ""."""
    if known.startswith("tests/"):
        return failing_story(mutant, known)
    family, seed = known.split()
    return failing_seed(mutant, [int(seed)], [Family(family)])


def search(mutant: Mutant) -> str:
    """Return what catches the mutant, "" if nothing does."""
    # Most fall to the first seeds, and what is left mostly to a story, in less time
    # than all seeds take.
    first = range(FIRST_SEEDS)
    rest = range(FIRST_SEEDS, NUM_SEEDS)
    return (
        failing_seed(mutant, first, families(mutant))
        or failing_story(mutant, *STORIES)
        or failing_seed(mutant, rest, families(mutant))
    )


def failing_seed(
    mutant: Mutant, seeds: Iterable[int], families: Iterable[Family]
) -> str:
    with installed(mutant) as module:
        make: type[Scheduler] = module.Scheduler
    for family, seed in product(families, seeds):
        try:
            run_seed(seed, make, family=family)
        except Exception:  # noqa: BLE001  # a mutant may raise anything: that is how it is caught
            return f"{family} {seed}"
    return ""


def families(mutant: Mutant) -> tuple[Family, ...]:
    """Return all families, first the one that the guard is for."""
    if mutant.module.startswith("model."):
        return (Family.MIXED, Family.FIRST, Family.BOUGHT)
    if mutant.is_about_money:
        return (Family.BOUGHT, Family.FIRST, Family.MIXED)
    return (Family.FIRST, Family.MIXED, Family.BOUGHT)


def failing_story(mutant: Mutant, *stories: str) -> str:
    """Return the first test of `stories`, files or one test, that fails."""
    plugin = ["-p", "tests.sim.faults.mutant_plugin", "--mutant", mutant.guard]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *stories,
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        *plugin,
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = re.findall(r"^FAILED (.+?)(?: - .*)?$", run.stdout, re.M)
    assert failed or run.returncode == 0, run.stdout + run.stderr
    return failed[0] if failed else ""


def main() -> int:
    caught = {}
    for mutant in MUTANTS:
        caught[mutant.guard] = search(mutant)
        sys.stdout.write(f"{mutant.guard} -> {caught[mutant.guard] or 'NOTHING'}\n")
    FILE.write_text(json.dumps(caught, indent=1) + "\n", encoding="utf-8")
    return int(not all(caught.values()))


if __name__ == "__main__":
    raise SystemExit(main())
