"""The interval between checkpoints: Young's and Daly's rule, and what it keeps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model.checkpoint_interval import (
    INTERVAL_MAX_S,
    INTERVAL_MIN_S,
    checkpoint_interval_s,
    kept_share,
)

SAVES = st.floats(0.001, 120.0)
HAZARDS = st.floats(0.001, 20.0)


@given(save_s=SAVES, hazard=HAZARDS)
def test_the_interval_is_the_root_of_twice_save_times_mtbf_within_bounds(
    save_s: float, hazard: float
) -> None:
    best_s = math.sqrt(2.0 * save_s * 3600.0 / hazard)
    interval_s = checkpoint_interval_s(save_s, hazard)
    assert INTERVAL_MIN_S <= interval_s <= INTERVAL_MAX_S
    if INTERVAL_MIN_S < best_s < INTERVAL_MAX_S:
        assert interval_s == pytest.approx(best_s)


@given(save_s=SAVES, hazard=HAZARDS, factor=st.floats(1.0, 100.0))
def test_more_losses_shorten_it_and_dearer_checkpoints_lengthen_it(
    save_s: float, hazard: float, factor: float
) -> None:
    interval_s = checkpoint_interval_s(save_s, hazard)
    assert checkpoint_interval_s(save_s, factor * hazard) <= interval_s
    assert checkpoint_interval_s(factor * save_s, hazard) >= interval_s


def test_known_values() -> None:
    assert checkpoint_interval_s(10.0, 0.05) == pytest.approx(1200.0)
    assert checkpoint_interval_s(10.0, 0.0) == INTERVAL_MAX_S
    assert checkpoint_interval_s(1e-9, 1.0) == INTERVAL_MIN_S


@given(
    save_s=SAVES,
    restart_s=st.floats(0.0, 600.0),
    hazard=HAZARDS,
    factor=st.floats(1.0, 100.0),
)
def test_a_job_keeps_less_of_its_time_where_nodes_are_lost_more_often(
    save_s: float, restart_s: float, hazard: float, factor: float
) -> None:
    kept = kept_share(save_s, restart_s, hazard)
    assert 0.0 < kept < 1.0
    assert kept_share(save_s, restart_s, factor * hazard) <= kept * (1.0 + 1e-9)
    assert kept_share(save_s, restart_s, 0.0) == 1.0
