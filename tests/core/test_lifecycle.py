"""The transition table, row by row: every state meets every trigger."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.core.lifecycle import (
    ENDED,
    HOLDING,
    TRANSITIONS,
    IllegalTransitionError,
    JobState,
    Trigger,
    advance,
)

S = JobState
T = Trigger

# Written out by hand, on purpose: a change of the table must be made twice, and thought
# about twice.
LEGAL = {
    S.PENDING: {T.ALLOCATED: S.STARTING, T.CANCELLED: S.CANCELLED},
    S.STARTING: {
        T.REPLICAS_STARTED: S.RUNNING,
        T.STOP_ORDERED: S.STOPPING,
        T.SUCCEEDED: S.SUCCEEDED,
        T.GAVE_UP: S.FAILED,
        T.RELEASED: S.PENDING,
    },
    S.RUNNING: {
        T.RESCALE_ORDERED: S.RESCALING,
        T.STOP_ORDERED: S.STOPPING,
        T.SUCCEEDED: S.SUCCEEDED,
        T.GAVE_UP: S.FAILED,
        T.RELEASED: S.PENDING,
    },
    S.RESCALING: {
        T.REPLICAS_STARTED: S.RUNNING,
        T.REPLICAS_KEPT: S.RUNNING,
        T.STOP_ORDERED: S.STOPPING,
        T.SUCCEEDED: S.SUCCEEDED,
        T.GAVE_UP: S.FAILED,
        T.RELEASED: S.PENDING,
    },
    S.STOPPING: {
        T.SUCCEEDED: S.SUCCEEDED,
        T.GAVE_UP: S.FAILED,
        T.RELEASED: S.PENDING,
        T.CANCELLED: S.CANCELLED,
    },
    S.SUCCEEDED: {},
    S.FAILED: {},
    S.CANCELLED: {},
}


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("trigger", Trigger)
def test_every_state_meets_every_trigger(state: JobState, trigger: Trigger) -> None:
    after = LEGAL[state].get(trigger)
    if after is not None:
        assert advance(state, trigger) is after
    else:
        with pytest.raises(
            IllegalTransitionError, match=f"^{trigger} is not legal in state {state}$"
        ):
            advance(state, trigger)


def test_the_table_has_no_other_rows() -> None:
    assert {
        (s, t): after for s, row in LEGAL.items() for t, after in row.items()
    } == TRANSITIONS


def test_states_are_pending_holding_or_ended() -> None:
    assert {S.PENDING} | HOLDING | ENDED == set(S)
    assert not HOLDING & ENDED


def test_an_ended_state_is_final() -> None:
    assert not [row for row in TRANSITIONS if row[0] in ENDED]


def test_every_state_is_reachable_and_every_live_state_can_end() -> None:
    after = {
        state: {TRANSITIONS[row] for row in TRANSITIONS if row[0] is state}
        for state in S
    }

    def reachable(start: JobState) -> set[JobState]:
        seen = {start}
        frontier = [start]
        while frontier:
            new = after[frontier.pop()] - seen
            seen |= new
            frontier.extend(new)
        return seen

    assert reachable(S.PENDING) == set(S)
    for state in {S.PENDING} | HOLDING:
        assert reachable(state) >= ENDED


@given(st.lists(st.sampled_from(Trigger), max_size=30))
def test_no_sequence_of_triggers_leaves_the_table_or_brings_back_the_dead(
    triggers: list[Trigger],
) -> None:
    state = S.PENDING
    for trigger in triggers:
        try:
            following = advance(state, trigger)
        except IllegalTransitionError:
            continue
        assert state not in ENDED
        # A job that holds GPUs goes back to PENDING or ends only because its replicas
        # ended.
        if state in HOLDING and following not in HOLDING:
            assert trigger in {T.SUCCEEDED, T.GAVE_UP, T.RELEASED, T.CANCELLED}
        state = following
