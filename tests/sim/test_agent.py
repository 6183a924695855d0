"""A job's own agent: what it measures, which batch it picks, how far it gets, and what it tells."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.fit import fit_throughput
from coadapt.goodput.goodput import best_batch
from coadapt.goodput.profile import ProfileBuilder
from coadapt.model import BatchConfig, BatchLimits, Forecast, JobSpec, Placement, RescaleContract
from coadapt.sim.agent import (
    Assignment,
    Learned,
    Oracle,
    Segment,
    Training,
    advance,
    assign,
    choose_batch,
    report,
)
from tests.sim.stage import TOY, Toy, spec

ONE = Placement((1,))
TWO_NODES = Placement((4, 2))
EIGHT_NODES = Placement((1,) * 8)
EIGHT = BatchConfig(total=8, atomic=8)


def assignment(
    placement: Placement = ONE, dictated: BatchConfig | None = EIGHT, job_spec: JobSpec | None = None
) -> Assignment:
    return Assignment(spec=job_spec or spec(), placement=placement, dictated=dictated)


def play(given_: Assignment, seconds: float, *, delay_s: float = 0.0, speed: float = 1.0) -> Segment:
    return advance(TOY, given_, assign(given_, Training(), delay_s), seconds, speed)


def test_the_delay_is_paid_first() -> None:
    after = play(assignment(), 50.0, delay_s=30.0)
    assert (after.training.progress, after.training.samples, after.training.delay_s) == (20.0, 160.0, 0.0)


def test_a_delay_longer_than_the_stretch_leaves_no_time() -> None:
    after = play(assignment(), 20.0, delay_s=30.0)
    assert (after.training.progress, after.training.delay_s, after.training.grad) == (0.0, 10.0, None)


def test_epochs_take_whole_seconds() -> None:
    # Batch 16 makes 4/3 steps of progress per second: an epoch of 100 takes 75 s exactly; at 0.9 of the
    # speed it takes 83.3 s, which counts as 83.
    sixteen = BatchConfig(total=16, atomic=16)
    assert play(assignment(dictated=sixteen), 1000.0).finished_s == 225.0
    assert play(assignment(dictated=sixteen), 1000.0, speed=0.9).finished_s == 249.0


def test_accumulation_costs_the_passes_without_synchronising() -> None:
    # On one node of two GPUs a step takes 1 s, of which 0.5 s is the pass: with one more pass 1.5 s.
    twice = BatchConfig(total=8, atomic=2, accumulation=1)
    after = play(assignment(Placement((2,)), twice), 30.0)
    assert after.training.progress == pytest.approx(20.0)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_the_end_is_the_same_however_time_is_cut(cuts: list[int]) -> None:
    given_ = assignment(TWO_NODES, BatchConfig(total=24, atomic=4))
    whole = play(given_, 10_000.0, delay_s=30.0)
    training, passed = assign(given_, Training(), 30.0), 0.0
    for seconds in [*cuts, 10_000]:
        segment = advance(TOY, given_, training, float(seconds))
        if segment.finished_s is not None:
            assert whole.finished_s == passed + segment.finished_s
            assert segment.training.samples == pytest.approx(whole.training.samples)
            return
        training, passed = segment.training, passed + seconds
    pytest.fail("it never ended")


def test_a_finished_job_ends_at_once() -> None:
    given_ = assignment()
    done = replace(assign(given_, Training(), 0.0), epoch=3, progress=300.0)
    assert advance(TOY, given_, done, 60.0).finished_s == 0.0


def test_the_first_measurement_of_a_kind_is_kept() -> None:
    learned = Learned().with_step(ONE, 8, 1.0, 1.0)
    assert learned.knows(ONE, 8)
    assert not learned.knows(ONE, 4)
    assert not learned.knows(Placement((2,)), 8)
    more = learned.with_step(Placement((3,)), 4, 0.5, 1.0)
    assert (learned.num_replicas, more.num_replicas) == (1, 3)
    assert not learned.knows(Placement((3,)), 4)


def test_nothing_is_learnt_from_a_step_that_is_known() -> None:
    first = play(assignment(), 10.0).training
    assert advance(TOY, assignment(), first, 10.0).training.learned is first.learned


def test_no_fit_before_it_is_asked_for() -> None:
    after = play(assignment(), 10.0).training
    assert "params" not in vars(after.learned)


def test_a_batch_is_dictated_or_fixed_or_the_smallest_or_the_best() -> None:
    known = Learned().with_step(ONE, 8, 1.0, 1.0).with_step(TWO_NODES, 4, 1.0, 2.0)
    grad = TOY.grad_stats(8, 0)
    fixed = spec(RescaleContract.FIXED, total=50)
    assert choose_batch(assignment(), known, grad) == EIGHT
    assert choose_batch(assignment(TWO_NODES, None, fixed), known, grad) == BatchConfig(total=50, atomic=9)
    assert choose_batch(assignment(TWO_NODES, None), Learned(), None) == BatchConfig(total=12, atomic=2)
    builder = ProfileBuilder()
    builder.add(ONE, 8, 1.0, 1.0)
    builder.add(TWO_NODES, 4, 1.0, 2.0)
    best = best_batch(spec().batch, fit_throughput(builder.build()), grad, TWO_NODES)
    assert choose_batch(assignment(TWO_NODES, None), known, grad) == best.config


def test_an_adaptive_job_chooses_again_after_each_stretch() -> None:
    given_ = assignment(EIGHT_NODES, dictated=None)
    first = assign(given_, Training(), 0.0)
    noisy = Toy(var=100.0)
    after = advance(noisy, given_, first, 60.0).training
    assert first.batch == BatchConfig(total=16, atomic=2)
    assert after.grad == noisy.grad_stats(16, 0)
    assert after.batch == best_batch(spec().batch, after.learned.params, after.grad, EIGHT_NODES).config
    assert after.batch != first.batch


def test_a_report_tells_progress_in_samples_and_fits_only_for_its_own_choice() -> None:
    forecast = Forecast(remaining_steps=1.0, step_time_s=(1.0,))
    dictated = play(assignment(), 60.0).training
    told = report(TOY, assignment(), dictated, forecast)
    assert (told.progress, told.progress_target, told.samples) == (480.0, 2400.0, 480.0)
    assert (told.throughput, told.num_replicas_profiled, told.step_time_s) == ({}, 1, 1.0)
    assert (told.batch, told.grad, told.forecast) == (EIGHT, TOY.grad_stats(8, 0), forecast)
    own = assignment(dictated=None)
    assert set(report(TOY, own, play(own, 60.0).training, forecast).throughput) == {"gpu"}


class TestOracle:
    """Forecasts at the requested batch, as in the artifact."""

    def test_steps_are_counted_from_the_end_of_the_epoch_under_way(self) -> None:
        remaining = [Oracle(4, 12)(TOY, spec(), epoch).remaining_steps for epoch in range(3)]
        assert remaining == [200.0, 100.0, 1.0]

    def test_one_gpu_always_accumulates_and_nodes_are_filled_up(self) -> None:
        # Batch 8 can be cut into at most four parts of two samples. On one GPU it takes two passes of 1 s.
        assert Oracle(2, 12)(TOY, spec(), 0).step_time_s == (2.0, 1.0, 2.0, 2.0)

    def test_it_covers_what_job_and_cluster_allow(self) -> None:
        sizes = [
            len(Oracle(4, num_gpus)(TOY, spec(most=most, total=total), 0).step_time_s)
            for num_gpus, most, total in ((12, 8, 64), (5, 8, 64), (12, 3, 64), (12, 8, 10))
        ]
        assert sizes == [8, 5, 3, 5]

    def test_a_job_that_may_not_accumulate_does_not(self) -> None:
        limits = BatchLimits(initial=8, max_total=64, accumulation=False)
        forecast = Oracle(4, 12)(TOY, replace(spec(most=1), batch=limits), 0)
        assert forecast.step_time_s == (1.0,)
