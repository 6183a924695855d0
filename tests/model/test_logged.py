"""A job keeps the latest logged values, and the door refuses too many."""

import pytest

from coadapt.core.state import SchedulerState
from coadapt.model import InputError, Measured, TrainingReport
from coadapt.model.report import LOGGED_MAX, Logged
from coadapt.model.wire import dumps, from_json, loads, to_json
from coadapt.service.reports.reading import read_report
from tests.core.stage import Stage


def rows(first: int, count: int) -> tuple[Logged, ...]:
    return tuple(
        Logged(samples=float(number), values={"accuracy": number / 2})
        for number in range(first, first + count)
    )


def test_the_latest_values_are_kept_in_order() -> None:
    known = Measured()
    for first in range(0, 2 * LOGGED_MAX, 40):
        report = TrainingReport(progress=1.0, logged=rows(first, 40))
        known = known.after(report, 1.0)
    known = known.after(TrainingReport(progress=2.0), 2.0)
    assert known.logged == rows(2 * LOGGED_MAX - LOGGED_MAX, LOGGED_MAX)
    assert from_json(Measured, to_json(known)).logged == known.logged


def test_the_books_keep_them_over_a_restart_of_the_scheduler() -> None:
    stage = Stage()
    stage.running()
    stage.reported(TrainingReport(progress=1.0, logged=rows(0, 3)))
    text = dumps(stage.scheduler.state)
    again = loads({"SchedulerState": SchedulerState}, text)
    assert again.jobs["a"].measured.logged == rows(0, 3)


def test_too_many_rows_and_odd_ones_are_refused() -> None:
    stage = Stage()
    stage.running()
    for logged, said in (
        (rows(0, LOGGED_MAX + 1), r"report\.logged: got '101 rows'; allowed: at most"),
        ((Logged(samples=0.0, values={"a\nb": 1.0}),), r"report\.logged"),
    ):
        data = to_json(TrainingReport(progress=1.0, logged=logged))
        with pytest.raises(InputError, match=said):
            read_report(data, stage.job())  # type: ignore[arg-type]
    infinite = {"progress": 1.0, "logged": [{"samples": 1.0, "values": {"a": 1e400}}]}
    with pytest.raises(InputError):
        read_report(infinite, stage.job())  # type: ignore[arg-type]
