"""Reports share commits, and each is told what became of itself."""

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path

import pytest

from coadapt.core.commands import Command
from coadapt.core.events import Event, TrainingReported
from coadapt.core.scheduler import Scheduler
from coadapt.model import TrainingReport
from coadapt.service.live_loop import EventRefusedError, OverloadedError
from coadapt.service.reports import groups as report_groups
from coadapt.service.reports.groups import GROUP_MAX, WAITING_MAX, ReportGroups
from tests.service.in_process import InProcess
from tests.service.test_live_loop import PATIENCE_S, RecordingStore

NUM_REPORTS = 1_200


def report(number: int) -> TrainingReported:
    reported = TrainingReport(progress=float(number))
    return TrainingReported(at=0.0, job=f"job-{number}", generation=1, report=reported)


async def outcomes(commits: list[Awaitable[None]]) -> list[object]:
    return list(
        await asyncio.wait_for(
            asyncio.gather(*commits, return_exceptions=True), PATIENCE_S
        )
    )


def test_what_waits_is_written_as_one_group_of_limited_size(tmp_path: Path) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    groups = ReportGroups(service.loop)
    done_before: list[int] = []

    async def send() -> list[object]:
        first = asyncio.create_task(groups.commit(report(0)))
        await asyncio.sleep(0)  # it opens a group, and that is handed over
        await asyncio.sleep(0)
        others = [
            asyncio.create_task(groups.commit(report(1 + n)))
            for n in range(NUM_REPORTS)
        ]
        await asyncio.sleep(0)
        assert groups.num_waiting() == NUM_REPORTS
        done_before.append(sum(task.done() for task in [first, *others]))
        store.gate.set()
        return await outcomes([first, *others])

    with service.turning():
        store.gate.clear()
        assert asyncio.run(send()) == [None] * (1 + NUM_REPORTS)
    assert done_before == [0]
    assert store.groups[1:] == [1, GROUP_MAX, GROUP_MAX, NUM_REPORTS - 2 * GROUP_MAX]
    reported = [
        event for event in store.events() if isinstance(event, TrainingReported)
    ]
    assert [event.report.progress for event in reported] == [
        float(n) for n in range(1 + NUM_REPORTS)
    ]


def test_only_the_one_that_was_set_aside_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Scheduler.handle

    def careless(self: Scheduler, event: Event) -> list[Command]:
        if isinstance(event, TrainingReported) and event.job == "job-2":
            raise OverflowError("too large")
        return handle(self, event)

    monkeypatch.setattr(Scheduler, "handle", careless)
    service = InProcess(tmp_path, RecordingStore())
    groups = ReportGroups(service.loop)

    async def send() -> list[object]:
        return await outcomes([groups.commit(report(number)) for number in range(5)])

    with service.turning():
        reported = asyncio.run(send())
    assert [type(each) for each in reported] == [type(None)] * 2 + [
        EventRefusedError
    ] + [type(None)] * 2


def test_a_full_disk_is_told_to_all(tmp_path: Path) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    groups = ReportGroups(service.loop)
    store.broken = True

    def turn() -> None:
        with pytest.raises(OSError, match="No space left"):
            service.loop.run()

    async def send() -> list[object]:
        return await outcomes([groups.commit(report(number)) for number in range(3)])

    thread = threading.Thread(target=turn)
    thread.start()
    reported = asyncio.run(send())
    thread.join()
    assert [str(each) for each in reported] == [
        "[Errno 28] No space left on device"
    ] * 3


def test_too_many_are_turned_away_and_who_goes_away_harms_nobody(
    tmp_path: Path,
) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    groups = ReportGroups(service.loop)

    async def send() -> list[object]:
        tasks = [
            asyncio.create_task(groups.commit(report(n)))
            for n in range(WAITING_MAX + GROUP_MAX + 1)
        ]
        await asyncio.sleep(0)
        turned_away = [task for task in tasks if task.done()]
        assert {type(task.exception()) for task in turned_away} == {OverloadedError}
        kept = [task for task in tasks if not task.done()]
        for task in kept[1:]:
            task.cancel()
        store.gate.set()
        await asyncio.wait_for(kept[0], PATIENCE_S)
        return await outcomes([groups.commit(report(0))])

    with service.turning():
        store.gate.clear()
        assert asyncio.run(send()) == [None]


def test_groups_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One report after the other, as of one busy job, does not keep the disk
    writing.
    """
    monkeypatch.setattr(report_groups, "APART_S", 0.05)
    service = InProcess(tmp_path, RecordingStore())
    groups = ReportGroups(service.loop)

    async def send() -> float:
        begun = asyncio.get_running_loop().time()
        for number in range(4):
            await asyncio.wait_for(groups.commit(report(number)), PATIENCE_S)
        return asyncio.get_running_loop().time() - begun

    with service.turning():
        assert asyncio.run(send()) >= 3 * 0.05
