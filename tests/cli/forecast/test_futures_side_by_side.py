"""What a future changes against the present, in percent; and what came before."""

import math
from dataclasses import replace

import pytest

from coadapt.cli.forecast import live_question
from coadapt.cli.forecast.live_question import past_arrivals, submission_of
from coadapt.cli.forecast.tables import as_plain, compared, left_out
from coadapt.cli.forecast.words import in_words
from coadapt.core.lifecycle import JobState
from coadapt.core.state import JobRecord, SchedulerState
from coadapt.model import BatchLimits, JobSpec, Measured, Usage
from coadapt.model.prices import Prices
from coadapt.model.wire import to_json
from coadapt.runtime.job_index import EndedJob
from coadapt.sim.ahead.estimate import Estimate, JobEstimate, Range
from coadapt.sim.ahead.roll import Question


def same(value: float) -> Range:
    return Range(median=value, low=value, high=value)


def future(name: str, mean_s: float, cost: float | None) -> Estimate:
    return Estimate(
        scenario=name,
        jobs={},
        mean_end=same(mean_s),
        last_end=same(mean_s),
        cost=None if cost is None else same(cost),
    )


def test_a_future_is_so_much_sooner_and_dearer() -> None:
    now = future("as it is", 1_000.0, 50.0)
    assert compared(now, future("+4", 820.0, 54.5)) == "18 % sooner, 9 % dearer"
    assert compared(now, future("-1", 1_500.0, 45.0)) == "50 % later, 10 % cheaper"


def test_without_prices_nothing_is_dearer() -> None:
    now = future("as it is", 1_000.0, None)
    assert compared(now, future("+4", 820.0, None)) == "18 % sooner"
    never = future("-1", math.inf, None)
    assert compared(now, never) == "not comparable within 14 days"


def test_as_json() -> None:
    state = SchedulerState(prices=Prices(currency="EUR", default=2.0))
    question = Question(state=state, at=7.0, policy="fifo")
    found = [future("as it is", 1_000.0, 50.0), future("+4", 820.0, 54.5)]
    plain = as_plain(found, question)
    assert plain["currency"] == "EUR"
    [_, more] = plain["scenarios"]  # type: ignore[misc]
    assert more["sooner_percent"] == 18.0  # type: ignore[index, call-overload]
    assert more["dearer_percent"] == 9.0  # type: ignore[index, call-overload]
    assert more["cost"] == {"median": 54.5, "low": 54.5, "high": 54.5}  # type: ignore[index, call-overload]


def ends(median: float) -> JobEstimate:
    return JobEstimate(starts=same(0.0), ends=same(median), sizes=(1,))


def test_what_there_was_no_time_for_is_said() -> None:
    whole = future("as it is", 1_000.0, None)
    assert left_out(whole, whole.num_rolls) == ""
    few = replace(whole, num_rolls=3)
    assert "3 of 20 futures were computed" in left_out(few, 20)
    jobs = {"a": ends(600.0), "b": ends(math.inf)}
    cut = replace(whole, jobs=jobs, ahead_s=7_200.0)
    assert "they reach 2.0 h ahead, 1 of 2 jobs end later" in left_out(cut, 20)
    question = Question(state=SchedulerState(), at=7.0, policy="fifo")
    assert as_plain([cut], question)["ahead_s"] == 7_200.0
    assert as_plain([whole], question)["ahead_s"] is None


def test_what_is_beyond_the_futures_is_later_than_their_reach() -> None:
    never = same(math.inf)
    assert in_words(never) == "more than 14 days"
    assert in_words(never, 7_200.0) == "more than 2.0 h"
    assert in_words(Range(median=60.0, low=30.0, high=math.inf), 7_200.0) == (
        "60 s (30 s to more than 2.0 h)"
    )


SPEC = JobSpec(name="j", batch=BatchLimits(initial=8, max_total=8))


def ended(at: float, state: JobState = JobState.SUCCEEDED) -> EndedJob:
    measured = Measured(progress=90.0, progress_target=90.0, batch_history=((1.0, 8),))
    return EndedJob(
        id=f"job-{at}",
        name="j",
        tenant="default",
        state=state,
        submitted_at=at,
        ended_at=at + 10.0,
        picture={"attained_service_gpu_s": 40.0},
        spec=to_json(SPEC),
        measured=to_json(measured),
        usage=to_json(Usage()),
    )


def test_the_past_has_ended_jobs_and_live_ones() -> None:
    state = SchedulerState()
    state.active = [JobRecord(id="live", spec=SPEC, submitted_at=25.0)]
    found = past_arrivals(
        [submission_of(ended(30.0, JobState.FAILED)), submission_of(ended(20.0))], state
    )
    assert found.since == 20.0
    assert [each.at for each in found.submissions] == [20.0, 25.0, 30.0]
    assert [each.gpu_s for each in found.submissions] == [40.0, None, 40.0]
    # A job that failed is played for as long as it ran, not to its end.
    targets = [each.measured.progress_target for each in found.submissions]
    assert targets == [90.0, None, None]
    assert not found.submissions[0].measured.batch_history


def test_a_time_of_which_not_all_jobs_are_known_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_question, "ENDED_LOOKED_AT", 2)
    state = SchedulerState()
    state.active = [JobRecord(id="live", spec=SPEC, submitted_at=5.0)]
    found = past_arrivals(
        [submission_of(ended(30.0)), submission_of(ended(20.0))], state
    )
    assert [each.at for each in found.submissions] == [20.0, 30.0]
