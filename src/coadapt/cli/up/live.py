"""The composition root of the live scheduler: its parts are wired here, and live in one
thread each.
"""

import gc
import logging
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import typer

from coadapt import __version__
from coadapt.cli.exit_codes import EXIT_BROKEN
from coadapt.cli.local_socket import listening_here
from coadapt.cli.research.markets import DEFAULT_SIZER
from coadapt.cli.state_dir import StateDir
from coadapt.cli.up.demand import Demand
from coadapt.cli.up.housekeeping import Housekeeping
from coadapt.core.commands import Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.lifecycle import ENDED, HOLDING
from coadapt.core.node_buying import SIZING_S
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.executors import Connect, Host, prepare_executor
from coadapt.executors.options import OptionText
from coadapt.executors.processes.records.job_files import StateDirFiles
from coadapt.model import InputError
from coadapt.model.bounds import printable
from coadapt.model.errors import StoreError, reason_of
from coadapt.model.offer import Offer
from coadapt.model.prices import Prices
from coadapt.policies import create_policy, policy_options, require_packages
from coadapt.policies.sizers import create_sizer
from coadapt.runtime.background_snapshots import BackgroundSnapshots
from coadapt.runtime.disk_reserve import DiskReserve, is_disk_full
from coadapt.runtime.index_writer import IndexWriter
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.journal import Journal
from coadapt.runtime.ports import BuysNodes, LiveExecutor
from coadapt.runtime.process_solver import ProcessSolver
from coadapt.runtime.retention import Keep, Retention
from coadapt.runtime.runtime import Observer
from coadapt.runtime.upkeep.journal_retry import JournalRetry
from coadapt.runtime.upkeep.journal_upgrade import upgrade
from coadapt.runtime.wall_clock import WallClock
from coadapt.service.app import Service
from coadapt.service.auth import Credentials
from coadapt.service.change_log import ChangeLog
from coadapt.service.figures.budget_log import BudgetLog
from coadapt.service.figures.latencies import Latencies
from coadapt.service.figures.tally import Tally
from coadapt.service.live_loop import LiveLoop
from coadapt.service.page.decisions import DecisionLog
from coadapt.service.page.questions import Questions
from coadapt.service.plan_watch import PlanWatch
from coadapt.service.server import http_server
from coadapt.service.studies.driver import Studies
from coadapt.service.studies.figures import TrialFigures

DEFAULT_PORT = 8471
# Where a free port is looked for: below those that the kernel gives to outgoing
# connections (from 32,768 on Linux). One of these could be taken while the scheduler is
# down, and running jobs report to its port.
FREE_PORTS = range(20_000, 32_000)
FREE_PORTS_TRIED = 100
OTHER_PORT = "--port 0 takes a free one, which running jobs learn when they restart"
LISTEN_BACKLOG = 128
JOBS_NAMED = 5  # in an error's line
TURN_S = 0.001  # of a thread while others wait; Python's own is 0.005

# Signals that end the scheduler in order, and what each is in words.
ENDS_BY = {
    signal.SIGINT: "Ctrl-C (SIGINT)",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}

logger = logging.getLogger("coadapt")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The settings of `coadapt up`; port None: the last run's on this state directory,
    else the default.
    """

    state_dir: StateDir
    executor: str
    executor_options: Mapping[str, OptionText]
    policy: str
    config: SchedulerConfig
    prices: Prices | None
    stop_grace_s: float
    host: str
    port: int | None
    keep: Keep
    offers: Sequence[Offer] = ()
    sizer: str = DEFAULT_SIZER
    sizing_s: float = SIZING_S


@dataclass(frozen=True, slots=True)
class Books:
    """What the scheduler keeps on disk. retry: what tries the journal again while it
    cannot be written; writer: what writes the index.
    """

    retry: JournalRetry
    journal: Journal
    index: JobIndex
    writer: IndexWriter
    retention: Retention


@dataclass(frozen=True, slots=True)
class Views:
    """Figures of the running scheduler, from which the HTTP API answers."""

    change_log: ChangeLog
    tally: Tally
    decisions: DecisionLog
    latencies: Latencies
    trial_figures: TrialFigures
    plans: PlanWatch

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Return those that watch the loop's events."""
        return (
            self.change_log,
            BudgetLog(),
            self.tally,
            self.decisions,
            self.trial_figures,
            self.plans,
        )


def serve(settings: LiveSettings) -> None:
    """Run until SIGINT or SIGTERM; exit with EXIT_BROKEN if a part of the scheduler
    breaks.

    Raises InputError before anything is changed.
    """
    policy_options(settings.policy)
    require_packages(settings.policy)
    create_sizer(settings.sizer)
    connect = prepare_executor(
        settings.executor, settings.executor_options, settings.offers
    )
    state_dir = settings.state_dir
    state_dir.prepare()
    with state_dir.locked():
        credentials = Credentials.load(state_dir.token, state_dir.job_key)
        state_dir.old_reserve.unlink(missing_ok=True)
        last = state_dir.last_run()
        ports = ports_to_try(settings.port, None if last is None else last["url"])
        with (
            listening(settings.host, ports) as tcp,
            listening_here(state_dir.socket) as here,
            _disk_has_room(state_dir),
        ):
            _log_to_terminal()
            if settings.port == 0 and last is not None:
                _tell_of_other_port(tcp, ports[0])
            broken = _live(settings, connect, credentials, [tcp, here])
    if broken:
        raise typer.Exit(EXIT_BROKEN)


def _live(
    settings: LiveSettings,
    connect: Connect,
    credentials: Credentials,
    sockets: list[socket.socket],
) -> bool:
    """Wire the parts and run them until an order to stop; return whether one broke.
    Replicas report to socket 0.
    """
    state_dir = settings.state_dir
    url = _url(sockets[0])
    clock = WallClock()
    demand = Demand()
    executor = connect(_host(settings, credentials, url, clock, demand))
    solver = _solver(settings, clock)
    books = _open_books(state_dir, executor)
    views = _open_views(state_dir, books)
    store = BackgroundSnapshots(books.journal, views.latencies.commit)
    reserve = DiskReserve(state_dir.files_with_room())
    reserve.look()
    loop = LiveLoop(
        Scheduler(state_dir.first_config()),
        clock=clock,
        executor=executor,
        store=store,
        solver=solver,
        observers=(books.writer, *views.observers),
        restored=books.writer.restored,
        waited=views.latencies.lag,
    )
    demand.loop = loop
    _watch(loop, books, views)
    _recover(settings, loop, executor, books, solver)
    housekeeping = Housekeeping(
        partial(books.retention.steps, settings.keep), clock.now
    )
    service = _service(
        settings, credentials, loop, executor, solver=solver, books=books, views=views
    )
    studies = service.studies
    questions = service.questions
    assert studies is not None
    assert questions is not None
    server = http_server(service)
    _come_up(settings, url, loop, views)
    parts: dict[str, Callable[[], None]] = {
        "loop": loop.run,
        "executor": partial(executor.run, loop.post),
        "solver": solver.run,
        "disk": reserve.run,
        "housekeeping": housekeeping.run,
        "plans": views.plans.run,
        "studies": studies.run,
        "http": partial(server.run, sockets=sockets),
    }
    ends = [
        part.close
        for part in (
            questions,
            studies,
            loop,
            books.retry,
            executor,
            solver,
            reserve,
            housekeeping,
            views.plans,
        )
    ]

    def close() -> None:
        server.should_exit = True
        call_all(ends)

    broken = run_parts(parts, close)
    return _close(books, store, reserve) or broken


def _solver(settings: LiveSettings, clock: WallClock) -> ProcessSolver:
    """Return what runs the policy, and the sizer where nodes are bought."""
    sizer = partial(create_sizer, settings.sizer) if settings.offers else None
    return ProcessSolver(
        partial(create_policy, settings.policy), clock.now, sizer=sizer
    )


def _watch(loop: LiveLoop, books: Books, views: Views) -> None:
    """Let the loop's notices name a journal that is away, and plans that do not
    come.
    """
    loop.watch_trouble(books.retry.trouble)
    loop.watch_plans(views.plans)


def _close(books: Books, store: BackgroundSnapshots, reserve: DiskReserve) -> bool:
    """Close what is on disk; see `close_files`."""
    closes = [books.index.close, store.close, books.journal.close, reserve.release]
    return close_files(closes)


def _open_books(state_dir: StateDir, executor: LiveExecutor) -> Books:
    """Open the journal, of an earlier version too, and the index of jobs.

    Raises InputError if the journal is lost while its replicas run.
    """
    if (kept := upgrade(state_dir.journal)) is not None:
        logger.warning(
            "the journal was converted from an earlier version; the old file "
            "is kept as %s",
            kept,
        )
    retry = JournalRetry()
    journal = Journal.at_path(state_dir.journal, retry)
    _check_not_lost(journal, executor, state_dir.replaced_journals())
    index = _open_index(state_dir, journal)
    writer = IndexWriter(index, journal.whole, state_dir.first_config())
    retention = Retention(index, journal, StateDirFiles(state_dir.path))
    return Books(retry, journal, index, writer, retention)


def _recover(
    settings: LiveSettings,
    loop: LiveLoop,
    executor: LiveExecutor,
    books: Books,
    solver: ProcessSolver,
) -> None:
    """Restore the state of the last run, and end replicas that it does not know."""
    if isinstance(executor, BuysNodes):
        loop.buy_nodes(solver.size, executor)
    books.writer.number = loop.num_events
    spare_readers()
    loop.recover(
        settings.config,
        executor.announce,
        settings.prices,
        executor.offers if isinstance(executor, BuysNodes) else (),
        settings.sizing_s,
    )
    spare_readers()
    _stop_strangers(executor, loop)


def _open_views(state_dir: StateDir, books: Books) -> Views:
    tally = Tally()
    latencies = Latencies(tally.registry)
    latencies.watch_journal(state_dir.journal)
    latencies.watch_trouble(books.retry.seconds)
    return Views(
        ChangeLog(), tally, DecisionLog(), latencies, TrialFigures(), PlanWatch()
    )


def _service(
    settings: LiveSettings,
    credentials: Credentials,
    loop: LiveLoop,
    executor: LiveExecutor,
    *,
    solver: ProcessSolver,
    books: Books,
    views: Views,
) -> Service:
    return Service(
        loop=loop,
        index=books.index,
        read_log=executor.log,
        policy=settings.policy,
        retention=books.retention,
        tally=views.tally,
        latencies=views.latencies,
        credentials=credentials,
        to_come=lambda: executor.to_come,
        shares_disk=executor.shares_disk,
        engine_trouble=lambda: executor.trouble,
        nodes=executor,
        decisions=views.decisions,
        plans=views.plans,
        studies=Studies(
            loop,
            books.index,
            views.trial_figures,
            settings.state_dir.studies,
            StateDirFiles(settings.state_dir.path).remove_checkpoints,
        ),
        questions=Questions(what_if_command(settings.state_dir), time.time),
        why_no_plan_yet=solver.why_no_plan_yet,
    )


def what_if_command(state_dir: StateDir) -> list[str]:
    """Return the command that answers a what-if question of the page."""
    module = "coadapt.cli.forecast.page_question"
    return [sys.executable, "-m", module, str(state_dir.path)]


def close_files(closes: Sequence[Callable[[], None]]) -> bool:
    """Call all of them in order; return whether the disk had no room for what was still
    to be written.
    """
    try:
        call_all(closes)
    except Exception as error:
        if not is_disk_full(error):
            raise
        logger.error(
            "the disk is full: the history of jobs is rebuilt from the journal at "
            "the next start"
        )
        return True
    return False


def call_all(closes: Sequence[Callable[[], None]]) -> None:
    """Call all of them in order, whatever one raises: a part that is not asked to end
    never does.
    """
    with ExitStack() as stack:
        for close in reversed(closes):  # the last one that it is given comes first
            stack.callback(close)


def spare_readers() -> None:
    """Make garbage collection rare and leave out present objects; let threads take
    short turns.

    The scheduler's state has no cycles, and at 10,000 jobs a full collection takes
    0.1 s, during which no request is answered. A request needs several turns of its
    thread while a round or a snapshot is under way. Call this before the state is read
    back, which a dozen collections made half as long again, and once after it.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    sys.setswitchinterval(TURN_S)


def _host(
    settings: LiveSettings,
    credentials: Credentials,
    url: str,
    clock: WallClock,
    demand: Demand,
) -> Host:
    return Host(
        state_dir=settings.state_dir.path,
        url=url,
        job_token=credentials.job_token,
        stop_grace_s=settings.stop_grace_s,
        now=clock.now,
        wanted_slots=demand,
        slot_use=demand.slot_use,
    )


class _PrintableFormatter(logging.Formatter):
    """Lines that cannot drive the operator's terminal, whatever a job wrote last before
    it failed.
    """

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _log_to_terminal() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        _PrintableFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _open_index(state_dir: StateDir, journal: Journal) -> JobIndex:
    index = JobIndex(state_dir.index)
    index.follow_journal(journal.last_number)
    return index


def _come_up(settings: LiveSettings, url: str, loop: LiveLoop, views: Views) -> None:
    """Write where the scheduler answers, for the verbs and for the next run; print the
    banner. Changes from now on are logged and counted.
    """
    settings.state_dir.write_connection(url, settings.policy)
    _print_banner(settings, url, loop)
    views.change_log.speak()
    loop.read(views.tally.begin)
    loop.read(views.plans.begin)


def _url(server_socket: socket.socket) -> str:
    address, port = server_socket.getsockname()[:2]
    return (
        f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    )


def run_parts(
    parts: Mapping[str, Callable[[], None]], close: Callable[[], None]
) -> bool:
    """Run each part in a thread until a signal comes or one of them ends; return
    whether one broke.

    A SIGHUP that is ignored already, as under `nohup`, stays so.

    A part that breaks takes the scheduler down: the jobs run on, and a restart finds
    everything on disk.
    """
    over = threading.Event()
    broken = threading.Event()

    def keep(name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            if is_disk_full(error):
                logger.error(
                    "the disk is full; the scheduler stops, its jobs keep running: %s",
                    error,
                )
            elif isinstance(error, StoreError):
                logger.error("%s; the scheduler stops, its jobs keep running", error)
            else:
                logger.exception(
                    "the %s thread failed; the scheduler stops, its jobs keep running",
                    name,
                )
            broken.set()
        finally:
            over.set()

    came: list[signal.Signals] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        came.append(signal.Signals(number))
        over.set()

    for number in ENDS_BY:
        # `nohup` starts a process that ignores SIGHUP, and means it.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    threads = [
        threading.Thread(target=keep, args=item, name=item[0]) for item in parts.items()
    ]
    for thread in threads:
        thread.start()
    over.wait()
    if came:
        logger.info("%s: the scheduler stops, its jobs keep running", ENDS_BY[came[0]])
    try:
        close()
    finally:
        for thread in threads:
            thread.join()
    return broken.is_set()


@contextmanager
def _disk_has_room(state_dir: StateDir) -> Iterator[None]:
    """Turn what a full disk raises while the scheduler comes up into one line."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise InputError(
            "--state", str(state_dir.path), "a directory on a disk with some room"
        ) from None


def ports_to_try(port: int | None, last_url: str | None) -> list[int]:
    """Return where to listen, in order of preference: where the last run did, since
    replicas that run on still report there.

    port: that of the settings, None where none is given. last_url: of the last run on
    this state directory, None for the first.
    """
    if port:
        return [port]
    last = [] if last_url is None else [int(last_url.rpartition(":")[2])]
    if port is None and last:
        return last
    first = [DEFAULT_PORT] if port is None else last
    free = random.SystemRandom().sample(FREE_PORTS, FREE_PORTS_TRIED)
    return [*first, *free, 0]


def _tell_of_other_port(tcp: socket.socket, last: int) -> None:
    """Warn if the port of the last run was not to be had."""
    now = tcp.getsockname()[1]
    if now != last:
        logger.warning(
            "port %d of the last run is in use, so this scheduler listens on %d; jobs "
            "that run already report to it once they restart",
            last,
            now,
        )


@contextmanager
def listening(host: str, ports: Sequence[int]) -> Iterator[socket.socket]:
    """Listen on the first of `ports` that is free; 0 is any. Raises InputError if none
    is.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off: it cost 40 ms per
    # answer.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as server_socket:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for port in ports:
            try:
                server_socket.bind((host, port))
                break
            except OSError as error:
                if port == ports[-1]:
                    asked = f"{host}:{port}"
                    allowed = (
                        f"an address to listen on ({reason_of(error)}); {OTHER_PORT}"
                    )
                    raise InputError("--host, --port", asked, allowed) from None
        server_socket.listen(LISTEN_BACKLOG)
        yield server_socket


def _check_not_lost(
    journal: Journal, executor: LiveExecutor, replaced: Sequence[Path]
) -> None:
    """Raise StoreError if jobs run here but the journal is empty: a new one would have
    them all stopped. Also if a restore put one aside (`replaced`) and broke off.
    """
    if replaced and journal.last_number == 0:
        journal.close()
        raise StoreError(
            f"the journal is empty, and {replaced[-1]} was put aside: a restore broke "
            f"off; repeat it with: coadapt restore FILE (to start without jobs, move "
            f"that file away)"
        )
    running = [job for job, _ in executor.adopted()]
    if running and journal.last_number == 0:
        named = ", ".join(running[:JOBS_NAMED]) + (
            ", …" if len(running) > JOBS_NAMED else ""
        )
        journal.close()
        raise StoreError(
            f"the journal is empty, but {len(running)} of its jobs run here "
            f"({named}): bring back the file "
            "from a backup, or end them with: coadapt doctor --end-jobs"
        )


def _stop_strangers(executor: LiveExecutor, loop: LiveLoop) -> None:
    """End what runs here although the journal, perhaps a new one, knows nothing of
    it.
    """

    def strangers(state: SchedulerState) -> list[Stop]:
        return [
            Stop(job=job, generation=generation)
            for job, generation in executor.adopted()
            if job not in state.jobs or state.jobs[job].state in ENDED
        ]

    for order in loop.read(strangers):
        text = (
            f"job {order.job} generation {order.generation} runs but is not in the "
            f"journal: stopped"
        )
        logger.warning("%s", text)
        loop.notice(text)
        executor.execute(order, lambda _: None)


def _print_banner(settings: LiveSettings, url: str, loop: LiveLoop) -> None:
    config = settings.config
    nodes = loop.read(
        lambda state: sorted(state.nodes.values(), key=lambda node: node.id)
    )
    states = loop.read(lambda state: [job.state for job in state.jobs.values()])
    num_active = sum(state not in ENDED for state in states)
    num_held = sum(state in HOLDING for state in states)
    reaction = (
        ""
        if config.reaction_s is None
        else f", {config.reaction_s:g} s after an arrival or exit"
    )
    kinds = (
        ", ".join(f"{node.num_gpus} x {node.gpu_type} on {node.id}" for node in nodes)
        or "none yet"
    )
    typer.echo(f"coadapt {__version__}")
    typer.echo(f"  url      {url}")
    typer.echo(f"  state    {settings.state_dir.path}")
    typer.echo(f"  policy   {settings.policy}, every {config.round_s:g} s{reaction}")
    typer.echo(f"  slots    {kinds}")
    if settings.offers:
        names = ", ".join(offer.id for offer in settings.offers)
        each = f"every {settings.sizing_s:g} s"
        typer.echo(f"  nodes    {settings.sizer} buys of {names}, {each}")
    if states:
        typer.echo(
            f"  jobs     {num_active} of {len(states)} not ended, {num_held} of them "
            f"taken over"
        )
    typer.echo(
        "Ctrl-C stops the scheduler; its jobs keep running, and the next `coadapt up` "
        "takes them over."
    )
