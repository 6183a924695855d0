"""The seconds between two checkpoints of a run, with and without a hazard."""

import pytest

from coadapt.model.checkpoint_interval import checkpoint_interval_s
from coadapt.model.measured import SAVE_S
from coadapt.train.checkpoint_interval import CheckpointInterval
from coadapt.train.env import CHECKPOINT_EVERY_S


def test_without_a_hazard_the_default_counts_and_a_set_interval_always_does() -> None:
    interval = CheckpointInterval()
    interval.note_save(20.0)
    assert interval.seconds(None) == CHECKPOINT_EVERY_S
    assert interval.metrics() == {}
    interval.hazard_per_h = 0.5
    assert interval.seconds(7.5) == 7.5


def test_the_interval_follows_the_measured_cost_and_the_hazard() -> None:
    interval = CheckpointInterval(hazard_per_h=0.5)
    first_s = interval.seconds(None)
    for _ in range(30):
        interval.note_save(20.0)
    assert interval.metrics()[SAVE_S] == pytest.approx(20.0)
    assert interval.seconds(None) == pytest.approx(checkpoint_interval_s(20.0, 0.5))
    assert interval.seconds(None) > first_s
    interval.hazard_per_h = 8.0
    assert interval.seconds(None) == pytest.approx(checkpoint_interval_s(20.0, 8.0))
