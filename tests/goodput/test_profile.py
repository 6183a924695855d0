"""What a profile keeps of the steps that a job timed."""

import math

import pytest

from coadapt.goodput.profile import ProfileBuilder
from coadapt.model import Placement

TWO_NODES = Placement((2, 1))


def test_the_first_observation_of_a_key_stays() -> None:
    builder = ProfileBuilder()
    assert builder.add(TWO_NODES, 32, 0.5, 0.75)
    assert not builder.add(TWO_NODES, 32, 5.0, 7.5)
    assert builder.add(TWO_NODES, 64, 1.0, 1.25)
    assert builder.add(Placement((2, 1), num_racks=2), 32, 0.5, 1.0)
    assert builder.build().columns().tolist() == [
        [2.0, 1.0, 3.0, 32.0, 0.5, 0.75],
        [2.0, 1.0, 3.0, 64.0, 1.0, 1.25],
        [2.0, 2.0, 3.0, 32.0, 0.5, 1.0],
    ]


def test_placements_that_the_model_cannot_tell_apart_share_a_key() -> None:
    builder = ProfileBuilder()
    builder.add(Placement((1, 2)), 32, 0.5, 0.75)
    assert not builder.add(TWO_NODES, 32, 0.5, 0.75)


def test_it_knows_the_largest_replica_count_that_was_timed() -> None:
    builder = ProfileBuilder()
    assert builder.num_replicas_profiled == 0
    builder.add(Placement((4, 4)), 32, 1.0, 2.0)
    builder.add(Placement((1,)), 32, 1.0, 1.0)
    assert builder.num_replicas_profiled == 8


def test_nothing_observed_is_an_empty_profile() -> None:
    assert len(ProfileBuilder().build()) == 0


@pytest.mark.parametrize(
    ("compute_s", "step_s"),
    [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, math.inf)],
)
def test_times_must_be_positive_and_finite(compute_s: float, step_s: float) -> None:
    builder = ProfileBuilder()
    with pytest.raises(ValueError, match="must be finite and > 0"):
        builder.add(TWO_NODES, 32, compute_s, step_s)
    with pytest.raises(ValueError, match="must be finite and > 0"):
        ProfileBuilder(rows={(1, 1, 1, 32): (1, compute_s, step_s)}).build()
    assert builder.rows == {}
