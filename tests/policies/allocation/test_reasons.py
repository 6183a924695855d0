"""What users read of a change of what their job holds."""

import pytest

from coadapt.policies.allocation.reasons import gets
from tests.policies.stage import job, on


@pytest.mark.parametrize(
    ("held", "gets_now", "types", "said"),
    [
        ({}, {"a": 1}, ("", ""), "starts on 1 GPU"),
        ({}, {"a": 2}, ("", "t4"), "starts on 2 GPUs of t4"),
        ({"a": 2}, {"a": 2}, ("t4", "t4"), "keeps its 2 GPUs"),
        ({"a": 2}, {"a": 3}, ("t4", "t4"), "grows from 2 to 3 GPUs"),
        ({"a": 2}, {"a": 1}, ("", ""), "shrinks from 2 to 1 GPU"),
        (
            {"a": 2},
            {"b": 3},
            ("t4", "a100"),
            "grows from 2 to 3 GPUs and moves from t4 to a100",
        ),
        ({"a": 2}, {"b": 2}, ("t4", "a100"), "moves with its 2 GPUs from t4 to a100"),
        (
            {"a": 2},
            {"b": 2},
            ("t4", "t4"),
            "moves with its 2 GPUs: it could not stay where it was",
        ),
    ],
)
def test_a_change_is_said_as_it_is(
    held: dict[str, int], gets_now: dict[str, int], types: tuple[str, str], said: str
) -> None:
    assert gets(job("a", (1, 8), held=on(**held)), on(**gets_now), *types) == said
