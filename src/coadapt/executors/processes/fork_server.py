"""A process that has imported torch and forks launchers and replicas of trials.

A start then costs milliseconds of CPU instead of three seconds. forked_launchers.py
starts it and says for which jobs.
"""

# Server, launcher and replica
#
# The executor sends one request per launcher over a socket. The server forks, and the
# child becomes the launcher. The launcher forks one process per replica before it does
# anything else. Each waits for the command that the launcher would otherwise start, and
# then becomes that replica. So the tree of processes is the ordinary one: a replica is
# a child of its launcher, which learns its exit code and finds all that it left.
#
# A replica is forked before the launcher holds a lock, a thread or a file, and its
# stack has only `main` in it. So nothing of the launcher is left in it, and the
# interpreter ends as it does after any script.
#
# What was considered:
#
# - Processes that train one trial after another, as Ray Tune does with `reuse_actors`:
#   what one trial leaves in memory changes the next one, and a script must be a
#   function.
# - A server that forks replicas only: their launcher would not be their parent, and
#   could not learn how they ended.
# - To forbid torch to import `torch._dynamo`: that saves a third of the time, and
#   patches torch.
#
# If the server dies, its children live on, as launchers do without their scheduler. If
# the scheduler dies, the server reads the end of the socket and exits.

import builtins
import gc
import importlib
import json
import os
import runpy
import select
import socket
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path

from coadapt.executors.processes import launcher
from coadapt.executors.processes.job_processes import LAUNCHER_MODULE, identity
from coadapt.executors.processes.records.generation_dir import GenerationDir
from coadapt.executors.processes.shown_process import Shown
from coadapt.executors.processes.spare_replica import MESSAGE_BYTES_MAX, Spare

# Of torch, what every script with an optimizer imports sooner or later.
PRELOADED = ("numpy", "torch", "torch._dynamo", "coadapt.train")
REAP_S = 0.5
IDLE_S = 60.0  # without children


@dataclass(frozen=True, slots=True)
class Request:
    """What the executor asks for: the launcher of the order in the folder `generation`,
    with the environment `envs`. command: the words that its replicas run.
    """

    generation: str
    command: Sequence[str]
    envs: Mapping[str, str]


def main() -> None:
    """Serve until the other end of stdin is closed. In a child: be the launcher, or the
    replica, to its end.
    """
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    shown = Shown.find()
    shown.arguments.write(("waits for trials",))
    for name in PRELOADED:
        importlib.import_module(name)
    if why := _unfit():
        control.send(json.dumps({"unfit": why}).encode())
        return
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages
    request = _serve(control)
    control.close()
    if request is not None:
        _be_launcher(shown, request)


def _unfit() -> str:
    """Return why this process cannot be forked safely, "" if it can."""
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        return f"torch and numpy started {num_threads - 1} threads when imported"
    files = [
        os.readlink(each)
        for each in Path("/proc/self/fd").iterdir()
        if each.is_symlink()
    ]
    if any(each.startswith("/dev/nvidia") for each in files):
        return "importing torch opened a GPU"
    return ""


def _serve(control: socket.socket) -> Request | None:
    """Fork a launcher for each request. Return the request in the launcher, None in the
    server when it has to end.
    """
    children = set[int]()
    busy_at = time.monotonic()
    while True:
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
        if children:
            busy_at = time.monotonic()
        if not select.select([control], [], [], REAP_S)[0]:
            if time.monotonic() > busy_at + IDLE_S:
                return None
            continue
        message = control.recv(MESSAGE_BYTES_MAX)
        if not message:
            return None
        request = Request(**json.loads(message))
        pid = os.fork()
        if pid == 0:
            return request
        children.add(pid)
        answer = {"generation": request.generation, "launcher": identity(pid)}
        control.send(json.dumps(answer).encode())


def _be_launcher(shown: Shown, request: Request) -> None:
    """Fork the replicas to be, then carry out the order as the launcher."""
    os.setsid()
    generation = Path(request.generation)
    log = os.open(generation / "launcher.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    shown.replace((LAUNCHER_MODULE, request.generation), request.envs)
    order = GenerationDir.at(generation).order()
    spares: list[Spare] = []
    fit = order is not None and not _shadowed(request.command, order.workdir)
    for _ in order.replicas if order is not None and fit else ():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for each in (ours, *(spare.line for spare in spares)):
                each.close()
            _be_replica(shown, theirs)
            return
        theirs.close()
        spares.append(Spare(pid, ours, tuple(request.command)))
    launcher.main(request.generation, spares=spares)
    sys.stderr.flush()
    os._exit(0)  # torch's clean-up is not needed


def _shadowed(command: Sequence[str], workdir: str) -> bool:
    """Return whether the script would import a file beside it instead of a module that
    is imported here already.
    """
    here = command[1] == "-m"
    folder = Path(workdir) if here else Path(workdir, command[1]).resolve().parent
    beside = {
        each.name.partition(".")[0]
        for each in folder.iterdir()
        if each.suffix in {".py", ".so"} or (each / "__init__.py").exists()
    }
    return not beside.isdisjoint(name.partition(".")[0] for name in sys.modules)


def _be_replica(shown: Shown, line: socket.socket) -> None:
    """Wait for the command, then run it as the interpreter does."""
    os.setsid()
    with line:
        message, files, _, _ = socket.recv_fds(line, MESSAGE_BYTES_MAX, 1)
    if not message:  # the launcher ended before it started replicas
        return
    order = json.loads(message)
    os.dup2(files[0], 1)
    os.dup2(files[0], 2)
    os.close(files[0])
    os.chdir(order["workdir"])
    shown.replace(order["command"], order["envs"])
    # A fresh process draws its own seed; `random` does so after each fork by itself.
    importlib.import_module("numpy").random.seed()
    run_as_main(order["command"])


def run_as_main(command: Sequence[str]) -> None:
    """Run `python SCRIPT ...` or `python -m MODULE ...` as a new interpreter does.
    Raises SystemExit, or KeyboardInterrupt.
    """
    arguments = command[1:]
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.orig_argv = list(command)
    try:
        if arguments[0] == "-m":
            sys.argv = ["-m", *arguments[2:]]
            sys.path.insert(0, os.getcwd())
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what `python -m` calls
        else:
            sys.argv = list(arguments)
            sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
            _run_file(module, os.path.abspath(arguments[0]))
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        raised = error.__traceback__
        while raised is not None and raised.tb_frame.f_code.co_filename == __file__:
            raised = raised.tb_next
        error.__traceback__ = raised
        sys.excepthook(type(error), error, raised)
        raise SystemExit(1) from None


def _run_file(module: types.ModuleType, path: str) -> None:
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    module.__dict__["__cached__"] = None
    source = Path(path).read_bytes()
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
