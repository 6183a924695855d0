"""Rubick: what was paid for is given first, then GPUs go from flat curves to steep
ones.
"""

import time
from dataclasses import replace

import pytest

from coadapt.model import BatchLimits, JobView, ThroughputParams, TypeProfile, Usage
from coadapt.policies.checks.contract import check_policy
from coadapt.policies.predictors.rates import cut, rates_on
from coadapt.policies.rubick.policy import Rubick
from tests.policies.stage import counts, job, nodes, on, view

STEEP = tuple(1.0 / n for n in range(1, 9))
FLAT = (1.0, 0.9, 0.85, 0.82, 0.80, 0.79, 0.785, 0.78)


def elastic(
    name: str,
    times: tuple[float, ...],
    requested: int,
    *,
    priority: int = 0,
    **held: int,
) -> JobView:
    return job(
        name,
        (1, 8),
        requested=requested,
        steps=1e6,
        times=times,
        priority=priority,
        held=on(**held),
    )


def rescaled(one: JobView, times: int) -> JobView:
    return replace(one, usage=Usage(started_at=0.0, num_starts=1, num_rescales=times))


def test_the_contract_is_kept() -> None:
    check_policy(Rubick, cases=12, seed=3, timer=time.process_time)
    check_policy(
        lambda: Rubick(guaranteed_from=1, slack=1.5, rescales_max=100),
        cases=12,
        seed=3,
        timer=time.process_time,
    )


def test_counts_that_gain_less_than_one_per_cent_are_not_on_the_curve() -> None:
    one = elastic("one", (1.0, 0.5, 0.496, 0.494, 0.25, 0.25, 0.25, 0.25), 1)
    curve = rates_on(one, "gpu", 4, least_gain=0.01)
    assert (curve.counts, curve.rates) == ((1, 2, 4, 5), (1.0, 2.0, 1 / 0.494, 4.0))
    assert [curve.at_most(count) for count in (0, 1, 3, 4, 9)] == [-1, 0, 1, 2, 3]


def test_what_the_memory_of_a_type_holds_decides_the_passes() -> None:
    """256 samples on two GPUs of 32 each take four passes of 32."""
    params = ThroughputParams(alpha_c=0.1, beta_c=0.01)
    one = job("one", (1, 4), batch=BatchLimits(initial=256, max_total=256))
    profile = TypeProfile(params=params, max_atomic=32)
    one = replace(one, measured=replace(one.measured, by_type={"small": profile}))
    batch = cut(one, 2, "small")
    assert (batch.total, batch.atomic, batch.accumulation) == (256, 32, 3)
    assert rates_on(one, "small", 4, least_gain=0.01).rates[1] == pytest.approx(
        1 / (4 * 0.42)
    )
    plan = Rubick().allocate(view(nodes(2, kind="small"), one))
    assert plan.batches["one"] == batch


def test_a_guaranteed_job_that_one_type_has_too_few_gpus_for_is_given_another() -> None:
    """Type b would be faster, but has four of the seven GPUs that it needs: it waited
    for ever.
    """
    wide = job("wide", 7)
    slow, fast = (
        ThroughputParams(alpha_c=seconds, beta_c=0.01) for seconds in (0.2, 0.1)
    )
    profiles = {"a": TypeProfile(params=slow), "b": TypeProfile(params=fast)}
    wide = replace(wide, measured=replace(wide.measured, by_type=profiles))
    cluster = (*nodes(8, kind="a", name="a"), *nodes(4, kind="b", name="b"))
    assert counts(Rubick().allocate(view(cluster, wide))) == {"wide": 7}


def test_a_guaranteed_job_takes_back_what_others_have_beyond_their_own() -> None:
    """The one that runs paid for two GPUs and grew to eight; best effort would give all
    that it has.
    """
    grown = elastic("grown", STEEP, 2, n0=8)
    for priority, rest in ((0, 2), (-1, None)):
        first = replace(grown, spec=replace(grown.spec, priority=priority))
        plan = Rubick().allocate(
            view(nodes(8), first, elastic("paid", STEEP, 6 if rest else 8))
        )
        assert counts(plan) == ({"grown": 2, "paid": 6} if rest else {"paid": 8})
    reason = (
        Rubick()
        .allocate(view(nodes(8), grown, elastic("paid", STEEP, 6)))
        .reasons["grown"]
    )
    assert reason == (
        "shrinks from 8 to 2 GPUs; guaranteed, at 100% of the speed that it asked "
        "for; 1 more would add 50%"
    )


def test_what_was_paid_for_is_not_taken_and_who_cannot_have_it_waits() -> None:
    running = elastic("running", FLAT, 4, n0=4)
    plan = Rubick().allocate(view(nodes(6), running, elastic("paid", STEEP, 4)))
    # Four flat GPUs are 22 % faster than one: all that it paid for. What is idle goes
    # to it meanwhile.
    assert "paid" not in plan.allocations
    assert plan.reasons["paid"] == (
        "guaranteed jobs and those that gain more by a GPU go first"
    )
    # With slack it is content with 1.22 / 1.2 of the speed of one.
    assert counts(
        Rubick(slack=1.2).allocate(view(nodes(6), running, elastic("paid", STEEP, 4)))
    ) == {
        "running": 2,
        "paid": 4,
    }


def test_gpus_move_from_flat_curves_to_steep_ones_but_not_of_who_moved_often() -> None:
    flat = elastic("flat", FLAT, 1, n0=4)
    steep = elastic("steep", STEEP, 1, n0=4)
    assert counts(Rubick().allocate(view(nodes(8), flat, steep))) == {
        "flat": 1,
        "steep": 7,
    }
    for often in (rescaled(flat, 5), steep), (flat, rescaled(steep, 5)):
        assert counts(Rubick().allocate(view(nodes(8), *often)))["steep"] == 4


def test_a_best_effort_job_starts_on_gpus_that_add_less_to_others() -> None:
    for times, starts in ((FLAT, True), (STEEP, False)):
        running = elastic("running", times, 8, priority=-1, n0=8)
        plan = Rubick().allocate(
            view(nodes(8), running, elastic("best", STEEP, 8, priority=-1))
        )
        assert ("best" in plan.allocations) is starts


def test_a_request_beyond_the_cluster_gets_the_cluster() -> None:
    assert counts(Rubick().allocate(view(nodes(2, 2), elastic("large", STEEP, 8)))) == {
        "large": 4
    }


def test_a_job_that_told_nothing_has_what_it_requested() -> None:
    plan = Rubick().allocate(view(nodes(8), job("silent", (1, 8), requested=3)))
    assert counts(plan) == {"silent": 3}
    assert plan.reasons["silent"].endswith(
        "its speed is unknown: it has what it requested"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"least_gain": -0.1}, "least_gain must be finite and >= 0, got -0.1"),
        ({"slack": 0.5}, "slack must be finite and >= 1, got 0.5"),
        ({"rescales_max": -1}, "rescales_max must be >= 0, got -1"),
    ],
)
def test_a_bad_option_says_what_is_allowed(
    options: dict[str, float], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Rubick(**options)  # type: ignore[arg-type]  # of a wrong value on purpose
