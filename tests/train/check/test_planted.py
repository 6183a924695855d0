"""Some of the planted faults, and some sound scripts; `python -m
tests.train.check.planted` runs all of them.
"""

import pytest

from tests.train.check.planted.__main__ import checked, is_named
from tests.train.check.planted.scripts import FAULTS, SOUND

pytestmark = [
    pytest.mark.train,
    pytest.mark.processes,
    pytest.mark.usefixtures("forked_replicas"),
]

NAMED = (
    "token-mean",
    "loss-weight-from-a-count-at-a-large-rate",
    "average-not-registered",
    "left-by-a-local-loss",
    "not-a-number",
)
QUIET = ("early-stop", "four-steps", "rounding-grows-by-a-large-rate")


def first_of(names: tuple[str, ...]) -> list[object]:
    """Return the names as parameters, all but the first for `make test-all`."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in names[1:]]
    return [names[0], *slow]


@pytest.mark.parametrize("name", first_of(NAMED))
def test_the_cause_is_named(name: str) -> None:
    (planted,) = (item for item in FAULTS if item.name == name)
    outcome = checked(name, planted.source)
    assert is_named(planted, outcome), outcome


@pytest.mark.parametrize("name", first_of(QUIET))
def test_a_sound_script_raises_no_alarm(name: str) -> None:
    outcome = checked(name, SOUND[name])
    assert outcome.code == 0, outcome


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 30
    assert len(SOUND) >= 30
    assert len({kind for planted in FAULTS for kind in planted.kinds}) >= 15
