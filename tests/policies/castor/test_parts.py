"""Noise ahead, lengths, places, fair clocks and predictions, each by itself."""

import math
from dataclasses import replace

import numpy as np
import pytest

from coadapt.goodput.table import goodput_table
from coadapt.model import (
    Allocation,
    BatchLimits,
    GradStats,
    JobLength,
    JobSpec,
    JobView,
    Measured,
    RescaleContract,
    Tenant,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies.castor.explain import duration
from coadapt.policies.castor.fairness import Tolerances
from coadapt.policies.castor.placing import place
from coadapt.policies.castor.topology import topology_of
from coadapt.policies.predictors.prediction_intervals import ERRORS_MAX, Predictions
from coadapt.policies.predictors.remaining_work import (
    NEARLY_DONE,
    OVERRUN,
    TYPICAL_S,
    RemainingWork,
)
from tests.policies.castor.stage import left, observed, situation_of, timed
from tests.policies.stage import job, nodes, on, view


@pytest.mark.parametrize("max_atomic", [None, 32])
@pytest.mark.parametrize("accumulation", [True, False])
@pytest.mark.parametrize("contract", [RescaleContract.ADAPTIVE, RescaleContract.FIXED])
def test_goodputs_are_those_of_the_table(
    contract: RescaleContract, accumulation: bool, max_atomic: int | None
) -> None:
    batch = BatchLimits(
        initial=64,
        requested=256,
        max_total=4096,
        min_atomic=8,
        max_atomic=max_atomic,
        accumulation=accumulation,
    )
    # So far in its training that the noise ahead is the noise of now.
    one = timed(
        "one",
        batch=batch,
        contract=contract,
        progress=1e12,
        target=1e12 + 1.0,
        gpus=(1, 64),
    )
    seen = situation_of(view(nodes(*[4] * 8), one))
    configs = seen.configs
    table = goodput_table([one], configs.nodes_C, configs.gpus_C, gpu_type="gpu")
    may = configs.gpus_C <= 16  # four times what it was timed on
    assert seen.goodput_JC[0, may] == pytest.approx(table.goodput_JC[0, may], rel=1e-6)
    assert not seen.goodput_JC[0, ~may].any()


def test_cut_over_two_nodes_is_slower_and_sizes_that_nobody_may_have_are_not_there() -> (
    None
):
    one = timed("one", progress=1e12, target=1e12 + 1.0, gpus=(1, 64))
    seen = situation_of(view(nodes(*[4] * 8), one))
    # Four times what it was timed on, of 32 GPUs.
    assert seen.configs.gpus_C.tolist() == [1, 2, 3, 4, 8, 12, 16]
    table = goodput_table([one], np.array([2, 2]), np.array([3, 4]), gpu_type="gpu")
    assert [seen.spread(0, 2), seen.spread(0, 3)] == pytest.approx(
        table.goodput_JC[0].tolist(), rel=1e-6
    )
    assert seen.spread(0, 3) < seen.goodput_JC[0, 3]
    assert [seen.spread(0, each) for each in (0, 4)] == [
        seen.goodput_JC[0, each] for each in (0, 4)
    ]


def test_noise_that_will_grow_makes_larger_sizes_worth_more() -> None:
    def ratio(progress: float) -> float:
        one = timed("one", progress=progress, target=1e6, gpus=(1, 64))
        seen = situation_of(view(nodes(*[4] * 4), one))
        return float(
            seen.goodput_JC[0, seen.configs.gpus_C == 16][0] / seen.goodput_JC[0, 0]
        )

    assert ratio(1e3) > 1.2 * ratio(9.9e5)


def test_a_hint_that_proved_short_is_stretched() -> None:
    lengths = RemainingWork()
    for number in range(8):
        gone = timed(f"gone{number}", progress=3000.0, target=1000.0)
        lengths = observed(lengths, gone)
    lengths = observed(lengths)
    assert left(lengths, timed("new", progress=100.0, target=1000.0)) == pytest.approx(
        2900.0
    )
    other = timed("other", progress=100.0, target=1000.0, tenant="honest")
    assert left(lengths, other) == pytest.approx(900.0)


def test_a_job_past_its_end_is_never_nearly_done() -> None:
    assert (
        left(RemainingWork(), timed("late", progress=2000.0, target=1000.0))
        == OVERRUN * 2000.0
    )


def test_without_a_hint_past_jobs_give_the_length() -> None:
    lengths = RemainingWork()
    unknown = timed("unknown", progress=50.0, target=None)
    assert left(lengths, unknown) == TYPICAL_S
    for seconds in (10.0, 100.0, 300.0):
        lengths = observed(
            lengths, timed(f"job{seconds}", progress=0.0, target=seconds)
        )
    assert left(lengths, unknown) == pytest.approx(200.0 - 50.0)
    near = timed("near", progress=300.0 - 1e-6, target=None)
    assert left(lengths, near) == pytest.approx(NEARLY_DONE * 300.0)
    past = timed("past", progress=40_000.0, target=None)
    assert left(lengths, past) == pytest.approx(OVERRUN * 40_000.0)


def test_a_job_of_unknown_length_counts_as_one_that_may_prove_short() -> None:
    lengths = RemainingWork()
    assert lengths.unseen_s(60.0) == 60.0 + TYPICAL_S
    for seconds in (100.0, 3000.0, 20_000.0):
        lengths = observed(lengths, timed(f"job{seconds}", target=seconds))
    # One in three proves short within 60 s, and ends in 100 s more: 3 x 60 + 100 per
    # end.
    assert lengths.unseen_s(60.0) == pytest.approx(280.0)
    # If a first report takes long, longer jobs are run on too: (3 x 2000 + 100 + 3000)
    # / 2.
    assert lengths.unseen_s(2000.0) == pytest.approx(4550.0)


def test_a_job_tolerates_its_least_size_and_more_while_jobs_outnumber_gpus() -> None:
    def tolerated(tolerances: Tolerances, at: float, *jobs: JobView) -> float:
        seen = replace(view(nodes(4), *jobs), at=at)
        found_J, _ = tolerances.tolerated(at, situation_of(seen), 4)
        return float(found_J[-1]) - 60.0 - jobs[-1].rescale_s

    one = timed("one", gpus=(1, 8))
    wide = timed("wide", gpus=(4, 4))
    others = [timed(f"n{number}") for number in range(7)]
    alone_s = tolerated(Tolerances(), 0.0, one)
    assert tolerated(Tolerances(), 0.0, wide) < 0.5 * alone_s
    assert tolerated(Tolerances(), 0.0, *others, one) == pytest.approx(2.0 * alone_s)
    # Alone for 100 s, in which it trained all the time. The rest takes twice as long.
    alone = Tolerances()
    for at in (0.0, 100.0):
        found_J, alone = alone.tolerated(
            at, situation_of(view(nodes(4), one, at=at)), 4
        )
        assert found_J[0] - 60.0 - one.rescale_s == pytest.approx(alone_s)
    assert tolerated(alone, 100.0, *others, one) == pytest.approx(
        100.0 + 2.0 * (alone_s - 100.0)
    )


def test_a_job_tolerates_its_time_on_the_slowest_type() -> None:
    slow = ThroughputParams(alpha_c=0.2, beta_c=0.002)
    fast = ThroughputParams(alpha_c=0.1, beta_c=0.001)
    one = timed(
        "one",
        by_type={"slow": TypeProfile(params=slow), "fast": TypeProfile(params=fast)},
    )
    slows = nodes(1, kind="slow", name="s")
    fasts = nodes(1, kind="fast", name="f")
    both, only = (
        Tolerances().tolerated(0.0, situation_of(seen), 2)[0][0]
        for seen in (view((*slows, *fasts), one), view(slows, one))
    )
    assert both == pytest.approx(only)


def test_a_declared_length_counts_before_the_first_report() -> None:
    spec = JobSpec(
        name="a", batch=BatchLimits(initial=8), length=JobLength(steps=100.0)
    )
    assert (
        left(RemainingWork(), JobView(id="a", spec=spec, submitted_at=0.0), alone=2.0)
        == 800.0
    )


def placed(
    cluster: tuple, counts: dict[str, int], **held: Allocation
) -> dict[str, Allocation]:
    jobs = {
        name: job(name, (1, 64), held=held.get(name, Allocation())) for name in counts
    }
    (kind,) = topology_of(view(cluster, *jobs.values())).gpu_types
    return place(
        kind, jobs, counts, lambda _, count, spread: count * (0.5 if spread else 1.0)
    )


def test_small_jobs_make_way_for_a_whole_node() -> None:
    found = placed(nodes(4, 4), {"big": 4, "a": 1, "b": 1}, a=on(n0=1), b=on(n1=1))
    assert found["big"].num_nodes == 1
    assert found["a"].slots[0][0] == found["b"].slots[0][0]


def test_a_job_that_keeps_its_size_stays_and_others_take_the_tightest_hole() -> None:
    found = placed(nodes(4, 4), {"a": 3, "new": 1, "two": 2}, a=on(n0=3))
    assert found == {"a": on(n0=3), "two": on(n1=2), "new": on(n0=1)}


def test_fewer_gpus_on_one_node_beat_more_on_two_if_no_job_can_move() -> None:
    held = {"a": on(n0=3), "b": on(n1=3)}
    found = placed(nodes(4, 4), {"a": 3, "b": 3, "c": 2}, **held)
    assert found["c"].num_replicas == 1


def test_a_job_in_pieces_moves_when_a_node_is_free() -> None:
    assert placed(nodes(4, 4, 4), {"a": 4}, a=on(n0=2, n1=2))["a"].num_nodes == 1


def predicted(says: Predictions, at: float, **ends_s: float) -> Predictions:
    """Return the record after the prediction that jobs end in so many seconds."""
    return says.predicted(at, ends_s, np.array(list(ends_s.values())))


def test_a_record_of_errors_widens_the_interval() -> None:
    says = Predictions()
    says = predicted(says, 0.0, first=1000.0)
    narrow = says.latest["first"]
    for number in range(40):
        at = 10_000.0 * (number + 1)
        says = predicted(says, at, x=1000.0)
        says = says.observed(at + (5000.0 if number % 2 else 500.0), set())
    says = predicted(says, 1e7, last=1000.0)
    wide = says.latest["last"]
    assert wide.high_at - wide.end_at > 3500.0 > narrow.high_at - narrow.end_at
    assert wide.low_at < wide.end_at < wide.high_at


def test_what_is_said_of_a_day_is_judged_by_what_was_said_of_days() -> None:
    says = Predictions()
    for number in range(
        60
    ):  # of 100 s exactly as said; of 100,000 s it took 40 % only, known of 20 jobs
        at = 1e6 * (number + 1)
        says = predicted(says, at, short=100.0)
        says = says.observed(at + 130.0, set())
        says = says.observed(at + 200.0, set())
        if number == 30:
            says = predicted(says, at + 300.0, first=100_000.0)
            unproven = says.latest["first"]
            says = replace(says, made={})
        if number >= 40:
            says = predicted(says, at + 300.0, long=100_000.0)
            says = says.observed(at + 40_300.0, set())
    said_at = 1e8
    says = predicted(says, said_at, short=100.0, long=100_000.0)
    short = says.latest["short"]
    long = says.latest["long"]
    assert (
        unproven.low_at - (31e6 + 300.0) < 0.51 * 100_000.0
    )  # too few: a factor of two, not the short ones'
    assert long.low_at - said_at < 0.5 * 100_000.0
    assert short.low_at > said_at - 1.0
    assert short.high_at - said_at < 400.0


@pytest.mark.parametrize("took", [0.2, 5.0])
def test_what_is_said_lies_in_its_interval_though_all_proved_wrong_to_one_side(
    took: float,
) -> None:
    says = Predictions()
    for number in range(40):
        at = 1e5 * (number + 1)
        says = predicted(says, at, x=3_000.0)
        says = says.observed(at + took * 3_000.0, set())
    says = predicted(says, 1e8, next=3_000.0)
    said = says.latest["next"]
    assert said.low_at <= said.end_at <= said.high_at
    far_s = said.low_at - 1e8 if took < 1.0 else said.high_at - 1e8
    assert far_s == pytest.approx(took * 3_000.0, rel=0.2)


def test_of_errors_the_latest_count() -> None:
    says = Predictions()
    for number in range(ERRORS_MAX + 50):
        says = predicted(says, 0.0, a=600.0)
        says = says.observed(600.0 if number < 50 else 60.0, {"a"})
        says = says.observed(600.0 if number < 50 else 60.0, set())
    assert len(says.errors) == ERRORS_MAX
    # The fifty that took longer gave way.
    assert len({error for _, error in says.errors}) == 1


def test_times_are_worded_in_what_is_short_enough() -> None:
    seconds_X = np.array(
        [
            -3.0,
            0.4,
            0.5,
            1.5,
            89.4,
            89.6,
            90.0,
            150.0,
            5_369.0,
            5_371.0,
            7_830.0,
            1e5,
            2e5,
            4e5,
        ]
    )
    words = [duration(seconds) for seconds in seconds_X.tolist()]
    assert words[:8] == ["0 s", "0 s", "0 s", "2 s", "89 s", "90 s", "2 min", "2 min"]
    assert words[8:] == [
        "89 min",
        "1 h 30 min",
        "2 h 10 min",
        "27 h 47 min",
        "2 days",
        "5 days",
    ]


def test_no_word_is_no_prediction() -> None:
    says = Predictions()
    assert says.ranges(["a"]) == [(math.inf, math.inf, math.inf)]
    says = predicted(says, 0.0, never=math.inf)
    assert says.latest == {}


def test_weights_multiply_tenant_and_priority() -> None:
    seen = view(nodes(4), timed("a", tenant="t", priority=1), timed("b"))
    seen = type(seen)(
        at=60.0,
        nodes=seen.nodes,
        jobs=seen.jobs,
        tenants={"t": Tenant(id="t", weight=3.0)},
    )
    weights = situation_of(seen).weights.weight
    assert weights.tolist() == [6.0, 1.0]


def test_types_that_were_not_timed_are_scaled_by_jobs_timed_on_both() -> None:
    slow = ThroughputParams(alpha_c=0.2, beta_c=0.002)
    fast = ThroughputParams(alpha_c=0.1, beta_c=0.001)
    both = timed(
        "both",
        by_type={"slow": TypeProfile(params=slow), "fast": TypeProfile(params=fast)},
    )
    one = timed(
        "one", by_type={"slow": TypeProfile(params=slow, num_replicas_profiled=1)}
    )
    cluster = (*nodes(1, kind="slow", name="s"), *nodes(1, kind="fast", name="f"))
    seen = situation_of(view(cluster, both, one))
    assert seen.goodput_JC[1] == pytest.approx(seen.goodput_JC[0])
    fast_first = seen.goodput_JC[1] / seen.goodput_JC[1].min()
    assert np.sort(fast_first) == pytest.approx([1.0, 2.0])


def test_gradient_statistics_that_are_missing_mean_no_gain() -> None:
    lone = timed("a", grad=None, gpus=(1, 16))
    seen = situation_of(view(nodes(4, 4), lone))
    assert seen.goodput_JC[0].max() < 2.0 * seen.goodput_JC[0, 0]
    assert isinstance(lone.measured, Measured)
    assert GradStats(sqr=1.0, var=0.0).noise_scale(8) == 0.0
