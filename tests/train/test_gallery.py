"""The gallery: each converted script alone is the plain one, and the same under changes
of replicas.
"""

from importlib.util import find_spec

import pytest

from benchmarks.trainer.gallery import checked, distance_alone, lines_changed, names

pytestmark = [pytest.mark.train, pytest.mark.processes]

LIBRARIES = {
    "accelerate_clip": "accelerate",
    "hugging_face": "transformers",
    "lightning_fit": "lightning",
}
OTHERS = [name for name in LIBRARIES if name != "hugging_face"]


def first_of(*names: str) -> list[object]:
    """Return the names as parameters, all but the first for `make test-all`."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in names[1:]]
    return [names[0], *slow]


# All of them, and three changes of up to three replicas: `python -m
# benchmarks.trainer.gallery`.
@pytest.mark.parametrize("name", first_of("ema", "fixmatch", "reinforce", *LIBRARIES))
def test_alone_it_is_the_plain_script(name: str) -> None:
    need(name)
    assert distance_alone(name) == 0.0


def test_the_diff_is_small() -> None:
    for name in names():
        added, removed = lines_changed(name)
        assert 0 < removed <= added <= 14, name


@pytest.mark.usefixtures("forked_replicas")
@pytest.mark.parametrize(
    "name", first_of("hugging_face", "dcgan", "reinforce", *OTHERS)
)
def test_under_changes_it_is_the_same_training(name: str) -> None:
    need(name)
    outcome = checked(name, "--steps", "40", "--changes", "1", "--replicas", "2")
    assert outcome["code"] == 0, outcome
    findings = outcome["findings"]
    assert isinstance(findings, list)
    assert {"samples", "replicas", "parameters"} <= {
        finding["what"] for finding in findings if finding["same"]
    }


def need(name: str) -> None:
    """Skip what is missing a library."""
    if find_spec(LIBRARIES.get(name, "torch")) is None:
        pytest.skip(f"{LIBRARIES[name]} is not installed")
