"""The service in this process: a real loop and journal, and an obedient executor."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastapi.testclient import TestClient

from coadapt.core.commands import JobCommand, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import Outcome, ReplicasExited, ReplicasStarted
from coadapt.core.scheduler import Scheduler
from coadapt.model import JobId, Node
from coadapt.policies import create_policy
from coadapt.runtime.history import Recorder
from coadapt.runtime.journal import Journal
from coadapt.runtime.ports import Post, Store
from coadapt.runtime.solver import InlineSolver
from coadapt.runtime.wall_clock import WallClock
from coadapt.service.app import Service, create_app
from coadapt.service.live_loop import LiveLoop

TOKEN = "open-sesame"
NODE = Node(id="here", num_gpus=4, gpu_type="cpu")
CONFIG = SchedulerConfig(round_s=1.0, reaction_s=0.0)


class ObedientExecutor:
    """Says, on threads of its own, that everything started or stopped as ordered; keeps the orders."""

    resizes_in_place = False

    def __init__(self, now: Callable[[], float]) -> None:
        self.orders: list[JobCommand] = []
        self._now = now

    def execute(self, command: JobCommand, post: Post) -> None:
        self.orders.append(command)
        at, job, generation = self._now(), command.job, command.generation
        answer = (
            ReplicasExited(at=at, job=job, generation=generation, outcome=Outcome.STOPPED)
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
    ) -> None:
        self.folder = folder
        self.store = store or Journal.at_path(folder / "journal.sqlite")
        self.clock = WallClock()
        self.executor = ObedientExecutor(self.clock.now)
        self.recorder = Recorder()
        self.handled_on: list[int] = []
        self.loop = LiveLoop(
            Scheduler(),
            clock=self.clock,
            executor=self.executor,
            store=self.store,
            solver=InlineSolver(create_policy("fifo"), self.clock.now),
            observers=(self.recorder, lambda *_: self.handled_on.append(threading.get_ident())),
        )
        self.loop.recover([node], config)

    def log_files(self, job: JobId, rank: int) -> Sequence[Path]:
        return sorted((self.folder / "logs").glob(f"{job}-*-{rank}.log"))

    @property
    def service(self) -> Service:
        return Service(
            loop=self.loop,
            store=self.store,
            first_config=SchedulerConfig(),
            recorder=self.recorder,
            log_files=self.log_files,
            policy="fifo",
            decision_s=[0.01, 0.03],
            token=TOKEN,
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

    def client(self, token: str | None = TOKEN) -> TestClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return TestClient(create_app(self.service), headers=headers)
