"""The seconds between two checkpoints of a run, with and without a hazard."""

import pytest

from coadapt.model.checkpoint_period import checkpoint_period_s
from coadapt.model.measured import SAVE_S
from coadapt.train.checkpoint_period import CheckpointPeriod
from coadapt.train.env import CHECKPOINT_EVERY_S


def test_without_a_hazard_the_default_counts_and_a_set_interval_always_does() -> None:
    period = CheckpointPeriod()
    period.note_save(20.0)
    assert period.seconds(None) == CHECKPOINT_EVERY_S
    assert period.metrics() == {}
    period.hazard_per_h = 0.5
    assert period.seconds(7.5) == 7.5


def test_the_interval_follows_the_measured_cost_and_the_hazard() -> None:
    period = CheckpointPeriod(hazard_per_h=0.5)
    first_s = period.seconds(None)
    for _ in range(30):
        period.note_save(20.0)
    assert period.metrics()[SAVE_S] == pytest.approx(20.0)
    assert period.seconds(None) == pytest.approx(checkpoint_period_s(20.0, 0.5))
    assert period.seconds(None) > first_s
    period.hazard_per_h = 8.0
    assert period.seconds(None) == pytest.approx(checkpoint_period_s(20.0, 8.0))
