"""Whoever waits for the state is let in, however busy the loop is."""

import threading
import time
from pathlib import Path

import pytest

from coadapt.core.events import Event, JobSubmitted, PlanReady
from coadapt.core.state import SchedulerState
from coadapt.service import live_loop
from coadapt.service.fair_lock import FairLock
from tests.service.in_process import InProcess, until
from tests.service.test_live_loop import PATIENCE_S, RecordingStore, submission


def test_all_who_wait_are_let_in_though_another_takes_it_again_and_again() -> None:
    turnstile = FairLock()
    answered = threading.Semaphore(0)
    alone = threading.Lock()

    def ask() -> None:
        with turnstile:
            assert alone.acquire(blocking=False), "two at once"
            alone.release()
            answered.release()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    give_up_at = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.start()
    num_answered = 0
    while num_answered < len(threads) and time.monotonic() < give_up_at:
        with turnstile, alone:
            num_answered += answered.acquire(blocking=False)
    assert num_answered == len(threads)
    for thread in threads:
        thread.join()


def test_entering_has_a_limit_at_the_door_and_behind_it() -> None:
    turnstile = FairLock()
    with turnstile:
        assert not turnstile.enter(0.001)
        assert not turnstile.enter(0.001)  # the door was left as well
    assert turnstile.enter(0.001)
    turnstile.__exit__()


def test_questions_are_answered_while_a_group_is_written(tmp_path: Path) -> None:
    store = RecordingStore()
    service = InProcess(tmp_path, store)
    with service.turning():
        service.loop.commit(submission(1)).result(PATIENCE_S)
        store.gate.clear()
        future = service.loop.commit(submission(2))
        answer: list[list[str]] = []
        asking = threading.Thread(
            target=lambda: answer.append(
                service.loop.read(lambda state: list(state.jobs))
            )
        )
        asking.start()
        asking.join(PATIENCE_S)
        assert (answer, future.done()) == ([["job-1"]], False)
        store.gate.set()
        future.result(PATIENCE_S)


def test_questions_are_answered_while_an_event_about_all_jobs_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that starts thousands of jobs takes most of a second, and a list waited
    for it.
    """
    monkeypatch.setattr(live_loop, "MANY_JOBS", 2)
    service = InProcess(tmp_path, RecordingStore())
    answers: dict[str, list[str]] = {}

    def ask(event: Event, _: object, state: SchedulerState) -> None:
        if isinstance(event, PlanReady | JobSubmitted) and len(state.jobs) == 3:
            kind = type(event).__name__
            asking = threading.Thread(
                target=lambda: answers.setdefault(kind, service.loop.read(_states))
            )
            asking.start()
            asking.join(PATIENCE_S if isinstance(event, PlanReady) else 0.0)

    service.loop._runtime.observers.insert(0, ask)
    futures = [service.loop.commit(submission(number)) for number in range(3)]
    with service.turning():
        for future in futures:
            future.result(PATIENCE_S)
        until(lambda: "PlanReady" in answers)
        assert answers["PlanReady"] == ["pending"] * 3  # as it was before
        until(lambda: "running" in service.loop.read(_states))
        assert service.loop._picture is None


def _states(state: SchedulerState) -> list[str]:
    return [job.state.value for job in state.jobs.values()]
