"""When the core asks the sizer, and what it orders of the nodes that are bought."""

from dataclasses import replace

from coadapt.core.commands import BuyNodes, Command, GiveBack, Size, Start, Stop
from coadapt.core.events import (
    NodeJoined,
    NodeLost,
    OfferChanged,
    OffersConfigured,
    SchedulerRestarted,
    SizingReady,
    TimerFired,
)
from coadapt.core.lifecycle import JobState
from coadapt.core.node_buying import Buying
from coadapt.model import Node
from coadapt.model.offer import Market, Offer, Sizing
from tests.core.stage import Stage

OFFER = Offer(id="o", num_gpus=4, price_per_h=1.0, market=Market.SPOT, most=3)


def answer(
    stage: Stage, commands: list[Command], at: float, count: int = 0
) -> list[Command]:
    """Answer the one question to the sizer among `commands`: `count` nodes."""
    (size,) = [each for each in commands if isinstance(each, Size)]
    sizing = Sizing(nodes={"o": count}, reason="a test")
    return stage.handle(SizingReady(at=at, number=size.number, sizing=sizing))


def decide(stage: Stage, count: int) -> list[Command]:
    """Have the sizer asked at its next time, and answer with `count` nodes."""
    due_at = buying_of(stage).ask_at
    assert due_at is not None
    return answer(stage, stage.handle(TimerFired(at=due_at)), due_at, count)


def buying_of(stage: Stage) -> Buying:
    buying = stage.scheduler.state.buying
    assert buying is not None
    return buying


def with_two_nodes() -> Stage:
    """Return a stage with the bought nodes o-0 and o-1, without jobs."""
    stage = Stage(num_nodes=0)
    configured = OffersConfigured(at=0.0, offers=(OFFER,))
    answer(stage, stage.handle(configured), 0.0, 2)
    for name in ("o-0", "o-1"):
        node = Node(id=name, num_gpus=4, offer="o")
        stage.handle(NodeJoined(at=1.0, node=node))
    return stage


def total(commands: list[Command]) -> int:
    """Return how many nodes the one BuyNodes asks for."""
    (buy,) = [each for each in commands if isinstance(each, BuyNodes)]
    return buy.nodes["o"]


def test_an_offer_that_can_be_had_again_is_ordered_without_any_job() -> None:
    stage = Stage(num_nodes=0)
    offer = replace(OFFER, least=1, most=1)
    sold_out = replace(offer, least=0, most=0)
    configured = OffersConfigured(at=0.0, offers=(sold_out,))
    answer(stage, stage.handle(configured), 0.0)
    buying = buying_of(stage)
    while buying.ask_at is not None:
        decide(stage, 0)
    stage.handle(OfferChanged(at=3_600.0, offer=offer))
    assert buying.ask_at is not None


def test_a_node_that_was_given_back_is_not_replaced_before_the_news_of_it() -> None:
    """The engine has one node left, and was asked for two in all: it ordered one."""
    stage = with_two_nodes()
    assert GiveBack(node="o-0") in decide(stage, 1)
    assert total(decide(stage, 1)) == 1
    restarted = stage.handle(SchedulerRestarted(at=1_000.0))
    assert total(restarted) == 1
    assert GiveBack(node="o-0") in restarted


def test_a_node_that_was_given_back_does_not_stay() -> None:
    """It was counted as there, so the node that was wanted again was missing; its loss
    counted as one by its owner.
    """
    stage = with_two_nodes()
    decide(stage, 1)
    assert total(decide(stage, 2)) == 2
    buying = buying_of(stage)
    assert buying.ordered == {"o": 1}
    stage.handle(NodeLost(at=1_000.0, node="o-0", why="was given back"))
    assert buying.use["o"].num_losses == 0
    assert total(decide(stage, 2)) == 2


def test_jobs_go_on_where_their_node_becomes_an_offers() -> None:
    stage = Stage(num_nodes=1)
    stage.running()
    offer = replace(OFFER, market=Market.ON_DEMAND)
    stage.handle(OffersConfigured(at=61.0, offers=(offer,)))
    node = Node(id="n0", num_gpus=4, offer="o")
    commands = stage.handle(NodeJoined(at=62.0, node=node))
    assert not any(isinstance(each, Start | Stop) for each in commands)
    assert stage.job().state is JobState.RUNNING
    assert buying_of(stage).nodes["n0"].offer == "o"
    # A node that comes again by another offer is another node.
    other = NodeJoined(at=63.0, node=replace(node, offer="p"))
    assert Stop(job="a", generation=1) in stage.handle(other)
