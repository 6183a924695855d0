"""When the core asks the sizer."""

from dataclasses import replace

from coadapt.core.commands import Command, Size
from coadapt.core.events import OfferChanged, OffersConfigured, SizingReady, TimerFired
from coadapt.model.offer import Offer, Sizing
from tests.core.stage import Stage


def answer(stage: Stage, commands: list[Command], at: float) -> None:
    """Answer the one question to the sizer among `commands`: no nodes."""
    (size,) = [each for each in commands if isinstance(each, Size)]
    sizing = Sizing(nodes={"o": 0}, reason="")
    stage.handle(SizingReady(at=at, number=size.number, sizing=sizing))


def test_an_offer_that_can_be_had_again_is_ordered_without_any_job() -> None:
    stage = Stage(num_nodes=0)
    offer = Offer(id="o", num_gpus=4, price_per_h=1.0, least=1, most=1)
    sold_out = replace(offer, least=0, most=0)
    configured = OffersConfigured(at=0.0, offers=(sold_out,))
    answer(stage, stage.handle(configured), 0.0)
    buying = stage.scheduler.state.buying
    assert buying is not None
    while buying.ask_at is not None:
        due_at = buying.ask_at
        answer(stage, stage.handle(TimerFired(at=due_at)), due_at)
    stage.handle(OfferChanged(at=3_600.0, offer=offer))
    assert buying.ask_at is not None
