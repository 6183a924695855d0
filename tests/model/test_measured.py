"""What was measured and used only grows: laws over any reports, and the few figures
that are worked out.
"""

from dataclasses import replace
from functools import reduce
from operator import add

from hypothesis import example, given
from hypothesis import strategies as st

from coadapt.model import (
    BatchConfig,
    Forecast,
    GradStats,
    Grant,
    Measured,
    RescaleCosts,
    ThroughputParams,
    TrainingReport,
    TypeProfile,
    Usage,
)
from coadapt.model.measured import BATCH_HISTORY_MAX
from tests.model.strategies import allocations

PARAMS = ThroughputParams(alpha_c=0.1, beta_c=0.01)
FIGURES = st.floats(0.0, 1e9)


@st.composite
def batches(draw: st.DrawFn) -> BatchConfig:
    return BatchConfig(total=draw(st.integers(1, 64)), atomic=draw(st.integers(1, 64)))


@st.composite
def profiles(draw: st.DrawFn) -> TypeProfile:
    return TypeProfile(
        params=PARAMS,
        num_replicas_profiled=draw(st.integers(0, 64)),
        max_atomic=draw(st.none() | st.integers(1, 512)),
    )


@st.composite
def reports(draw: st.DrawFn) -> TrainingReport:
    return TrainingReport(
        progress=draw(FIGURES),
        samples=draw(FIGURES),
        progress_target=draw(st.none() | FIGURES),
        batch=draw(st.none() | batches()),
        step_time_s=draw(st.none() | FIGURES),
        by_type=draw(
            st.dictionaries(st.sampled_from(["a100", "v100"]), profiles(), max_size=2)
        ),
        grad=draw(st.none() | st.just(GradStats(sqr=1.0, var=2.0))),
        forecast=draw(
            st.none() | st.just(Forecast(remaining_steps=3.0, step_time_s=(1.0,)))
        ),
        metrics=draw(
            st.dictionaries(st.sampled_from(["loss", "accuracy"]), FIGURES, max_size=2)
        ),
    )


@given(st.lists(reports(), min_size=1, max_size=8))
def test_no_report_takes_anything_back(told: list[TrainingReport]) -> None:
    known = Measured()
    for at, report in enumerate(told):
        after = known.after(report, float(at))
        assert after.progress >= known.progress
        assert after.samples >= known.samples
        assert after.num_replicas_profiled >= known.num_replicas_profiled
        assert after.by_type.keys() >= known.by_type.keys()
        assert after.metrics.keys() >= known.metrics.keys()
        for name in ("batch", "grad", "forecast", "progress_target"):
            assert getattr(after, name) is not None or getattr(known, name) is None
        assert after.batch_history[: len(known.batch_history)] == known.batch_history
        known = after


@given(reports(), reports())
def test_what_a_report_says_is_what_is_known(
    first: TrainingReport, second: TrainingReport
) -> None:
    known = Measured().after(first, 1.0).after(second, 2.0)
    assert known.batch == (second.batch or first.batch)
    # Of a batch that comes without a step time, none was timed yet: the last one's
    # would be of another.
    latest = (
        second if second.batch is not None or second.step_time_s is not None else first
    )
    assert known.step_time_s == latest.step_time_s
    assert known.metrics == {**first.metrics, **second.metrics}
    for name, profile in known.by_type.items():
        told = [
            report.by_type[name] for report in (first, second) if name in report.by_type
        ]
        assert profile.num_replicas_profiled == max(
            each.num_replicas_profiled for each in told
        )
        assert profile.max_atomic == next(
            (p.max_atomic for p in reversed(told) if p.max_atomic), None
        )


def test_the_batch_history_notes_changes_of_the_total_only_and_is_bounded() -> None:
    small, cut, large = (
        BatchConfig(total=total, atomic=atomic)
        for total, atomic in ((8, 8), (8, 4), (9, 9))
    )
    known = (
        Measured()
        .with_batch(small, 1.0)
        .with_batch(cut, 2.0)
        .with_batch(large, 3.0)
        .with_batch(None, 4.0)
    )
    assert (known.batch, known.batch_history) == (large, ((1.0, 8), (3.0, 9)))
    full = Measured(
        batch_history=tuple((float(at), at % 2 + 1) for at in range(BATCH_HISTORY_MAX))
    )
    history = full.with_batch(large, 1e6).batch_history
    assert (len(history), history[0], history[-1]) == (
        BATCH_HISTORY_MAX,
        (1.0, 2),
        (1e6, 9),
    )


@given(st.lists(st.tuples(st.integers(1, 5), FIGURES), max_size=12))
@example([(1, 73741824.70848835), (2, 1e9), (3, 1.764582872390747)])
def test_what_a_rescale_cost_is_booked_once_per_generation(
    told: list[tuple[int, float]],
) -> None:
    costs = RescaleCosts()
    expected: dict[int, float] = {}
    for generation, cost_s in told:
        costs = costs.after(generation, cost_s, {})
        if generation > max(expected, default=0):
            expected[generation] = cost_s
    # One by one, as they are booked: from Python 3.12 on `sum` loses less.
    total_s = reduce(add, expected.values(), 0.0)
    assert (costs.num_measured, costs.total_s) == (len(expected), total_s)
    assert costs.mean_s == (total_s / len(expected) if expected else None)


def test_the_last_pause_stays_known_over_a_restart() -> None:
    costs = RescaleCosts().after(2, 0.3, {"wrap": 0.3}).after(3, 9.0, {})
    assert (costs.num_in_place, costs.pause, costs.total_s) == (1, {"wrap": 0.3}, 9.3)


def test_service_is_what_was_held_times_the_time_and_time_never_goes_back() -> None:
    usage = (
        Usage(accounted_at=10.0)
        .upto(20.0, 2.0)
        .upto(20.0, 8.0)
        .upto(15.0, 1.0)
        .upto(16.0, 3.0)
    )
    assert (usage.attained_service_gpu_s, usage.accounted_at) == (23.0, 16.0)


def test_any_start_but_the_first_is_a_rescale() -> None:
    usage = Usage().after_start(5.0)
    assert (usage.started_at, usage.num_starts, usage.num_rescales) == (5.0, 1, 0)
    usage = usage.after_start(9.0).after_rescale()
    assert (usage.started_at, usage.num_starts, usage.num_rescales) == (5.0, 2, 2)


@given(allocations(), st.none() | batches(), st.none() | batches())
def test_an_open_batch_is_satisfied_by_any(
    allocation: object, dictated: BatchConfig | None, other: BatchConfig | None
) -> None:
    has = Grant(allocation=allocation, batch=dictated)  # type: ignore[arg-type]
    assert has.satisfies(Grant(allocation=has.allocation))
    assert has.satisfies(has)
    wanted = Grant(allocation=has.allocation, batch=other)
    assert has.satisfies(wanted) is (other is None or other == dictated)


def test_a_report_of_the_profiles_that_are_known_leaves_them_the_same_object() -> None:
    """What follows from them is kept by what they are: most reports tell the same ones
    again.
    """
    profile = TypeProfile(params=PARAMS)
    told = TrainingReport(progress=1.0, by_type={"a100": profile})
    known = Measured().after(told, 0.0)
    assert known.after(replace(told, progress=2.0), 1.0).by_type is known.by_type
    newer = replace(profile, num_replicas_profiled=2)
    assert known.after(replace(told, by_type={"a100": newer}), 1.0).by_type == {
        "a100": newer
    }


@given(st.lists(profiles(), min_size=1, max_size=4))
def test_profiles_that_tell_nothing_new_leave_those_that_are_known(
    told: list[TypeProfile],
) -> None:
    """Also where reports before knew more, and where they come over a wire: an equal
    profile is another.
    """
    known = Measured()
    for each in told:
        known = known.after(TrainingReport(progress=1.0, by_type={"a100": each}), 0.0)
    again = TrainingReport(progress=2.0, by_type={"a100": replace(told[-1])})
    assert known.after(again, 1.0).by_type is known.by_type
