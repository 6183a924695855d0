"""Whatever breaks: the invariants hold after every event, every job ends, every journal
replays.
"""

from collections import Counter
from collections.abc import Iterable

import pytest

from coadapt.core.lifecycle import JobState
from coadapt.core.scheduler import Scheduler
from coadapt.sim.faults.__main__ import main
from coadapt.sim.faults.fault_run import FaultRun, run_seed
from coadapt.sim.faults.invariants import InvariantError
from coadapt.sim.faults.scenario import (
    FaultKind,
    draw_scenario,
    with_broken_growth,
)

NUM_SEEDS = 500
QUICK_SEEDS = 8  # of `make quick`
FIRST_SEEDS = 25  # they have a test that also looks at what they meet
USUAL_SEEDS = 100  # of `make test`; `make test-all` goes through all
SEEDS_PER_TEST = 25  # a test process of xdist gets seconds of work at a time
DYING_SEED = 14
TWICE_SEED = 44  # an answer about a change that is taken back comes twice


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(
            first,
            marks=pytest.mark.slow if first >= USUAL_SEEDS else pytest.mark.long,
        )
        for first in range(FIRST_SEEDS, NUM_SEEDS, SEEDS_PER_TEST)
    ],
)
def test_seeds(first: int) -> None:
    failures = failures_of(range(first, first + SEEDS_PER_TEST))
    assert not failures, "\n".join(failures)


def test_a_few_seeds() -> None:
    failures = failures_of(range(QUICK_SEEDS))
    assert not failures, "\n".join(failures)


def test_a_subclass_of_the_scheduler_has_the_same_story() -> None:
    """The process dies several times, and each later life and each replay has to have
    the scheduler that was given: a mutant, in the tests of guards.
    """

    class Same(Scheduler):
        pass

    assert run_seed(DYING_SEED).num_deaths > 1
    assert _story(DYING_SEED, Same) == _story(DYING_SEED, Scheduler)


def _story(seed: int, create: type[Scheduler]) -> list[tuple[float, str]]:
    story: list[tuple[float, str]] = []

    def note(at: float, text: str) -> None:
        story.append((at, text))

    run_seed(seed, create, note)
    return story


def failures_of(seeds: Iterable[int]) -> list[str]:
    failures = []
    for seed in seeds:
        try:
            run_seed(seed)
        except InvariantError as error:
            failures.append(str(error))
    return failures


@pytest.mark.long
def test_the_first_seeds_survive_and_meet_all_that_they_are_for() -> None:
    """Every way in which a job ends, and every way in which a change is taken back."""
    ends: Counter[JobState] = Counter()
    num_deaths = 0
    ways: Counter[str] = Counter()
    for seed in (*range(FIRST_SEEDS), TWICE_SEED):
        told: list[str] = []
        report = run_seed(seed, tell=lambda _, text, told=told: told.append(text))  # type: ignore[misc]
        ends.update(report.ends.values())
        num_deaths += report.num_deaths
        ways.update(taken_back(told))
    ended = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    assert all(ends[end] > 5 for end in ended), ends
    assert num_deaths > 10
    often = ("in time", "too late", "failed", "lost")
    assert all(ways[way] > 2 for way in often), ways
    assert ways["twice"], ways


def taken_back(told: list[str]) -> Counter[str]:
    """Return how often changes were taken back, by what became of that."""
    ways: Counter[str] = Counter()
    asked: set[str] = set()
    for line in told:
        happened, _, orders = line.strip().partition(" -> ")
        kind, _, what = happened.partition(" ")
        if kind == "ReplicasKept":
            why = what.split(" ", 2)[2:]
            ways["failed" if why else "in time"] += 1
        elif kind == "ReplicasStarted" and what in asked:
            ways["too late"] += 1
        elif kind == "lost:" and ("ReplicasKept" in what or "RetractRescale" in what):
            ways["lost"] += 1
        elif (
            ", one of two: ReplicasKept" in happened
            or ", one of two: RetractRescale" in happened
        ):
            ways["twice"] += 1
        asked.update(
            order.removeprefix("RetractRescale ") for order in orders.split(", ")
        )
    return ways


@pytest.mark.long
def test_growths_that_always_fail_end_no_job() -> None:
    told: list[str] = []
    ends: Counter[JobState] = Counter()
    for seed in range(40):
        scenario = with_broken_growth(draw_scenario(seed, hangs=False))
        run = FaultRun(scenario, Scheduler, lambda _, text: told.append(text))
        ends.update(run.run().ends.values())
    assert ends[JobState.FAILED] == 0, ends
    assert ends[JobState.SUCCEEDED] > 100, ends
    assert sum("ReplicasExited" in line and "failed" in line for line in told) > 50


def test_equal_seeds_go_through_the_same() -> None:
    told: list[list[tuple[float, str]]] = [[], []]
    for lines in told:
        run_seed(7, tell=lambda at, text, lines=lines: lines.append((at, text)))  # type: ignore[misc]
    assert told[0] == told[1]
    assert len(told[0]) > 50


def test_the_seeds_meet_every_disaster() -> None:
    kinds = Counter(
        each.kind for seed in range(100) for each in draw_scenario(seed).faults
    )
    of_scenarios_of_their_own = {
        FaultKind.GROWTH_BREAKS,
        FaultKind.NODE_TAKEN,
        FaultKind.ORDERS_REFUSED,
    }
    drawn = set(FaultKind) - of_scenarios_of_their_own
    assert all(kinds[kind] > 10 for kind in drawn), kinds


class Deaf(Scheduler):
    """A scheduler that forgets to look at its alarms."""

    def _timer_fired(self) -> list:  # type: ignore[type-arg]
        return []


def test_a_failure_names_its_seed_and_how_to_rerun_it() -> None:
    with pytest.raises(InvariantError) as caught:
        run_seed(3, Deaf)
    assert str(caught.value).startswith("seed 3: ")
    assert "python -m coadapt.sim.faults --seed 3" in str(caught.value)


def test_the_command_tells_a_story_and_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seed", "2"]) == 0
    story = capsys.readouterr().out
    assert "FAULT" in story
    assert story.endswith("1 of 1 seeds survived\n")
    assert main(["--seed", "2", "--count", "2"]) == 0
    assert capsys.readouterr().out == "2 of 2 seeds survived\n"
