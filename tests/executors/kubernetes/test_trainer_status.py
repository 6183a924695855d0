"""Progress in the words of KEP-2779: by samples and goodput where they are known, else
as the script says.
"""

import pytest

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes.elastic_jobs import merge_patch
from coadapt.executors.kubernetes.trainer_status import trainer_status

NOW = "2026-01-01T00:00:00Z"
SOON = "2026-01-01T00:00:09Z"
LATER = "2026-01-01T00:00:10Z"


def picture(**changes: object) -> dict[str, object]:
    known = {
        "state": "running",
        "ended_at": None,
        "progress": 500.0,
        "progress_target": 2000.0,
        "batch": {"total": 20, "atomic": 10, "accumulation": 0},
        "step_time_s": 0.5,
        "efficiency": 0.75,
        "metrics": {"loss": 0.23456789, "straggler_rank": -1.0},
    }
    return known | changes


def test_what_is_left_takes_its_time_at_the_goodput_of_now() -> None:
    assert trainer_status(picture(), None, NOW) == {
        "progressPercentage": 25,
        # 1,500 samples at 40 a second, each worth 0.75
        "estimatedRemainingSeconds": 50,
        "metrics": [{"name": "loss", "value": "0.234568"}],
        "lastUpdatedTime": NOW,
    }


@pytest.mark.parametrize(
    ("changes", "percent", "remaining"),
    [
        ({"efficiency": None}, 25, 37),
        ({"state": "pending"}, 25, None),
        ({"step_time_s": None}, 25, None),
        ({"progress": 1999.9}, 99, 0),
        ({"progress": 2001.0}, 99, 0),
        ({"state": "succeeded", "ended_at": 9.0}, 100, 0),
        ({"state": "failed", "ended_at": 9.0}, 25, None),
        ({"progress_target": None, "metrics": {"progress_percentage": 45.0}}, 45, None),
        (
            {
                "progress_target": None,
                "metrics": {
                    "progress_percentage": 45.0,
                    "estimated_remaining_seconds": 1e12,
                },
            },
            45,
            2**31 - 1,
        ),
    ],
)
def test_what_is_not_known_is_left_out(
    changes: dict[str, object], percent: int | None, remaining: int | None
) -> None:
    found = trainer_status(picture(**changes), None, NOW)
    assert found is not None
    assert (
        found.get("progressPercentage"),
        found.get("estimatedRemainingSeconds"),
    ) == (percent, remaining)


def test_nothing_is_said_of_a_job_that_tells_nothing() -> None:
    assert trainer_status(picture(progress_target=None, metrics={}), None, NOW) is None
    assert trainer_status({}, {"progressPercentage": 3}, NOW) == {
        "progressPercentage": 3
    }


def test_it_changes_each_ten_seconds_at_most_and_at_the_end() -> None:
    first = trainer_status(picture(), None, NOW)
    assert trainer_status(picture(progress=900.0), first, SOON) == first
    second = trainer_status(picture(progress=900.0), first, LATER)
    assert second is not None
    assert (second["progressPercentage"], second["lastUpdatedTime"]) == (45, LATER)
    assert (
        trainer_status(picture(progress=900.0), second, "2026-01-01T01:00:00Z")
        == second
    )
    ended = trainer_status(picture(state="succeeded", ended_at=1.0), first, SOON)
    assert ended is not None
    assert ended["progressPercentage"] == 100


def test_a_patch_names_what_is_gone() -> None:
    before = {
        "phase": "Running",
        "trainerStatus": {"progressPercentage": 3, "estimatedRemainingSeconds": 9},
    }
    wanted = {
        "phase": "Running",
        "trainerStatus": {"progressPercentage": 4},
        "replicas": 1,
    }
    assert merge_patch(before, wanted) == {
        "trainerStatus": {"progressPercentage": 4, "estimatedRemainingSeconds": None},
        "replicas": 1,
    }
