"""The service in this process: a real loop and journal, and an obedient executor."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from fastapi import FastAPI
from fastapi.testclient import TestClient

from coadapt.core.commands import JobCommand, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Outcome, ReplicasExited, ReplicasStarted
from coadapt.core.scheduler import Scheduler
from coadapt.executors.processes.cluster import node_events
from coadapt.executors.processes.records.job_files import StateDirFiles
from coadapt.model import JobId, Node, NodeId
from coadapt.model.prices import Prices
from coadapt.policies import create_policy
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal
from coadapt.runtime.ports import LogPart, Post, Store
from coadapt.runtime.retention import Retention
from coadapt.runtime.solver import InlineSolver
from coadapt.runtime.wall_clock import WallClock
from coadapt.service.app import Service, create_app
from coadapt.service.auth import Credentials
from coadapt.service.figures.latencies import Latencies
from coadapt.service.figures.tally import Tally
from coadapt.service.live_loop import LiveLoop
from coadapt.service.page.decisions import DecisionLog
from coadapt.service.page.questions import Questions
from coadapt.service.plan_watch import PlanWatch

TOKEN = "open-sesame"
NODE = Node(id="here", num_gpus=4, gpu_type="cpu")
PATIENCE_S = 60.0
CONFIG = SchedulerConfig(round_s=1.0, reaction_s=0.0)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class ObedientExecutor:
    """Says, on threads of its own, that everything started or stopped as ordered; keeps
    the orders.
    """

    rescales_in_place = True

    def __init__(self, now: Callable[[], float]) -> None:
        self.orders: list[JobCommand] = []
        self._now = now

    def execute(self, command: JobCommand, post: Post) -> None:
        self.orders.append(command)
        at = self._now()
        job = command.job
        generation = command.generation
        answer = (
            ReplicasExited(
                at=at, job=job, generation=generation, outcome=Outcome.STOPPED
            )
            if isinstance(command, Stop)
            else ReplicasStarted(at=at, job=job, generation=generation)
        )
        threading.Timer(0.02, post, (answer,)).start()


class InProcess:
    """One run of the service over the journal in `folder`."""

    def __init__(
        self,
        folder: Path,
        store: Store | None = None,
        node: Node = NODE,
        config: SchedulerConfig = CONFIG,
        policy: str = "fifo",
        prices: Prices | None = None,
    ) -> None:
        self.folder = folder
        self.store = store or Journal.at_path(folder / "journal.sqlite")
        self.clock = WallClock()
        self.executor = ObedientExecutor(self.clock.now)
        self.index = JobIndex(folder / "jobs.sqlite")
        self.tally = Tally()
        self.decisions = DecisionLog()
        self.questions: Questions | None = None
        self.no_plan_yet = ""
        self.latencies = Latencies(self.tally.registry)
        self.plans = PlanWatch()
        self.latencies.watch_journal(folder / "journal.sqlite")
        writer = IndexWriter(self.index, self.store.numbered_events, SchedulerConfig())
        token_file = folder / "token"
        if not token_file.exists():
            token_file.touch(0o600)
            token_file.write_text(TOKEN)
        self.credentials = Credentials.load(token_file, folder / "job-key")
        self.handled_on: list[int] = []
        self.loop = LiveLoop(
            Scheduler(),
            clock=self.clock,
            executor=self.executor,
            store=self.store,
            solver=InlineSolver(create_policy(policy), self.clock.now),
            restored=writer.restored,
            waited=self.latencies.lag,
            observers=(
                writer,
                self.tally,
                self.decisions,
                self.plans,
                lambda *_: self.handled_on.append(threading.get_ident()),
            ),
        )

        writer.number = self.loop.num_events

        def announce(known: Mapping[NodeId, Node], post: Post) -> None:
            for event in node_events(known, [node], self.clock.now()):
                post(event)

        self.to_come: tuple[Node, ...] = ()
        self.loop.recover(config, announce, prices)
        self.loop.read(self.tally.begin)
        self.loop.read(self.plans.begin)
        self.loop.watch_plans(self.plans)

    def read_log(self, job: JobId, rank: int, offset: int) -> LogPart:
        paths = sorted((self.folder / "logs").glob(f"{job}-*-{rank}.log"))
        data = b"".join(path.read_bytes() for path in paths)[offset:]
        return LogPart(data=data, next_offset=offset + len(data))

    @property
    def service(self) -> Service:
        return Service(
            loop=self.loop,
            index=self.index,
            read_log=self.read_log,
            policy="fifo",
            retention=Retention(
                self.index, cast(Journal, self.store), StateDirFiles(self.folder)
            ),
            tally=self.tally,
            latencies=self.latencies,
            credentials=self.credentials,
            to_come=partial(tuple, self.to_come),
            decisions=self.decisions,
            questions=self.questions,
            why_no_plan_yet=lambda: self.no_plan_yet,
            plans=self.plans,
        )

    @contextmanager
    def turning(self) -> Iterator[None]:
        """Turn the loop inside the block."""
        thread = threading.Thread(target=self.loop.run)
        thread.start()
        try:
            yield
        finally:
            self.loop.close()
            thread.join()

    def client(
        self, token: str | None = TOKEN, app: FastAPI | None = None
    ) -> TestClient:
        """Return a client with `token`, of a new application or of `app`."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return TestClient(app or create_app(self.service), headers=headers)
