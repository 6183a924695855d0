"""What a job may report: a burst, then a rate in reports and bytes; the rest is
dropped, counted and told.
"""

from pathlib import Path

import pytest

from coadapt.core.events import TrainingReported
from coadapt.service.reports.budget import (
    BYTES_BURST,
    BYTES_PER_S,
    REPORTS_BURST,
    REPORTS_PER_S,
    ReportBudget,
    TooManyReportsError,
)
from tests.service.in_process import InProcess
from tests.service.test_app import job_file


class Told:
    """A budget on a clock of its own, and the lines that it logged."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.budget = ReportBudget(self.lines.append, lambda: self.now)

    def taken(self, num_bytes: int, tries: int, job: str = "a") -> int:
        """Return how many of so many reports are taken in."""
        before = self.budget.dropped
        for _ in range(tries):
            try:
                self.budget.take(job, num_bytes)
            except TooManyReportsError:
                continue
        return tries - (self.budget.dropped - before)


def test_a_burst_passes_and_then_a_rate_of_reports() -> None:
    messages = Told()
    assert messages.taken(10, 2 * REPORTS_BURST) == REPORTS_BURST
    messages.now += 5.0
    assert messages.taken(10, 1_000) == 5 * REPORTS_PER_S


def test_large_reports_are_held_to_a_rate_of_bytes() -> None:
    messages = Told()
    assert messages.taken(11_000, 150) == BYTES_BURST // 11_000
    messages.now += 110.0
    assert messages.taken(11_000, 1_000) == pytest.approx(
        110.0 * BYTES_PER_S / 11_000, abs=1
    )


def test_one_job_takes_nothing_from_another_and_is_named_once() -> None:
    messages = Told()
    messages.taken(11_000, 1_000, "flood")
    assert messages.taken(1_000, 100, "quiet") == 100
    assert messages.lines == ["job flood reports too much: 1 reports dropped"]
    messages.now += 601.0
    messages.taken(1_000_000, 2, "flood")
    assert len(messages.lines) == 2


def test_a_lawful_job_is_never_held_up() -> None:
    messages = Told()
    for _ in range(3_000):
        messages.budget.take("a", 10_000)
        messages.now += 30.0
    assert messages.budget.dropped == 0


def test_a_flood_gets_429_and_fills_no_journal(tmp_path: Path) -> None:
    service = InProcess(tmp_path)
    with service.turning():
        client = service.client()
        job = client.post("/v1/jobs", json=job_file(tmp_path)).json()["id"]
        metrics = {f"{number:03d}-{'x' * 70}": 1.0 for number in range(100)}
        body = {"generation": 1, "report": {"progress": 1.0, "metrics": metrics}}
        path = f"/v1/jobs/{job}/reports"
        answers = [client.post(path, json=body) for _ in range(250)]
        statuses = [answer.status_code for answer in answers]
        taken = [
            event
            for event in service.store.events()
            if isinstance(event, TrainingReported)
        ]
        assert set(statuses) == {202, 429}
        assert len(taken) == statuses.count(202) <= REPORTS_BURST
        assert answers[-1].headers["Retry-After"].isdigit()
        assert (
            f"coadapt_reports_dropped_total {statuses.count(429)}.0"
            in client.get("/metrics").text
        )
        assert any(job in notice for notice in service.loop.notices())
