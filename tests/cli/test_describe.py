"""What `coadapt describe` makes of a job's picture."""

import pytest

from coadapt.cli.client import JsonObject
from coadapt.cli.jobs.describe import _deadline, _facts
from coadapt.model import TrainingReport
from coadapt.model.measured import NOT_FINITE, RANK, RATIO
from coadapt.model.wire import to_json
from coadapt.runtime.snapshot import cluster_snapshot
from tests.core.stage import Stage, on


def facts(metrics: dict[str, float]) -> dict[str, str]:
    stage = Stage()
    stage.running(allocation=on(n0=1, n1=2))
    stage.reported(TrainingReport(progress=1.0, metrics=metrics))
    (job,) = cluster_snapshot(stage.scheduler.state, stage.at)["jobs"]  # type: ignore[misc]
    return dict(_facts({**job, "spec": to_json(stage.job().spec)}))  # type: ignore[dict-item]


def test_a_straggler_has_a_line_of_its_own() -> None:
    found = facts({"loss": 0.5, RANK: 1.0, RATIO: 1.6})
    assert (
        found["Straggler"]
        == "rank 1 on n1 computes 1.6 times as long as the median of its peers"
    )
    assert found["Metrics"] == "loss 0.5"


def test_a_loss_that_is_not_finite_has_a_line_of_its_own() -> None:
    found = facts({"loss": 0.5, NOT_FINITE: 21.0})
    shown = "loss or gradients are infinite or not a number (NaN) since step 21"
    assert found["Training"] == shown
    assert found["Metrics"] == "loss 0.5"


def test_without_one_there_is_no_such_line() -> None:
    found = facts({"loss": 0.5, RANK: -1.0, RATIO: 1.1})
    assert "Straggler" not in found
    assert found["Metrics"] == "loss 0.5"


@pytest.mark.parametrize(
    ("state", "due_s", "shown"),
    [
        ("running", 3_700.0, ", in 1h01m"),
        ("pending", -140.0, ", passed 2m20s ago"),
        ("succeeded", 10.0, ", kept"),
        ("succeeded", -140.0, ", missed by 2m20s"),
        ("cancelled", -140.0, ""),
    ],
)
def test_a_deadline_is_told_against_now_or_the_end(
    state: str, due_s: float, shown: str
) -> None:
    job: JsonObject = {
        "state": state,
        "submitted_at": 1_000.0,
        "age_s": 500.0,
        "spec": {"deadline_at": 1_500.0 + due_s},
    }
    ((name, text),) = _deadline(job)
    assert name == "Deadline"
    assert text.partition(",")[1] + text.partition(",")[2] == shown


def test_a_job_without_a_deadline_has_no_such_line() -> None:
    assert "Deadline" not in facts({})
