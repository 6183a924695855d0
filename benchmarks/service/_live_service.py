"""The scheduler service as it runs, in a process of its own, over an executor that only
says yes.

python -m benchmarks.service._live_service FOLDER    serves the state directory FOLDER
until SIGTERM

What `coadapt up` wires (cli/up/live.py), but for processes: replicas start and
stop at once.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from coadapt.cli.local_socket import listening_here
from coadapt.cli.state_dir import StateDir
from coadapt.cli.up.live import listening, spare_readers, what_if_command
from coadapt.core.commands import JobCommand, RetractRescale, Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.events import (
    Event,
    Outcome,
    ReplicasExited,
    ReplicasKept,
    ReplicasStarted,
)
from coadapt.core.scheduler import Scheduler
from coadapt.executors.processes.records.job_files import StateDirFiles
from coadapt.model import JobId, Node, NodeId
from coadapt.policies import create_policy
from coadapt.runtime.background_snapshots import BackgroundSnapshots
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal
from coadapt.runtime.ports import LogPart, Post
from coadapt.runtime.process_solver import ProcessSolver
from coadapt.runtime.retention import Retention
from coadapt.runtime.wall_clock import WallClock
from coadapt.service.app import Service
from coadapt.service.auth import Credentials
from coadapt.service.figures.latencies import Latencies
from coadapt.service.figures.tally import Tally
from coadapt.service.live_loop import LiveLoop
from coadapt.service.page.questions import Questions
from coadapt.service.server import http_server

POLICY = "fifo"
# A round falls into each measured stretch, as it does in a minute of a live scheduler.
CONFIG = SchedulerConfig(round_s=20.0, reaction_s=None)


class YesExecutor:
    """Answers each order at once, from a thread of its own."""

    rescales_in_place = True

    def __init__(self, clock: WallClock) -> None:
        self._clock = clock
        self._orders: queue.SimpleQueue[JobCommand | None] = queue.SimpleQueue()

    def execute(self, command: JobCommand, post: Post) -> None:  # noqa: ARG002 - `run` has its own
        self._orders.put(command)

    @property
    def aside(self) -> Mapping[NodeId, str]:
        return {}

    def take_back(self, node: NodeId) -> bool:  # noqa: ARG002 - none is set aside
        return False

    def adopted(self) -> Sequence[tuple[JobId, int]]:
        return []

    def announce(self, known: Mapping[NodeId, Node], post: Post) -> None:
        """The nodes are those of the journal."""

    def run(self, post: Post) -> None:
        while (order := self._orders.get()) is not None:
            post(self._answer(order))

    def close(self) -> None:
        self._orders.put(None)

    def log(self, job: JobId, rank: int, offset: int) -> LogPart:  # noqa: ARG002 - nothing was printed
        return LogPart(data=b"", next_offset=offset)

    def _answer(self, order: JobCommand) -> Event:
        at = self._clock.now()
        job = order.job
        generation = order.generation
        if isinstance(order, Stop):
            return ReplicasExited(
                at=at, job=job, generation=generation, outcome=Outcome.STOPPED
            )
        kind = ReplicasKept if isinstance(order, RetractRescale) else ReplicasStarted
        return kind(at=at, job=job, generation=generation)


def serve(folder: Path) -> None:
    """Serve the state directory until SIGTERM."""
    state_dir = StateDir(folder)
    clock = WallClock()
    journal = Journal.at_path(state_dir.journal)
    index = JobIndex(state_dir.index)
    writer = IndexWriter(index, journal.whole, CONFIG)
    tally = Tally()
    latencies = Latencies(tally.registry)
    store = BackgroundSnapshots(journal, latencies.commit)
    executor = YesExecutor(clock)
    solver = ProcessSolver(partial(create_policy, POLICY), clock.now)
    loop = LiveLoop(
        Scheduler(CONFIG),
        clock=clock,
        executor=executor,
        store=store,
        solver=solver,
        observers=(writer, tally),
        restored=writer.restored,
        waited=latencies.lag,
    )
    writer.number = loop.num_events
    spare_readers()
    loop.recover(CONFIG, executor.announce)
    spare_readers()
    loop.read(tally.begin)
    service = Service(
        loop=loop,
        index=index,
        read_log=executor.log,
        policy=POLICY,
        retention=Retention(index, journal, StateDirFiles(folder)),
        tally=tally,
        latencies=latencies,
        credentials=Credentials.load(state_dir.token, state_dir.job_key),
        questions=Questions(what_if_command(state_dir), clock.now),
    )
    with listening("127.0.0.1", [0]) as tcp, listening_here(state_dir.socket) as here:
        address = {
            "url": f"http://127.0.0.1:{tcp.getsockname()[1]}",
            "pid": os.getpid(),
            "policy": POLICY,
        }
        state_dir.connection.write_text(json.dumps(address))
        server = http_server(service)
        parts = (loop.run, partial(executor.run, loop.post), solver.run)
        threads = [threading.Thread(target=part) for part in parts]
        for thread in threads:
            thread.start()
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        server.run(sockets=[tcp, here])
        for each in (loop, executor, solver):
            each.close()
        for thread in threads:
            thread.join()
    for closing in (index, store, journal):
        closing.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
