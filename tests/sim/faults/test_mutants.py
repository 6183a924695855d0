"""Every guard of the core earns its place: without it, a fault seed fails, or else a
story.

python -m tests.sim.faults.test_mutants    prints the list `guard -> caught by`
"""

import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.guard)
def test_the_core_without_this_guard_is_caught(
    mutant: Mutant, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        assert outcome(mutant), (
            f"no seed below {NUM_SEEDS} and no story in {STORIES} misses it"
        )


def outcome(mutant: Mutant) -> str:
    """Return what caught the mutant, and write it down."""
    # Most fall to the first seeds, and what is left mostly to a story, in less time
    # than all seeds take.
    first = range(FIRST_SEEDS)
    rest = range(FIRST_SEEDS, NUM_SEEDS)
    caught_by = (
        failing_seed(mutant, first)
        or failing_story(mutant)
        or failing_seed(mutant, rest)
    )
    sys.stdout.write(f"{mutant.guard} -> {caught_by or 'NOTHING'}\n")
    return caught_by


def failing_seed(mutant: Mutant, seeds: range) -> str:
    with installed(mutant) as module:
        make: type[Scheduler] = module.Scheduler
    for family in families(mutant):
        for seed in seeds:
            try:
                run_seed(seed, make, family=family)
            except Exception as error:  # noqa: BLE001  # a mutant may raise anything: that is how it is caught
                return f"{family} family, seed {seed} ({type(error).__name__})"
    return ""


def families(mutant: Mutant) -> tuple[Family, ...]:
    """Return all families, first the one that the guard is for."""
    if mutant.module.startswith("model."):
        return (Family.MIXED, Family.FIRST, Family.BOUGHT)
    if mutant.is_about_money:
        return (Family.BOUGHT, Family.FIRST, Family.MIXED)
    return (Family.FIRST, Family.MIXED, Family.BOUGHT)


def failing_story(mutant: Mutant) -> str:
    plugin = ["-p", "tests.sim.faults.mutant_plugin", "--mutant", mutant.guard]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *STORIES,
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        *plugin,
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = [
        line.split()[1]
        for line in run.stdout.splitlines()
        if line.startswith("FAILED ")
    ]
    assert failed or run.returncode == 0, run.stdout + run.stderr
    return failed[0].rpartition("::")[2] if failed else ""


if __name__ == "__main__":
    caught = [outcome(mutant) for mutant in MUTANTS]
    raise SystemExit(int(not all(caught)))
