"""A job's own agent: what it measures, which batch it picks, how far it gets, and what
it tells.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.profile import ProfileBuilder
from coadapt.goodput.throughput import step_time
from coadapt.model import (
    ApplicationTimes,
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    Forecast,
    GradStats,
    JobSpec,
    Placement,
    RescaleContract,
    TimedStep,
)
from coadapt.sim.agent import (
    Assignment,
    Oracle,
    Segment,
    Training,
    advance,
    assign,
    choose_batch,
    report,
)
from coadapt.sim.agent import assignment as make_assignment
from coadapt.sim.applications import Neighbour, Setting
from coadapt.sim.learned import Learned, TimedSteps
from tests.sim.stage import TOY, Toy, spec

ONE = Placement((1,))
TWO_NODES = Placement((4, 2))
EIGHT_NODES = Placement((1,) * 8)
EIGHT = BatchConfig(total=8, atomic=8)


def assignment(
    placement: Placement = ONE,
    dictated: BatchConfig | None = EIGHT,
    job_spec: JobSpec | None = None,
) -> Assignment:
    the_spec = job_spec or spec()
    return Assignment(
        spec=the_spec,
        setting=Setting(placement),
        limits=the_spec.batch,
        dictated=dictated,
    )


def play(
    given_: Assignment, seconds: float, *, delay_s: float = 0.0, speed: float = 1.0
) -> Segment:
    return advance(
        TOY, given_, assign(TOY, given_, Training(), delay_s), seconds, speed
    )


def test_the_delay_is_paid_first() -> None:
    after = play(assignment(), 50.0, delay_s=30.0)
    assert (
        after.training.progress,
        after.training.samples,
        after.training.delay_s,
    ) == (20.0, 160.0, 0.0)


def test_a_delay_longer_than_the_stretch_leaves_no_time() -> None:
    after = play(assignment(), 20.0, delay_s=30.0)
    assert (after.training.progress, after.training.delay_s, after.training.grad) == (
        0.0,
        10.0,
        None,
    )


def test_epochs_take_whole_seconds() -> None:
    # Batch 16 makes 4/3 steps of progress per second: an epoch of 100 takes 75 s
    # exactly; at 0.9 of the speed it takes 83.3 s, which counts as 83.
    sixteen = BatchConfig(total=16, atomic=16)
    assert play(assignment(dictated=sixteen), 1000.0).finished_s == 225.0
    assert play(assignment(dictated=sixteen), 1000.0, speed=0.9).finished_s == 249.0


def test_accumulation_costs_the_passes_without_synchronising() -> None:
    # On one node of two GPUs a step takes 1 s, of which 0.5 s is the pass: with one
    # more pass 1.5 s.
    twice = BatchConfig(total=8, atomic=2, accumulation=1)
    after = play(assignment(Placement((2,)), twice), 30.0)
    assert after.training.progress == pytest.approx(20.0)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_the_end_is_the_same_however_time_is_cut(cuts: list[int]) -> None:
    given_ = assignment(TWO_NODES, BatchConfig(total=24, atomic=4))
    whole = play(given_, 10_000.0, delay_s=30.0)
    training = assign(TOY, given_, Training(), 30.0)
    passed = 0.0
    for seconds in [*cuts, 10_000]:
        segment = advance(TOY, given_, training, float(seconds))
        if segment.finished_s is not None:
            assert whole.finished_s == passed + segment.finished_s
            assert segment.training.samples == pytest.approx(whole.training.samples)
            return
        training = segment.training
        passed = passed + seconds
    pytest.fail("it never ended")


def test_a_finished_job_ends_at_once() -> None:
    given_ = assignment()
    done = replace(assign(TOY, given_, Training(), 0.0), epoch=3, progress=300.0)
    assert advance(TOY, given_, done, 60.0).finished_s == 0.0


def test_the_first_measurement_of_a_kind_is_kept() -> None:
    learned = TimedSteps().with_step(ONE, 8, 1.0, 1.0)
    assert learned.knows(ONE, 8)
    assert not learned.knows(ONE, 4)
    assert not learned.knows(Placement((2,)), 8)
    more = learned.with_step(Placement((3,)), 4, 0.5, 1.0)
    assert (
        learned.profile.num_replicas_profiled,
        more.profile.num_replicas_profiled,
    ) == (1, 3)
    assert not learned.knows(Placement((3,)), 4)


def test_steps_are_kept_apart_by_type_neighbours_and_racks() -> None:
    beside = (Neighbour("other", 0.5),)
    learned = Learned()
    for setting in (
        Setting(ONE),
        Setting(ONE, "fast"),
        Setting(ONE, "slow", 0.5, beside),
    ):
        learned = learned.with_step(setting, 8, 1.0, 1.0)
    assert not learned.on(Setting(ONE, "slow")).knows(ONE, 8)
    assert not learned.on(Setting(ONE, "fast", 0.5, beside)).knows(ONE, 8)
    assert sorted(learned.by_type()) == ["fast", "gpu", "slow"]
    alone = learned.with_step(Setting(Placement((3,)), "slow"), 8, 1.0, 1.0)
    assert (
        learned.by_type()["slow"].profile.num_replicas_profiled,
        alone.by_type()["slow"].profile.num_replicas_profiled,
    ) == (1, 3)
    wide = Placement((1, 1), 2)
    racks = learned.with_step(Setting(wide), 8, 1.0, 2.0).on(Setting(ONE))
    assert racks.knows(wide, 8)
    assert not racks.knows(Placement((1, 1)), 8)


def test_nothing_is_learnt_from_a_step_that_is_known() -> None:
    first = play(assignment(), 10.0).training
    assert advance(TOY, assignment(), first, 10.0).training.learned is first.learned


def test_no_fit_before_it_is_asked_for() -> None:
    after = play(assignment(), 10.0).training
    assert "params" not in vars(after.learned.on(Setting(ONE)))


def chosen(
    given_: Assignment, learned: Learned, grad: GradStats | None, epoch: int = 0
) -> BatchConfig:
    return choose_batch(TOY, given_, epoch, learned, grad)


def test_a_batch_is_dictated_or_fixed_or_the_smallest_or_the_best() -> None:
    known = (
        Learned()
        .with_step(Setting(ONE), 8, 1.0, 1.0)
        .with_step(Setting(TWO_NODES), 4, 1.0, 2.0)
    )
    grad = TOY.grad_stats(8, 0)
    fixed = spec(RescaleContract.FIXED, total=50)
    assert chosen(assignment(), known, grad) == EIGHT
    assert chosen(assignment(TWO_NODES, None, fixed), known, grad) == BatchConfig(
        total=50, atomic=9
    )
    assert chosen(assignment(TWO_NODES, None), Learned(), None) == BatchConfig(
        total=12, atomic=2
    )
    builder = ProfileBuilder()
    builder.add(ONE, 8, 1.0, 1.0)
    builder.add(TWO_NODES, 4, 1.0, 2.0)
    best = best_batch(spec().batch, fit_throughput(builder.build()), grad, TWO_NODES)
    assert chosen(assignment(TWO_NODES, None), known, grad) == best.config


def test_on_a_gpu_type_of_which_it_knows_nothing_it_takes_the_smallest_again() -> None:
    known = Learned().with_step(Setting(ONE), 8, 1.0, 1.0)
    moved = assignment(TWO_NODES, None).with_setting(Setting(TWO_NODES, "other"))
    assert chosen(moved, known, TOY.grad_stats(8, 0)) == BatchConfig(total=12, atomic=2)


def test_a_script_that_sets_its_own_batch_does_so_epoch_by_epoch() -> None:
    own = replace(TOY, own=(None, 16, 48))
    given_ = assignment(Placement((4,)), None, spec(RescaleContract.SELF, total=8))
    totals = [
        choose_batch(own, given_, epoch, Learned(), None).total for epoch in range(4)
    ]
    assert totals == [8, 16, 48, 48]
    fixed = assignment(Placement((4,)), None, spec(RescaleContract.FIXED, total=8))
    assert choose_batch(own, fixed, 2, Learned(), None).total == 8
    after = advance(own, given_, assign(own, given_, Training(), 0.0), 150.0).training
    assert (after.epoch, after.batch) == (1, BatchConfig(total=16, atomic=4))
    forecast = Forecast(remaining_steps=1.0, step_time_s=(1.0,))
    assert report(own, given_, after, forecast).batch == BatchConfig(total=16, atomic=4)


def test_a_scheduled_batch_changes_exactly_at_its_keys() -> None:
    scheduled = replace(
        spec(),
        contract=RescaleContract.SCHEDULE,
        batch=replace(spec().batch, schedule=BatchSchedule.parse("0:8 80:16 176:4")),
    )
    given_ = assignment(Placement((2,)), None, scheduled)
    begun = assign(TOY, given_, Training(), 0.0)
    assert begun.batch == BatchConfig(total=8, atomic=4)
    # Steps of 1 s: ten of 8 samples, six of 16, then of 4.
    seconds = (9.0, 10.0, 12.0, 16.0, 20.0)
    after = {each: advance(TOY, given_, begun, each).training for each in seconds}
    assert {
        each: (at.samples, at.batch and at.batch.total) for each, at in after.items()
    } == {
        9.0: (72.0, 8),
        10.0: (80.0, 16),
        12.0: (112.0, 16),
        16.0: (176.0, 4),
        20.0: (192.0, 4),
    }
    parts = begun
    for _ in range(200):
        parts = advance(TOY, given_, parts, 0.1).training
    assert parts.samples == pytest.approx(192.0)
    assert parts.batch == after[20.0].batch


@pytest.mark.parametrize("key", [100, 101, 997])
def test_whatever_rounding_does_a_key_is_reached_exactly(key: int) -> None:
    for total in range(50, 64):
        schedule = BatchSchedule(steps=((0, total), (key, 32)))
        limits = replace(spec().batch, requested=total, schedule=schedule)
        scheduled = replace(spec(), contract=RescaleContract.SCHEDULE, batch=limits)
        given_ = assignment(Placement((4,)), None, scheduled)
        after = advance(
            TOY, given_, assign(TOY, given_, Training(), 0.0), key / total
        ).training
        assert (after.samples, after.batch) == (key, BatchConfig(total=32, atomic=8))


def test_where_memory_is_short_a_batch_takes_more_passes() -> None:
    small = replace(TOY, limits=replace(TOY.limits, max_atomic=4))
    dictated = BatchConfig(total=48, atomic=12, accumulation=0)
    got = make_assignment(small, spec(), Setting(Placement((4,))), dictated)
    assert (got.limits.max_atomic, got.dictated) == (
        4,
        BatchConfig(total=48, atomic=4, accumulation=2),
    )
    fixed = make_assignment(
        small, spec(RescaleContract.FIXED, total=64), Setting(Placement((2,)))
    )
    assert chosen(fixed, Learned(), None) == BatchConfig(
        total=64, atomic=4, accumulation=7
    )
    assert make_assignment(TOY, spec(), Setting(ONE)).limits is not None
    roomy = spec()
    assert make_assignment(TOY, roomy, Setting(ONE)).limits is roomy.batch


def test_an_adaptive_job_chooses_again_after_each_stretch() -> None:
    given_ = assignment(EIGHT_NODES, dictated=None)
    first = assign(TOY, given_, Training(), 0.0)
    noisy = Toy(var=100.0)
    after = advance(noisy, given_, first, 60.0).training
    assert first.batch == BatchConfig(total=16, atomic=2)
    assert after.grad == noisy.grad_stats(16, 0)
    assert (
        after.batch
        == best_batch(
            spec().batch,
            after.learned.on(Setting(EIGHT_NODES)).params,
            after.grad,
            EIGHT_NODES,
        ).config
    )
    assert after.batch != first.batch
    refitted = after.learned.with_step(Setting(EIGHT_NODES), 99, 90.0, 100.0)
    params = refitted.on(Setting(EIGHT_NODES)).params
    anew = chosen(given_, refitted, after.grad)
    assert (
        anew
        == best_batch(spec().batch, params, after.grad, EIGHT_NODES).config
        != after.batch
    )


def test_a_batch_is_chosen_by_what_other_jobs_timed_on_that_shape() -> None:
    adaptive = spec(contract=RescaleContract.ADAPTIVE)
    grad = GradStats(sqr=1.0, var=4.0)
    alone = assignment(ONE, None, adaptive)
    learned = play(alone, 60.0).training.learned
    params = learned.on(alone.setting).params
    # Passes of twelve samples and more took half as long as the model says.
    steps = tuple(
        TimedStep(
            atomic=m,
            accumulation=1,
            seconds=(0.5 if m >= 12 else 1.0) * float(step_time(params, ONE, m, 1)),
        )
        for m in range(4, 17)
    )
    shared = ApplicationTimes(
        gpu_type=alone.setting.gpu_type, placement=ONE, params=params, steps=steps
    )
    reported = alone.with_times(shared)
    assert reported.with_times(shared) is reported
    assert chosen(alone, learned, grad).atomic < 12
    unfitted = learned.with_step(alone.setting, 99, 1.0, 1.0)
    assert chosen(reported, unfitted, grad) == chosen(reported, learned, grad)
    assert chosen(reported, learned, grad).atomic >= 12
    assert "params" not in vars(unfitted.on(alone.setting))  # it made no fit of its own
    assert alone.with_times(replace(shared, placement=TWO_NODES)) is alone
    dictated = assignment(ONE, EIGHT, adaptive)
    assert dictated.with_times(shared) is dictated


def test_a_report_tells_progress_in_samples_and_fits_only_for_its_own_choice() -> None:
    forecast = Forecast(remaining_steps=1.0, step_time_s=(1.0,))
    dictated = play(assignment(), 60.0).training
    reported = report(TOY, assignment(), dictated, forecast)
    assert (reported.progress, reported.progress_target, reported.samples) == (
        480.0,
        2400.0,
        480.0,
    )
    assert (reported.by_type, reported.step_time_s) == ({}, 1.0)
    assert (reported.batch, reported.grad, reported.forecast) == (
        EIGHT,
        TOY.grad_stats(8, 0),
        forecast,
    )
    untimed = report(TOY, assignment(), replace(dictated, delay_s=0.1), forecast)
    assert untimed == replace(reported, step_time_s=None)
    own = assignment(dictated=None)
    by_type = report(TOY, own, play(own, 60.0).training, forecast).by_type
    assert {name: each.num_replicas_profiled for name, each in by_type.items()} == {
        "gpu": 1
    }


class TestOracle:
    """Forecasts at the requested batch, as in the artifact."""

    def test_steps_are_counted_from_the_end_of_the_epoch_under_way(self) -> None:
        remaining = [
            Oracle(4, 12)(TOY, spec(), epoch).remaining_steps for epoch in range(3)
        ]
        assert remaining == [200.0, 100.0, 1.0]

    def test_one_gpu_always_accumulates_and_nodes_are_filled_up(self) -> None:
        # Batch 8 can be cut into at most four parts of two samples. On one GPU it takes
        # two passes of 1 s.
        assert Oracle(2, 12)(TOY, spec(), 0).step_time_s == (2.0, 1.0, 2.0, 2.0)

    def test_it_covers_what_job_and_cluster_allow(self) -> None:
        sizes = [
            len(Oracle(4, num_gpus)(TOY, spec(most=most, total=total), 0).step_time_s)
            for num_gpus, most, total in (
                (12, 8, 64),
                (5, 8, 64),
                (12, 3, 64),
                (12, 8, 10),
            )
        ]
        assert sizes == [8, 5, 3, 5]

    def test_a_job_that_may_not_accumulate_does_not(self) -> None:
        limits = BatchLimits(initial=8, max_total=64, accumulation=False)
        forecast = Oracle(4, 12)(TOY, replace(spec(most=1), batch=limits), 0)
        assert forecast.step_time_s == (1.0,)

    @pytest.mark.parametrize("replicas", [1, 2, 4])
    def test_a_declared_ramp_is_forecast_to_its_end_from_any_moment(
        self, replicas: int
    ) -> None:
        toy = Toy(var=3.0)
        ramp = BatchSchedule.parse("0:16 80:8 777:32 1200:64")
        scheduled = replace(
            spec(),
            contract=RescaleContract.SCHEDULE,
            batch=replace(spec().batch, requested=16, schedule=ramp),
        )
        given_ = assignment(Placement((replicas,)), None, scheduled)
        training = assign(toy, given_, Training(), 0.0)
        oracle = Oracle(4, 12)
        finished_s = advance(toy, given_, training, 10_000.0).finished_s
        assert finished_s is not None
        for at_s in (0.0, 9.0, 40.0, 100.0, finished_s - 1.0):
            now = advance(toy, given_, training, at_s).training
            forecast = oracle(toy, scheduled, now.epoch, now.progress, now.samples)
            # Epochs take whole seconds in the world.
            assert forecast.remaining_s(replicas) == pytest.approx(
                finished_s - at_s, abs=0.5 * toy.num_epochs
            )
        over = oracle(
            toy, scheduled, toy.num_epochs, toy.progress_at(toy.num_epochs), 1e6
        )
        assert over.remaining_steps == 1.0
