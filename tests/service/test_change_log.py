"""What an operator reads in the foreground: each change once, each reason once, no verb
twice in a line.
"""

import logging

import pytest

from coadapt.core.events import Outcome, PlanReady
from coadapt.core.scheduler import Scheduler
from coadapt.model import Plan, TrainingReport
from coadapt.service.change_log import ChangeLog
from tests.core.stage import Stage, on


def lines_of(stage: Stage, caplog: pytest.LogCaptureFixture) -> list[str]:
    scheduler = Scheduler()
    log = ChangeLog()
    log.speak()
    with caplog.at_level(logging.INFO):
        for event in stage.journal:
            log(event, scheduler.handle(event), scheduler.state)
    return [record.getMessage() for record in caplog.records]


def test_a_reason_is_told_once_and_so_is_a_verb(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.submit()
    stage.timer(60.0)
    reasons = {"a": "starts on 1 GPU\nmore for describe"}
    stage.handle(
        PlanReady(
            at=60.0, round=1, plan=Plan(allocations={"a": on(n0=1)}, reasons=reasons)
        )
    )
    stage.started()
    stage.reported(TrainingReport(progress=1.0))  # one that got on starts again at once
    stage.exited(Outcome.LOST, detail="killed")
    stage.started(generation=2)
    stage.exited(Outcome.SUCCEEDED, generation=2)
    lost = "restarts, from a checkpoint if it saved one: replicas were lost: killed"
    assert lines_of(stage, caplog) == [
        "job a generation 0: pending: waits: submitted, the next round will look at it",
        "job a generation 1: starts on 1 GPU",
        "job a generation 1: running on 1 GPU",
        f"job a generation 2: starting on 1 GPU: {lost}",
        "job a generation 2: running on 1 GPU",
        "job a generation 2: succeeded: finished",
    ]
