"""Declared lengths: what they say before a job has reported, and each policy's use of
them.
"""

from dataclasses import replace

import pytest

from coadapt.model import (
    Allocation,
    BatchConfig,
    BatchLimits,
    BatchSchedule,
    JobLength,
    JobView,
    RescaleContract,
    ThroughputParams,
    TypeProfile,
)
from coadapt.policies import create_policy
from coadapt.policies.ones.objective import Record, completed_share, epoch_samples
from coadapt.policies.predictors.declared import STEP_S, declared_samples, forecast_of
from coadapt.policies.predictors.paces import Paces
from tests.policies.stage import counts, job, nodes, on, view

# A sample takes 10 ms, and replicas cost nothing besides.
PROFILE = TypeProfile(
    params=ThroughputParams(alpha_c=0.0, beta_c=0.01), num_replicas_profiled=1
)


def declared(given: JobView, length: JobLength, *, samples: float = 0.0) -> JobView:
    """Return `given` with a length, having trained on `samples`. Its requested batch is
    64.
    """
    measured = replace(given.measured, samples=samples, progress=samples)
    return replace(given, spec=replace(given.spec, length=length), measured=measured)


def test_steps_count_at_the_requested_batch_and_along_a_schedule() -> None:
    plain = job("a")
    assert declared_samples(declared(plain, JobLength(samples=500.0))) == 500.0
    assert declared_samples(declared(plain, JobLength(steps=10.0))) == 640.0
    assert declared_samples(declared(plain, JobLength(epochs=3.0))) is None
    assert declared_samples(plain) is None
    ramp = BatchSchedule(steps=((0, 10), (25, 100), (300, 1)))
    batch = BatchLimits(initial=10, schedule=ramp)
    ramped = job("b", contract=RescaleContract.SCHEDULE, batch=batch)
    # Three steps of 10 pass the key 25; three of 100 pass 300; then of 1.
    job_view = [
        declared_samples(declared(ramped, JobLength(steps=steps)))
        for steps in (1.0, 3.0, 4.5, 6.0, 8.0)
    ]
    assert job_view == [10.0, 30.0, 180.0, 330.0, 332.0]


def test_a_forecast_of_its_own_comes_first() -> None:
    job_view = declared(job("a", steps=7.0, times=(3.0,)), JobLength(steps=1000.0))
    assert forecast_of(job_view) == job_view.measured.forecast


def test_before_any_measurement_a_step_takes_a_second_on_the_gpus_it_requested() -> (
    None
):
    forecast = forecast_of(
        declared(job("a", (1, 8), requested=2), JobLength(steps=10.0))
    )
    assert forecast is not None
    assert (forecast.remaining_steps, forecast.step_time_s) == (
        10.0,
        (2 * STEP_S, STEP_S),
    )
    assert forecast_of(job("a")) is None


def test_a_reported_step_time_belongs_to_the_current_allocation() -> None:
    held = declared(
        job("a", (1, 8), requested=2, held=on(n0=4)),
        JobLength(steps=10.0),
        samples=320.0,
    )
    held = replace(held, measured=replace(held.measured, step_time_s=3.0))
    forecast = forecast_of(held)
    assert forecast is not None
    assert (forecast.remaining_steps, forecast.step_time_s) == (
        5.0,
        (12.0, 6.0, 4.0, 3.0),
    )


def test_a_step_time_model_gives_the_time_on_every_count() -> None:
    job_view = declared(job("a", (1, 4)), JobLength(steps=10.0))
    job_view = replace(
        job_view, measured=replace(job_view.measured, by_type={"gpu": PROFILE})
    )
    forecast = forecast_of(job_view)
    assert forecast is not None
    assert forecast.step_time_s == pytest.approx(
        (0.64, 0.32, 0.22, 0.16)
    )  # 64 over 3 is 22 at most


def test_a_job_past_its_word_is_of_unknown_length_again() -> None:
    word = JobLength(steps=10.0)
    late = forecast_of(declared(job("a"), word, samples=1.1 * 640.0))
    assert late is not None
    assert late.remaining_steps == 1.0
    assert forecast_of(declared(job("a"), word, samples=1.2 * 640.0)) is None


@pytest.mark.parametrize("name", ["srtf", "srsf", "afs"])
def test_the_job_with_the_shorter_declared_length_goes_first(name: str) -> None:
    """Before any report, and before jobs of unknown length."""
    long = declared(job("a"), JobLength(steps=100.0))
    short = declared(job("b", at=1.0), JobLength(steps=10.0))
    assert counts(create_policy(name).allocate(view(nodes(1), long, short))) == {"b": 1}


@pytest.mark.parametrize("name", ["srtf", "srsf"])
def test_a_declared_length_goes_before_an_unknown_one(name: str) -> None:
    seen = view(nodes(1), job("a"), declared(job("b", at=1.0), JobLength(steps=1e6)))
    assert counts(create_policy(name).allocate(seen)) == {"b": 1}


@pytest.mark.parametrize("name", ["optimus", "afs"])
def test_nobody_grows_beyond_its_request_by_a_speed_that_nobody_measured(
    name: str,
) -> None:
    policy = create_policy(name)
    guessed = declared(job("a", (1, 4), requested=2), JobLength(steps=10.0))
    assert counts(policy.allocate(view(nodes(4), guessed))) == {"a": 2}
    timed = replace(
        guessed, measured=replace(guessed.measured, by_type={"gpu": PROFILE})
    )
    assert counts(policy.allocate(view(nodes(4), timed))) == {"a": 4}


def test_ones_counts_epochs_and_what_is_done_by_the_word() -> None:
    job_view = declared(job("a", (1, 4)), JobLength(samples=1000.0), samples=250.0)
    assert (completed_share(job_view), epoch_samples(job_view)) == (0.25, 10.0)
    assert (
        completed_share(declared(job("a"), JobLength(samples=1000.0), samples=1200.0))
        is None
    )
    reported = replace(job_view.measured, progress_target=500.0)
    epochs = replace(
        declared(job_view, JobLength(epochs=5.0), samples=250.0), measured=reported
    )
    assert (completed_share(epochs), epoch_samples(epochs)) == (0.5, 100.0)
    record = Record(limit=1, allowed=1)
    record.note(job_view)
    assert (record.completed, record.epochs) == (0.25, 25.0)


def test_a_pace_goes_by_the_word_at_the_batch_in_use() -> None:
    job_view = declared(
        job("a", held=Allocation(slots=(("n0", 1),))),
        JobLength(steps=10.0),
        samples=128.0,
    )
    job_view = replace(
        job_view,
        measured=replace(job_view.measured, batch=BatchConfig(total=128, atomic=128)),
    )
    pace = Paces().observe(view(nodes(1), job_view))["a"]
    assert (pace.steps_left, pace.known) == (4.0, True)
