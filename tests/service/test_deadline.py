"""Deadlines as users write them."""

from datetime import UTC, datetime

import pytest

from coadapt.model import InputError
from coadapt.service.deadline import deadline_at


@pytest.mark.parametrize(
    ("text", "after_s"),
    [
        ("90m", 5400.0),
        ("2h", 7200.0),
        ("1d12h", 129_600.0),
        ("1.5h", 5400.0),
        ("5s", 5.0),
    ],
)
def test_a_time_counts_from_the_submission(text: str, after_s: float) -> None:
    assert deadline_at(text, 1e9) == 1e9 + after_s


def test_an_instant_is_an_instant_whenever_the_job_came() -> None:
    instant = datetime(2026, 12, 1, 17, tzinfo=UTC).timestamp()
    for text in (
        "2026-12-01T18:00:00+01:00",
        "2026-12-01T17:00Z",
        "2026-12-01 12:00:00-05:00",
    ):
        assert deadline_at(text, 0.0) == deadline_at(text, 1e9) == instant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2",
        "-2h",
        "0s",
        "2 hours",
        "h",
        "1e9d",
        "99999999999d",
        "2026-13-01",
        "1999-01-01",
        "٢h",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="deadline: got"):
        deadline_at(text, 1e9)
