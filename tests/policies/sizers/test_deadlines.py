"""Deadlines with spot nodes for sale: Uniform Progress, and castor's pace."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import JobView
from coadapt.model.offer import Market, Pool, Sizing, SizingView
from coadapt.policies.sizers import create_sizer
from coadapt.policies.sizers.base import Sizer
from coadapt.policies.sizers.curves import goodput_curve
from coadapt.policies.sizers.pace import PRIOR_S, Availability, Pace, cheapest_pace
from coadapt.sim.market.spells import GAP_S, draw_spells
from tests.policies.sizers.views import job, offer, view

HOUR = 3600.0
CURVE = np.arange(1.0, 17.0) ** 0.8


@given(
    needed=st.floats(0.1, 12.0),
    share=st.floats(0.01, 0.99),
    spot_price=st.floats(0.1, 3.0),
)
def test_a_pace_meets_the_deadline_at_less_than_one_market_costs(
    needed: float, share: float, spot_price: float
) -> None:
    pace = cheapest_pace(
        CURVE, needed, spot_price=spot_price, firm_price=3.0, share=share
    )
    goodput = np.concatenate(([0.0], CURVE))

    def progress(each: Pace) -> float:
        return float(
            share * goodput[each.on_spot] + (1 - share) * goodput[each.on_demand]
        )

    def cost(each: Pace) -> float:
        return share * spot_price * each.on_spot + (1 - share) * 3.0 * each.on_demand

    if needed >= CURVE[-1]:
        assert pace == Pace(on_spot=16, on_demand=16)
        return
    assert progress(pace) >= needed * (1 - 1e-9)
    assert pace.on_spot >= pace.on_demand
    alike = int(np.flatnonzero(goodput >= needed)[0])
    one_more = 3.0  # whole GPUs: a bisection may end one GPU above the best
    assert cost(pace) <= cost(Pace(on_spot=alike, on_demand=alike)) + one_more


def test_a_job_with_time_waits_for_cheap_nodes_and_one_without_does_not() -> None:
    relaxed = cheapest_pace(CURVE, 1.0, spot_price=1.0, firm_price=3.0, share=0.6)
    assert relaxed.on_demand == 0
    assert relaxed.on_spot > 1
    pressed = cheapest_pace(CURVE, 6.0, spot_price=1.0, firm_price=3.0, share=0.1)
    assert pressed.on_demand > 0


def test_availability_is_what_was_seen_with_a_prior() -> None:
    seen = Availability()
    assert seen.share == 0.5
    for index in range(100):
        seen.see(index * 600.0, is_there=index < 10)
    expected = (0.5 * PRIOR_S + 6000.0) / (PRIOR_S + 99 * 600.0)
    assert seen.share == pytest.approx(expected)


def test_spells_have_the_share_that_was_asked_for() -> None:
    length_s = 4000 * HOUR
    steps = draw_spells(0.3, 8, length_s, seed=1)
    assert steps == draw_spells(0.3, 8, length_s, seed=1)
    assert {count for _, count in steps} == {0, 8}
    ends = [at for at, _ in steps[1:]]
    there_s = sum(
        end - at for (at, count), end in zip(steps, ends, strict=False) if count
    )
    assert 0.25 < there_s / ends[-1] < 0.36
    assert all(at % GAP_S == 0.0 for at, _ in steps)
    with pytest.raises(ValueError, match="share"):
        draw_spells(1.0, 8, length_s, seed=1)


def due(
    hours: float, *, done: float = 0.0, left: float = 10.0, gpus: int = 4
) -> JobView:
    """Return a job by the hours that it has trained and has to train on four GPUs."""
    found = job(gpus=gpus, left=1.0, deadline_at=HOUR * (1 + hours))
    spec = replace(found.spec, replicas=replace(found.spec.replicas, requested=4))
    found = replace(found, spec=spec, submitted_at=HOUR)
    goodput = float(goodput_curve(found, offer(), 4)[-1])
    work = left * HOUR * goodput
    progress = done * HOUR * goodput
    measured = replace(
        found.measured, progress=progress, progress_target=progress + work
    )
    return replace(found, measured=measured)


def asked(sizer: Sizer, found: JobView, *, spot: bool, at: float = HOUR) -> Sizing:
    pools = (
        Pool(offer=offer()),
        Pool(
            offer=offer(
                "s", price_per_h=1.2, market=Market.SPOT, most=16 if spot else 0
            )
        ),
    )
    seen = view(found, pools=pools)
    return sizer.size(SizingView(cluster=replace(seen.cluster, at=at), pools=pools))


def bought(answer: Sizing) -> tuple[int, int]:
    return answer.nodes["a"], answer.nodes["s"]


def test_uniform_progress_follows_the_rules_of_the_paper() -> None:
    sizer = create_sizer("uniform-progress")
    # Ten hours of work in twenty: it takes spot nodes where they can be had.
    assert bought(asked(sizer, due(20), spot=True)) == (0, 1)
    # They are gone. At half of the time it has made more than half of the progress.
    ahead = due(20, done=6.0, left=4.0)
    assert bought(asked(sizer, ahead, spot=False, at=11 * HOUR)) == (0, 0)
    # It is behind, goes on demand, and stays there although there are spot nodes.
    behind = due(20, done=4.0, left=6.0)
    assert bought(asked(sizer, behind, spot=False, at=11 * HOUR)) == (1, 0)
    assert bought(asked(sizer, behind, spot=True, at=11 * HOUR)) == (1, 0)
    # It has caught up.
    assert bought(asked(sizer, ahead, spot=True, at=11 * HOUR)) == (0, 1)
    # Ten hours are left for ten hours of work: on demand, in spite of spot nodes.
    late = due(20, done=0.0, left=10.0)
    assert bought(asked(sizer, late, spot=False, at=11 * HOUR)) == (1, 0)
    assert bought(asked(sizer, late, spot=True, at=11 * HOUR)) == (1, 0)
    # The forecast was wrong: it is ahead.
    assert bought(asked(sizer, ahead, spot=True, at=11 * HOUR)) == (0, 1)


def test_an_elastic_job_takes_more_spot_nodes_as_far_as_they_are_cheaper() -> None:
    sizer = create_sizer("uniform-progress(elastic=true)")
    # A spot node costs 1.2, an on-demand node 4.
    firm, spot = bought(asked(sizer, due(20), spot=True))
    assert firm == 0
    assert spot > 4
    # At 3.9 two nodes would cost more for the same progress than one on demand.
    dear = Pool(offer=offer("s", price_per_h=3.9, market=Market.SPOT))
    pools = (Pool(offer=offer()), dear)
    assert bought(sizer.size(view(due(20), pools=pools, at=HOUR))) == (0, 1)
    # On demand it has what it requests, as before it was timed.
    behind = due(20, done=4.0, left=6.0)
    assert bought(asked(sizer, behind, spot=False, at=11 * HOUR)) == (1, 0)
    measured = replace(due(20).measured, by_type={})
    untimed = replace(due(20), measured=measured)
    again = create_sizer("uniform-progress(elastic=true)")
    assert bought(asked(again, untimed, spot=True)) == (0, 1)


def test_castor_waits_for_spot_nodes_while_the_deadline_allows_it() -> None:
    sizer = create_sizer("castor(value_of_time=0)")
    firm, spot = bought(asked(sizer, due(14), spot=True))
    assert firm == 0
    assert spot > 1  # more than it requests, while they are cheap
    assert bought(asked(sizer, due(40, gpus=0), spot=False)) == (0, 0)
    firm, spot = bought(asked(sizer, due(9, gpus=0), spot=False))
    assert firm > 0
    assert spot == 0


@cache
def after_days_without_spot() -> Sizer:
    sizer = create_sizer("castor(value_of_time=0)")
    for index in range(400):
        asked(sizer, due(1000), spot=False, at=HOUR - (400 - index) * 1800.0)
    return sizer


def without_spot() -> Sizer:
    """Return castor's sizer after days without spot nodes."""
    return deepcopy(after_days_without_spot())


def test_castor_changes_no_job_that_ends_in_time_with_what_it_holds() -> None:
    # Three hours of work; the reserve is a part of the time that is left.
    assert bought(asked(without_spot(), due(3.3, left=3.0), spot=False)) == (1, 0)
    assert bought(asked(without_spot(), due(3.1, left=3.0), spot=False))[0] > 1
    # A quarter of a minute is left, and the deadline is near or far.
    for hours in (0.2, 4.0):
        ends = due(hours, left=0.25 / 60.0)
        assert bought(asked(without_spot(), ends, spot=False)) == (1, 0)
        assert bought(asked(without_spot(), ends, spot=True)) == (0, 1)


def test_castor_starts_a_short_job_near_its_deadline_on_few_gpus() -> None:
    waits = due(0.29, left=0.25 / 60.0, gpus=0)
    assert bought(asked(without_spot(), waits, spot=False)) == (1, 0)
