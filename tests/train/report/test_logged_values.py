"""Each value of the metric that is searched for reaches the scheduler, also those that
were logged while none answered.
"""

import time

import pytest

from coadapt.model.report import LOGGED_MAX, Logged
from coadapt.train.logged_values import KEPT_MAX, LoggedValues
from coadapt.train.report import reporter as module
from coadapt.train.report.reporter import Reporter
from tests.train.report.test_reporter import choosing


def row(samples: float, **values: float) -> Logged:
    return Logged(samples=samples, values=values)


def noted(count: int) -> LoggedValues:
    logged = LoggedValues(("accuracy", "epoch"))
    for epoch in range(count):
        metrics = {"accuracy": epoch / 10, "epoch": float(epoch), "loss": 1.0}
        logged.note(10.0 * epoch, metrics, metrics)
    return logged


def test_a_row_is_kept_when_the_metric_is_logged_until_it_is_delivered() -> None:
    logged = LoggedValues(("accuracy", "epoch"))
    logged.note(5.0, {"loss": 1.0, "epoch": 1.0}, ("loss", "epoch"))
    logged.note(10.0, {"accuracy": 0.5, "epoch": 1.0}, ("accuracy",))
    logged.note(20.0, {"accuracy": float("nan"), "epoch": 2.0}, ("accuracy",))
    first = logged.pending()
    assert first == (row(10.0, accuracy=0.5, epoch=1.0),)
    logged.note(30.0, {"accuracy": 0.7, "epoch": 3.0}, ("accuracy", "epoch"))
    logged.delivered(first)
    assert logged.pending() == (row(30.0, accuracy=0.7, epoch=3.0),)


def test_without_names_nothing_is_kept() -> None:
    logged = LoggedValues()
    logged.note(1.0, {"accuracy": 1.0}, ("accuracy",))
    assert not logged.pending()


def test_what_is_kept_is_bounded() -> None:
    logged = noted(KEPT_MAX + 5)
    assert len(logged.pending()) == LOGGED_MAX
    assert logged.pending()[0].values["epoch"] == 5.0


class Away:
    """A scheduler that is away at first."""

    def __init__(self) -> None:
        self.away = True
        self.reports: list[dict[str, object]] = []

    def send(self, path: str, body: dict[str, object]) -> bytes:
        if self.away:
            raise OSError("nobody answers")
        report = body["report"]
        assert isinstance(report, dict)
        self.reports.append(report)
        return b"{}"


def test_values_that_were_logged_while_no_scheduler_ran_are_delivered_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", 0.001)
    channel = Away()
    logged = noted(LOGGED_MAX + 7)
    reporter = Reporter(channel, generation=1, logged=logged)
    reporter.offer(choosing())
    deadline = time.monotonic() + 30.0
    while not reporter._failed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(logged.pending()) == LOGGED_MAX
    channel.away = False
    reporter.offer(choosing())
    reporter.offer(choosing())
    reporter.close()
    sent = [len(report.get("logged", ())) for report in channel.reports]  # type: ignore[arg-type]
    assert sent[:2] == [LOGGED_MAX, 7]
    assert not any(sent[2:])
    assert all("logged" not in report for report in channel.reports[2:])
    assert not logged.pending()
