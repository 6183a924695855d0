"""A policy that is slow, crashes or raises costs a round, never the scheduler."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from coadapt.core.commands import Solve
from coadapt.core.events import Event, PlanFailed, PlanReady
from coadapt.model import ClusterView, Plan
from coadapt.policies.base import Policy
from coadapt.runtime.process_solver import (
    COMPILING_TEXT,
    JOBS_PER_PIECE,
    ProcessSolver,
)
from tests.policies.stage import job, nodes, on, view

pytestmark = pytest.mark.processes

PATIENCE_S = 60.0


class Moody:
    """Does what the instant of the view tells it; remembers how often it was asked."""

    def __init__(self) -> None:
        self._num_asked = 0

    def allocate(self, view: ClusterView) -> Plan:
        self._num_asked += 1
        match int(view.at):
            case 1:
                raise KeyError("no such job")
            case 2:
                os._exit(3)
            case 3:
                time.sleep(PATIENCE_S)
        return Plan(diagnostics={"asked": self._num_asked, "process": os.getpid()})


@contextmanager
def solving(
    factory: Callable[[], Policy], timeout_s: float
) -> Iterator[Callable[[float | ClusterView], Event]]:
    """Yield a function from a view, or from the instant of an empty one, to the
    answer.
    """
    answers: queue.Queue[Event] = queue.Queue()
    solver = ProcessSolver(factory, lambda: 7.0, timeout_s)
    thread = threading.Thread(target=solver.run)
    thread.start()

    def ask(seen: float | ClusterView) -> Event:
        if isinstance(seen, float | int):
            seen = ClusterView(at=seen, nodes=(), jobs=())
        solver(Solve(round=int(seen.at) + 10, view=seen), answers.put)
        return answers.get(timeout=PATIENCE_S)

    try:
        yield ask
    finally:
        solver.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def figures(event: Event) -> tuple[float, float]:
    assert isinstance(event, PlanReady)
    return event.plan.diagnostics["asked"], event.plan.diagnostics["process"]


class Lists:
    """Names the jobs that it sees, each with what the next view must not make of it."""

    def allocate(self, view: ClusterView) -> Plan:
        return Plan(
            reasons={job.id: repr((view.at, view.nodes, job)) for job in view.jobs}
        )


def test_the_policy_sees_the_view_as_it_is_however_many_pieces_it_came_in() -> None:
    """In one piece a large one keeps whoever waits for a list waiting."""
    cluster = nodes(2, 2)
    with solving(Lists, timeout_s=PATIENCE_S) as ask:
        for count in (0, 1, JOBS_PER_PIECE, 2 * JOBS_PER_PIECE + 1):
            held = {count // 2: on(n0=1)}
            jobs = [
                job(f"j{n:03}", at=float(n), held=held.get(n, on()))
                for n in range(count)
            ]
            seen = view(cluster, *jobs, at=60.0 + count)
            answer = ask(seen)
            assert isinstance(answer, PlanReady)
            assert answer.plan.reasons == {
                each.id: repr((seen.at, cluster, each)) for each in seen.jobs
            }


def test_the_policy_lives_in_one_other_process_until_it_fails() -> None:
    with solving(Moody, timeout_s=5.0) as ask:
        first = ask(0.0)
        assert isinstance(first, PlanReady)
        assert (first.at, first.round) == (7.0, 10)
        num_asked, process = figures(first)
        assert (num_asked, process == os.getpid()) == (1, False)
        assert ask(1.0) == PlanFailed(at=7.0, round=11, error="KeyError: 'no such job'")
        assert figures(ask(0.0)) == (3, process)
        assert ask(2.0) == PlanFailed(
            at=7.0, round=12, error="the policy's process died with exit code 3"
        )
        num_asked, successor = figures(ask(0.0))
        assert (num_asked, successor == process) == (1, False)


class Rehearsed:
    """Counts the decisions of all its instances in this process, and those of its
    own.
    """

    num_made = 0

    def __init__(self) -> None:
        self._num_own = 0

    def allocate(self, view: ClusterView) -> Plan:
        Rehearsed.num_made += 1
        self._num_own += 1
        return Plan(diagnostics={"asked": self._num_own, "process": Rehearsed.num_made})


def test_a_policy_decides_for_practice_before_it_is_asked() -> None:
    with solving(Rehearsed, timeout_s=5.0) as ask:
        assert figures(ask(0.0)) == (
            1,
            3,
        )  # two rounds of practice, by a policy of its own


def test_a_policy_that_takes_too_long_is_ended() -> None:
    with solving(Moody, timeout_s=1.5) as ask:
        assert isinstance(
            ask(0.0), PlanReady
        )  # however long its process takes to come up
        error = "the policy took longer than 1.5 s and was ended"
        assert ask(3.0) == PlanFailed(at=7.0, round=13, error=error)
        assert figures(ask(0.0))[0] == 1


@pytest.mark.parametrize("num_jobs", [1, 4000])
def test_a_process_that_was_stopped_is_replaced(num_jobs: int) -> None:
    """spur#767: nothing was planned for minutes. A large view fills the pipe, and so
    whoever sends it waits.
    """
    cluster = nodes(2, 2)
    jobs = [job(f"j{n:04}", at=float(n)) for n in range(num_jobs)]
    with solving(Moody, timeout_s=4.0) as ask:
        _, stopped = figures(ask(0.0))
        os.kill(int(stopped), signal.SIGSTOP)
        answer = ask(view(cluster, *jobs, at=60.0))
        assert isinstance(answer, PlanFailed)
        assert answer.error == "the policy took longer than 4 s and was ended"
        _, successor = figures(ask(0.0))
        assert successor != stopped


def test_closing_does_not_wait_for_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    """Nor is the end of its process put down to the jobs."""
    answers: queue.Queue[Event] = queue.Queue()
    solver = ProcessSolver(Moody, lambda: 7.0, PATIENCE_S)
    thread = threading.Thread(target=solver.run)
    thread.start()
    for at in (0.0, 3.0):
        solver(
            Solve(round=1, view=view(nodes(2), job("a", at=0.0), at=at)), answers.put
        )
    assert isinstance(answers.get(timeout=PATIENCE_S), PlanReady)
    solver.close()
    thread.join(PATIENCE_S / 2)
    assert not thread.is_alive()
    assert answers.empty()
    assert not caplog.messages


class HardToSend:
    """A factory that is at its pickling, and so its process at its start, until it is
    told to go on.
    """

    def __init__(self) -> None:
        self.under_way = threading.Event()
        self.go_on = threading.Event()

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        self.under_way.set()
        assert self.go_on.wait(PATIENCE_S)
        return Moody, ()

    def __call__(self) -> Moody:
        return Moody()


def test_closing_while_the_process_is_being_started_ends_it_all_the_same() -> None:
    """It raised, so that a scheduler told to end as it came up neither served nor
    ended.
    """
    factory = HardToSend()
    solver = ProcessSolver(factory, lambda: 7.0)
    thread = threading.Thread(target=solver.run)
    thread.start()
    assert factory.under_way.wait(PATIENCE_S)
    solver.close()
    factory.go_on.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def compiling() -> Policy:
    """Return a policy whose first decision compiles a function, which takes a while."""
    from numba import njit

    class Compiles:
        def allocate(self, view: ClusterView) -> Plan:
            njit(lambda x: x + 1)(1)
            time.sleep(1.0)
            return Plan()

    return Compiles()


def quick() -> Policy:
    return Moody()


@pytest.mark.parametrize(("factory", "is_told"), [(compiling, True), (quick, False)])
def test_kernels_that_are_compiled_are_told_until_the_policy_is_up(
    factory: Callable[[], Policy], is_told: bool
) -> None:
    pytest.importorskip("numba")
    answers: queue.Queue[Event] = queue.Queue()
    solver = ProcessSolver(factory, lambda: 7.0)
    thread = threading.Thread(target=solver.run)
    thread.start()
    texts: set[str] = set()
    try:
        assert solver.why_no_plan_yet() == ""
        seen = ClusterView(at=0.0, nodes=(), jobs=())
        solver(Solve(round=1, view=seen), answers.put)
        while answers.empty():
            texts.add(solver.why_no_plan_yet())
            time.sleep(0.01)
        assert (COMPILING_TEXT in texts) == is_told
        assert solver.why_no_plan_yet() == ""
        assert isinstance(answers.get(), PlanReady)
    finally:
        solver.close()
        thread.join(PATIENCE_S)
