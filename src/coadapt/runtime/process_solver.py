"""A policy in a process of its own: it may be slow, hang or crash, and the loop goes
on. The sizer, where nodes are bought, is in the same process.

The policy's state lives and dies with that process; losing it only costs quality
(policies/base.py).
"""

import contextlib
import copy
import logging
import multiprocessing
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from coadapt.core.commands import Size, Solve
from coadapt.core.events import PlanFailed, PlanReady, SizingFailed, SizingReady
from coadapt.goodput.compiled import when_compiling
from coadapt.model import ClusterView, JobView, Plan
from coadapt.model.offer import Pool, Sizing, SizingView
from coadapt.model.view import current_allocations
from coadapt.policies.base import Policy
from coadapt.policies.sizers import Sizer
from coadapt.runtime.ports import Post
from coadapt.runtime.rehearsal import rehearse
from coadapt.runtime.solver import decide, describe
from coadapt.runtime.triage import NoPlan, Triage
from coadapt.runtime.wall_clock import give_way

SOLVE_TIMEOUT_S = 60.0
# A new process imports, and after an installation compiles kernels: not the decision's
# time.
START_TIMEOUT_S = 120.0
DECISIONS_KEPT = 1_000
# Half a millisecond's work.
JOBS_PER_PIECE = 20

# What a new process says before it is up.
COMPILES: Final = "compiles"
COMPILING_TEXT = (
    "it compiles its kernels, once after an installation; this takes about a minute"
)

PolicyFactory = Callable[[], Policy]
SizerFactory = Callable[[], Sizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SizeQuestion:
    """What a sizer sees beside the view that was sent before."""

    pools: tuple[Pool, ...]
    spent: float


logger = logging.getLogger(__name__)


class ProcessSolver:
    """The port Solver: one decision at a time, each within `timeout_s`."""

    def __init__(
        self,
        factory: PolicyFactory,
        now: Callable[[], float],
        timeout_s: float = SOLVE_TIMEOUT_S,
        sizer: SizerFactory | None = None,
    ) -> None:
        """`factory` and `sizer` must pickle by reference. `now` stamps the answers."""
        self.decision_s: deque[float] = deque(maxlen=DECISIONS_KEPT)
        self._factory = factory
        self._sizer = sizer
        self._now = now
        self._timeout_s = timeout_s
        self._questions: queue.SimpleQueue[tuple[Solve | Size, Post] | None] = (
            queue.SimpleQueue()
        )
        self._closed = threading.Event()
        self._triage = Triage(self._ask)
        self._came_up = False
        self._is_compiling = False
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def __call__(self, command: Solve, post: Post) -> None:
        self._questions.put((command, post))

    def size(self, command: Size, post: Post) -> None:
        """Ask the sizer; the answer is SizingReady or SizingFailed."""
        self._questions.put((command, post))

    def why_no_plan_yet(self) -> str:
        """Return why a plan that is due takes so long, in words that follow `because`;
        "" where nothing is known. For any thread.
        """
        return COMPILING_TEXT if self._is_compiling else ""

    def run(self) -> None:
        """Answer questions until `close`; for a thread of its own."""
        self._connect()
        plan = Plan()
        try:
            while (question := self._questions.get()) is not None:
                command, post = question
                if isinstance(command, Size):
                    self._answer_size(command, post)
                    continue
                started = time.perf_counter()
                answer = self._triage.plan(command.view)
                if self._closed.is_set():
                    return
                self.decision_s.append(time.perf_counter() - started)
                if isinstance(answer, Plan):
                    plan = answer.made_of(current_allocations(command.view), plan)
                    post(PlanReady(at=self._now(), round=command.round, plan=plan))
                else:
                    logger.warning(
                        "round %d has no plan: %s", command.round, answer.why
                    )
                    post(
                        PlanFailed(
                            at=self._now(), round=command.round, error=answer.why
                        )
                    )
        finally:
            self._kill()

    def _answer_size(self, command: Size, post: Post) -> None:
        view = command.view
        question = _SizeQuestion(pools=view.pools, spent=view.spent)
        answer = self._ask_process(view.cluster, question, "the sizer")
        if self._closed.is_set():
            return
        at = self._now()
        number = command.number
        if isinstance(answer, Sizing):
            post(SizingReady(at=at, number=number, sizing=answer))
            return
        why = answer.why if isinstance(answer, NoPlan) else f"it answered {answer!r}"
        logger.warning("the number of nodes stays as it is: %s", why)
        post(SizingFailed(at=at, number=number, error=why))

    def close(self) -> None:
        """Make `run` return soon, whatever the policy is at."""
        self._closed.set()
        self._questions.put(None)
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, view: ClusterView, probe: bool) -> Plan | NoPlan:
        """Return the policy's plan, or why there is none."""
        answer = self._ask_process(view, probe, "the policy")
        assert not isinstance(answer, Sizing)
        return answer

    def _ask_process(
        self, view: ClusterView, question: bool | _SizeQuestion, asked: str
    ) -> Plan | Sizing | NoPlan:
        """Return the answer, or why there is none. asked: the policy or the sizer."""
        connection = self._connect()
        overdue = threading.Event()
        if self._closed.is_set():
            return NoPlan(why="the scheduler is stopping", of_jobs=False)
        try:
            if not self._comes_up(connection):
                self._kill()
                why = f"the policy's process was not up after {START_TIMEOUT_S:g} s"
                return NoPlan(why=why, of_jobs=False)
            with self._ends_it(overdue):
                _send_view(connection, view)
                connection.send(question)
                answer: Plan | Sizing | NoPlan = connection.recv()
        except (EOFError, ConnectionError):
            exit_code = self._kill()
            if self._closed.is_set():  # it was ended
                return NoPlan(why="the scheduler is stopping", of_jobs=False)
            if overdue.is_set():
                return self._too_slow(asked)
            return NoPlan(why=f"{asked}'s process died with exit code {exit_code}")
        if overdue.is_set():
            self._kill()
            return self._too_slow(asked)
        return answer

    def _comes_up(self, connection: Connection) -> bool:
        """Wait until the policy's process takes questions; return whether it does."""
        until = time.monotonic() + START_TIMEOUT_S
        try:
            while not self._came_up:
                if not connection.poll(max(until - time.monotonic(), 0.0)):
                    return False
                if connection.recv() == COMPILES:
                    self._is_compiling = True
                else:
                    self._came_up = True
        finally:
            self._is_compiling = False
        return True

    def _too_slow(self, asked: str) -> NoPlan:
        why = f"{asked} took longer than {self._timeout_s:g} s and was ended"
        return NoPlan(why=why, of_jobs=False)

    @contextlib.contextmanager
    def _ends_it(self, overdue: threading.Event) -> Iterator[None]:
        """Kill the policy's process if the block takes longer than its time, and set
        `overdue`.

        A process that is stopped (SIGSTOP, a debugger) takes no question: to send one
        of thousands of jobs waits for it as well as to receive.
        """
        process = self._process
        assert process is not None

        def end() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(self._timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _connect(self) -> Connection:
        """Return the way to the policy's process, which is started if there is none."""
        if self._connection is None:
            # Not a fork: this process has threads, and locks that a child would find
            # taken for ever.
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, self._factory, self._sizer),
                daemon=True,
            )
            process.start()
            # Known to `close` from here on only: one that is being started cannot be
            # ended.
            self._process = process
            self._came_up = False
            theirs.close()
        return self._connection

    def _kill(self) -> int | None:
        """End the policy's process; return its exit code."""
        if self._process is None or self._connection is None:
            return None
        self._connection.close()
        # A process that died by itself is given time to say how.
        self._process.join(timeout=0.1)
        self._process.kill()
        self._process.join()
        exit_code = self._process.exitcode
        self._process = self._connection = None
        return exit_code


def _serve(
    connection: Connection, factory: PolicyFactory, new_sizer: SizerFactory | None
) -> None:
    # Ctrl-C in a terminal reaches this process too; it is the scheduler that decides
    # when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The first decision after an installation compiles kernels. Better now, by an
    # instance that is thrown away, than while the first job waits.
    tells = contextlib.suppress(OSError)

    def tell_compiling() -> None:
        with tells:
            connection.send(COMPILES)

    with contextlib.suppress(Exception), when_compiling(tell_compiling):
        rehearse(factory())
    policy = factory()
    sizer = None if new_sizer is None else new_sizer()
    with contextlib.suppress(
        EOFError, ConnectionError
    ):  # the scheduler ended, perhaps by kill -9
        connection.send(True)
        while True:
            view = _receive_view(connection)
            question: bool | _SizeQuestion = connection.recv()
            if isinstance(question, _SizeQuestion):
                connection.send(_size(sizer, view, question))
                continue
            connection.send(_allocate(_copied(policy) if question else policy, view))


def _send_view(connection: Connection, view: ClusterView) -> None:
    """Send a view in pieces, because pickling thousands of jobs takes long."""
    connection.send((replace(view, jobs=()), len(view.jobs)))
    for first in range(0, len(view.jobs), JOBS_PER_PIECE):
        connection.send(view.jobs[first : first + JOBS_PER_PIECE])
        give_way()


def _receive_view(connection: Connection) -> ClusterView:
    message: tuple[ClusterView, int] = connection.recv()
    view, num_jobs = message
    jobs: list[JobView] = []
    while len(jobs) < num_jobs:
        jobs += connection.recv()
    return replace(view, jobs=tuple(jobs))


def _copied(policy: Policy) -> Policy:
    try:
        return copy.deepcopy(policy)
    except Exception:  # noqa: BLE001 - it holds something that has no copy
        return policy


def _allocate(policy: Policy, view: ClusterView) -> Plan | NoPlan:
    try:
        return decide(policy, view)
    except Exception as error:  # noqa: BLE001 - a policy is outside: whatever it raises is its failure
        return NoPlan(why=describe(error))


def _size(
    sizer: Sizer | None, view: ClusterView, question: _SizeQuestion
) -> Sizing | NoPlan:
    if sizer is None:
        return NoPlan(why="no sizer is chosen")
    seen = SizingView(cluster=view, pools=question.pools, spent=question.spent)
    try:
        return sizer.size(seen)
    except Exception as error:  # noqa: BLE001 - a sizer is outside, like a policy
        return NoPlan(why=describe(error))
