import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.policies.predictors.dirichlet import Phase, Rule, epochs_left

PAST = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), max_size=6)


@given(PAST, st.integers(0, 3), st.integers(1, 100), st.sampled_from(Rule))
def test_what_is_left_in_all_modes_is_what_is_left_of_the_job(
    past: list[tuple[int, int]], current: int, more: int, rule: Rule
) -> None:
    phases = [Phase(*each) for each in past]
    num_epochs = sum(phase.num_epochs for phase in phases) + more
    left = epochs_left(num_epochs, 4, phases, current, rule)
    assert min(left) >= 0.0
    # The released code rounds the counts' sum up to a whole number first: it comes to a
    # little less.
    slack = 1.0 if rule is Rule.COUNTS else 0.0
    assert more - slack - 1e-9 <= sum(left) <= more + 1e-9


def test_restatement_drops_the_modes_that_have_ended() -> None:
    assert epochs_left(60, 3, [], 0, Rule.RESTATEMENT) == [20.0, 20.0, 20.0]
    assert epochs_left(60, 3, [Phase(0, 10)], 1, Rule.RESTATEMENT) == [0.0, 25.0, 25.0]
    assert epochs_left(60, 3, [Phase(0, 10), Phase(1, 20)], 2, Rule.RESTATEMENT) == [
        0.0,
        0.0,
        30.0,
    ]


def test_a_mode_that_is_entered_again_is_open_again() -> None:
    phases = [Phase(0, 10), Phase(1, 20)]
    assert epochs_left(50, 2, phases, 0, Rule.RESTATEMENT) == [20.0, 0.0]


def test_counting_is_the_posterior_mean_less_what_was_seen() -> None:
    """By hand: E = 40, prior 20 each; 10 epochs in mode 0, now in mode 1: 30 and 21 of
    51, of 40 epochs.
    """
    expected = [40 * 30 / 51 - 10, 40 * 21 / 51 - 1]
    scale = 30 / max(int(sum(expected) + 1), 30)
    assert epochs_left(40, 2, [Phase(0, 10)], 1, Rule.COUNTS) == pytest.approx(
        [scale * e for e in expected]
    )


def test_counting_keeps_believing_in_a_mode_that_was_left() -> None:
    phases = [Phase(0, 5), Phase(1, 30)]
    assert epochs_left(60, 2, phases, 1, Rule.COUNTS)[0] > 10.0
    assert epochs_left(60, 2, phases, 1, Rule.RESTATEMENT)[0] == 0.0


def test_counting_takes_the_last_epoch_of_one_mode_for_done() -> None:
    """As the released code does: the epoch under way counts as seen."""
    assert epochs_left(10, 1, [Phase(0, 9)], 0, Rule.COUNTS) == [0.0]
    assert epochs_left(10, 1, [Phase(0, 9)], 0, Rule.RESTATEMENT) == [1.0]


def test_more_epochs_than_there_are_leave_nothing() -> None:
    for rule in Rule:
        assert epochs_left(10, 2, [Phase(0, 12)], 1, rule) == [0.0, 0.0]


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"within 0\.\.1, got 2"):
        epochs_left(10, 2, [], 2, Rule.COUNTS)
