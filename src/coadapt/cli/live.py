"""The composition root of the live scheduler: its parts are wired here, and live in one thread each."""

import fcntl
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import typer
import uvicorn

from coadapt import __version__
from coadapt.cli.state_dir import StateDir
from coadapt.core.commands import Stop
from coadapt.core.config import SchedulerConfig
from coadapt.core.lifecycle import ENDED, HOLDING
from coadapt.core.scheduler import Scheduler
from coadapt.core.state import SchedulerState
from coadapt.executors.local import LocalConfig, LocalExecutor
from coadapt.executors.machine import Machine, cpu_machine, nvidia_machine
from coadapt.model import InputError
from coadapt.policies import create_policy, policy_options
from coadapt.runtime.history import Recorder
from coadapt.runtime.journal import Journal
from coadapt.runtime.process_solver import ProcessSolver
from coadapt.runtime.wall_clock import WallClock
from coadapt.service.app import Service, create_app
from coadapt.service.auth import load_token
from coadapt.service.change_log import ChangeLog
from coadapt.service.live_loop import LiveLoop

DEFAULT_PORT = 8471
# Followed logs keep their connections open for as long as they are read: they are cut off then.
SHUTDOWN_GRACE_S = 1
LISTEN_BACKLOG = 128
PRIVATE_DIR = 0o700
EXIT_BROKEN = 70  # EX_SOFTWARE of sysexits.h: a bug, or a journal that cannot be written

logger = logging.getLogger("coadapt")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """What `coadapt up` was told; port None: the last run's on this state directory, else the default."""

    state_dir: StateDir
    slots: int | None
    policy: str
    config: SchedulerConfig
    stop_grace_s: float
    host: str
    port: int | None


def serve(settings: LiveSettings) -> None:
    """Run until SIGINT or SIGTERM; exit with EXIT_BROKEN if a part of the scheduler breaks.

    Raises InputError before anything is changed.
    """
    policy_options(settings.policy)
    machine = _machine(settings.slots)
    state_dir = settings.state_dir
    state_dir.path.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
    with _locked(state_dir):
        token = load_token(state_dir.token)
        with _listening(settings) as server_socket:
            broken = _live(settings, machine, token, server_socket)
    if broken:
        raise typer.Exit(EXIT_BROKEN)


def _live(settings: LiveSettings, machine: Machine, token: str, server_socket: socket.socket) -> bool:
    """Wire the parts, run them until told to stop; return whether one of them broke."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    state_dir = settings.state_dir
    address, port = server_socket.getsockname()[:2]
    url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    clock = WallClock()
    local = LocalConfig(state_dir=state_dir.path, url=url, token=token, stop_grace_s=settings.stop_grace_s)
    executor = LocalExecutor(machine, local, clock.now)
    solver = ProcessSolver(partial(create_policy, settings.policy), clock.now)
    journal = Journal.at_path(state_dir.journal)
    recorder, change_log, first_config = Recorder(), ChangeLog(), state_dir.first_config()
    loop = LiveLoop(
        Scheduler(first_config),
        clock=clock,
        executor=executor,
        store=journal,
        solver=solver,
        observers=(recorder, change_log),
    )
    loop.recover(machine.nodes, settings.config)
    _stop_strangers(executor, loop)
    service = Service(
        loop=loop,
        store=journal,
        first_config=first_config,
        recorder=recorder,
        log_files=executor.log_files,
        policy=settings.policy,
        decision_s=solver.decision_s,
        token=token,
    )
    server = _server(service)
    connection = {"url": url, "pid": os.getpid(), "policy": settings.policy}
    _write_beside(state_dir, state_dir.connection.name, connection)
    _print_banner(settings, url, loop)
    change_log.speak()
    parts: dict[str, Callable[[], None]] = {
        "loop": loop.run,
        "executor": executor.run,
        "solver": solver.run,
        "http": partial(server.run, sockets=[server_socket]),
    }

    def close() -> None:
        server.should_exit = True
        for part in (loop, executor, solver):
            part.close()

    broken = run_parts(parts, close)
    journal.close()
    return broken


def run_parts(parts: Mapping[str, Callable[[], None]], close: Callable[[], None]) -> bool:
    """Run each part in a thread until a signal comes or one of them ends; return whether one broke.

    A part that breaks takes the scheduler down: the jobs run on, and a restart finds everything on disk.
    """
    over = threading.Event()
    broken = threading.Event()

    def keep(name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException:
            logger.exception("the %s thread broke; the scheduler ends, its jobs run on", name)
            broken.set()
        finally:
            over.set()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    threads = [threading.Thread(target=keep, args=item, name=item[0]) for item in parts.items()]
    for thread in threads:
        thread.start()
    over.wait()
    close()
    for thread in threads:
        thread.join()
    return broken.is_set()


def _server(service: Service) -> uvicorn.Server:
    config = uvicorn.Config(
        create_app(service),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    return uvicorn.Server(config)


def _machine(slots: int | None) -> Machine:
    if slots is not None:
        return cpu_machine(slots)
    machine = nvidia_machine(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not machine.nodes:
        raise InputError("--slots", None, "a number of CPU slots: NVML finds no NVIDIA GPU on this machine")
    return machine


@contextmanager
def _locked(state_dir: StateDir) -> Iterator[None]:
    """Be the only scheduler on this directory; the kernel frees the lock when this process dies."""
    with state_dir.lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            url = (state_dir.last_run() or {}).get("url", "an unknown address")
            allowed = f"a directory without a running scheduler; one answers at {url}"
            raise InputError("--state", str(state_dir.path), allowed) from None
        yield


@contextmanager
def _listening(settings: LiveSettings) -> Iterator[socket.socket]:
    """Listen where the last run did: replicas that run on still report there."""
    last = settings.state_dir.last_run()
    if settings.port is not None:
        ports = [settings.port]
    elif last is not None:
        ports = [int(last["url"].rpartition(":")[2])]
    else:
        ports = [DEFAULT_PORT, 0]
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off: it cost 40 ms per answer.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as server_socket:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for port in ports:
            try:
                server_socket.bind((settings.host, port))
                break
            except OSError as error:
                if port == ports[-1]:
                    asked = f"{settings.host}:{port}"
                    raise InputError("--host, --port", asked, f"an address to listen on ({error})") from None
        server_socket.listen(LISTEN_BACKLOG)
        yield server_socket


def _stop_strangers(executor: LocalExecutor, loop: LiveLoop) -> None:
    """End what runs here although the journal, perhaps a new one, knows nothing of it."""

    def strangers(state: SchedulerState) -> list[Stop]:
        return [
            Stop(job=job, generation=generation)
            for job, generation in executor.running()
            if job not in state.jobs or state.jobs[job].state in ENDED
        ]

    for order in loop.read(strangers):
        logger.warning(
            "job %s generation %d runs but is not in the journal: stopped", order.job, order.generation
        )
        executor.execute(order, lambda _: None)


def _write_beside(state_dir: StateDir, name: str, value: object) -> None:
    beside = state_dir.path / f"{name}.new"
    beside.write_text(json.dumps(value))
    beside.replace(state_dir.path / name)


def _print_banner(settings: LiveSettings, url: str, loop: LiveLoop) -> None:
    config = settings.config
    nodes = loop.read(lambda state: sorted(state.nodes.values(), key=lambda node: node.id))
    states = loop.read(lambda state: [job.state for job in state.jobs.values()])
    num_active = sum(state not in ENDED for state in states)
    num_held = sum(state in HOLDING for state in states)
    reaction = "" if config.reaction_s is None else f", {config.reaction_s:g} s after an arrival or exit"
    kinds = ", ".join(f"{node.num_gpus} x {node.gpu_type} on {node.id}" for node in nodes)
    typer.echo(f"coadapt {__version__}")
    typer.echo(f"  url      {url}")
    typer.echo(f"  state    {settings.state_dir.path}")
    typer.echo(f"  policy   {settings.policy}, every {config.round_s:g} s{reaction}")
    typer.echo(f"  slots    {kinds}")
    if states:
        typer.echo(f"  jobs     {num_active} of {len(states)} not ended, {num_held} of them taken over")
    typer.echo("Ctrl-C stops the scheduler; its jobs run on, and the next `coadapt up` takes them over.")
