"""The period between checkpoints: Young's and Daly's rule, and what it keeps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model.checkpoint_period import (
    PERIOD_MAX_S,
    PERIOD_MIN_S,
    checkpoint_period_s,
    kept_share,
)

SAVES = st.floats(0.001, 120.0)
HAZARDS = st.floats(0.001, 20.0)


@given(save_s=SAVES, hazard=HAZARDS)
def test_the_interval_is_the_root_of_twice_save_times_mtbf_within_bounds(
    save_s: float, hazard: float
) -> None:
    best_s = math.sqrt(2.0 * save_s * 3600.0 / hazard)
    period_s = checkpoint_period_s(save_s, hazard)
    assert PERIOD_MIN_S <= period_s <= PERIOD_MAX_S
    if PERIOD_MIN_S < best_s < PERIOD_MAX_S:
        assert period_s == pytest.approx(best_s)


@given(save_s=SAVES, hazard=HAZARDS, factor=st.floats(1.0, 100.0))
def test_more_losses_shorten_it_and_dearer_checkpoints_lengthen_it(
    save_s: float, hazard: float, factor: float
) -> None:
    period_s = checkpoint_period_s(save_s, hazard)
    assert checkpoint_period_s(save_s, factor * hazard) <= period_s
    assert checkpoint_period_s(factor * save_s, hazard) >= period_s


def test_known_values() -> None:
    assert checkpoint_period_s(10.0, 0.05) == pytest.approx(1200.0)
    assert checkpoint_period_s(10.0, 0.0) == PERIOD_MAX_S
    assert checkpoint_period_s(1e-9, 1.0) == PERIOD_MIN_S


@given(
    save_s=SAVES,
    pause_s=st.floats(0.0, 600.0),
    hazard=HAZARDS,
    factor=st.floats(1.0, 100.0),
)
def test_a_job_keeps_less_of_its_time_where_nodes_are_lost_more_often(
    save_s: float, pause_s: float, hazard: float, factor: float
) -> None:
    kept = kept_share(save_s, pause_s, hazard)
    assert 0.0 < kept < 1.0
    assert kept_share(save_s, pause_s, factor * hazard) <= kept * (1.0 + 1e-9)
    assert kept_share(save_s, pause_s, 0.0) == 1.0
