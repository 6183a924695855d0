"""The third family of scenarios: nodes that are bought and taken away, prices, budgets,
jobs with a max_cost. Both ledgers agree, and no node is paid for that the core does not
know.
"""

from itertools import pairwise

import pytest

from coadapt.core.commands import GiveBack, Size
from coadapt.core.events import (
    JobSubmitted,
    NodeJoined,
    OffersConfigured,
    SizingReady,
    TimerFired,
)
from coadapt.core.scheduler import Scheduler
from coadapt.model import Node
from coadapt.model.offer import Offer, Sizing
from coadapt.sim.faults.__main__ import main
from coadapt.sim.faults.bought import draw_bought
from coadapt.sim.faults.fault_run import FaultReport, run_seed
from coadapt.sim.faults.invariants import InvariantError
from coadapt.sim.faults.scenario import Family
from tests.core.stage import spec

NUM_SEEDS = 60
QUICK_SEEDS = 5  # of `make quick`
SEEDS_PER_TEST = 5


def marks_of(first: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if first >= QUICK_SEEDS else []


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=marks_of(first))
        for first in range(0, NUM_SEEDS, SEEDS_PER_TEST)
    ],
)
def test_seeds(first: int) -> None:
    failures = []
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            run_seed(seed, family=Family.BOUGHT)
        except InvariantError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def reports(count: int) -> list[FaultReport]:
    return [run_seed(seed, family=Family.BOUGHT) for seed in range(count)]


@pytest.mark.long
def test_the_seeds_meet_all_that_they_are_for() -> None:
    seen = [each.seen for each in reports(20)]
    assert sum(each.num_bought for each in seen) > 100
    assert sum(each.num_taken for each in seen) > 10
    assert sum(each.num_given_back for each in seen) > 50
    assert sum(each.num_max_cost for each in seen) > 5
    assert sum(each.num_waited for each in seen) > 5
    drawn = [draw_bought(seed).money for seed in range(20)]
    assert len({money.sizer for money in drawn if money is not None}) > 2


def test_the_verdict_waits_for_the_news_of_the_last_node() -> None:
    """In this seed the news of an earlier event is late, and those after it wait."""
    run_seed(1556, family=Family.BOUGHT)


def test_equal_seeds_give_equal_scenarios_and_failures_name_their_family() -> None:
    assert draw_bought(3) == draw_bought(3) != draw_bought(4)
    with pytest.raises(InvariantError, match=r"coadapt\.sim\.faults --bought --seed 3"):
        run_seed(3, Careless, family=Family.BOUGHT)


class Careless(Scheduler):
    """A scheduler that forgets to look at costs."""

    def _enforce_costs(self) -> list:  # type: ignore[type-arg]
        return []


def test_the_command_counts_what_was_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bought", "--count", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 seeds survived\n" in out
    assert "nodes bought\n" in out


def test_a_sizer_that_does_not_answer_is_asked_again_and_alarms_lie_ahead() -> None:
    """The alarm was set to the instant of the question, again and again."""
    scheduler = Scheduler()
    offer = Offer(id="o", num_gpus=1, price_per_h=1.0)
    scheduler.handle(OffersConfigured(at=0.0, offers=(offer,), sizing_s=60.0))
    scheduler.handle(JobSubmitted(at=1.0, job="a", spec=spec()))
    asked: list[float] = []
    at = 1.0
    for _ in range(40):
        commands = scheduler.handle(TimerFired(at=at))
        asked += [at for each in commands if isinstance(each, Size)]
        alarms = [each.at for each in commands if hasattr(each, "at")]
        if alarms:
            assert min(alarms) > at
            at = min(alarms)
        else:
            at += 1.0
    assert len(asked) > 1
    gaps = [after - before for before, after in pairwise(asked)]
    assert min(gaps) >= 300.0


def test_a_node_that_comes_when_nothing_is_wanted_has_the_sizer_asked() -> None:
    """An order that came late brought a node that was paid for without an end."""
    scheduler = Scheduler()
    offer = Offer(id="o", num_gpus=1, price_per_h=1.0)
    scheduler.handle(OffersConfigured(at=0.0, offers=(offer,), sizing_s=60.0))
    sizing = Sizing(reason="no job needs any")
    scheduler.handle(SizingReady(at=1.0, number=1, sizing=sizing))
    buying = scheduler.state.buying
    assert buying is not None
    assert buying.due_at is None
    late = Node(id="o-0", num_gpus=1, offer="o")
    scheduler.handle(NodeJoined(at=90.0, node=late))
    commands = scheduler.handle(TimerFired(at=120.0))
    assert any(isinstance(each, Size) for each in commands)
    commands = scheduler.handle(SizingReady(at=121.0, number=2, sizing=sizing))
    assert GiveBack(node="o-0") in commands
