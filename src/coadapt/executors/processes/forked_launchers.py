"""Which launchers are forks of a process that has imported torch (fork_server.py), and
what the executor sees of them.
"""

import json
import logging
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.executors.processes.job_processes import lives
from coadapt.executors.processes.records.generation_dir import LaunchOrder
from coadapt.executors.processes.shown_process import (
    ROOM_ARGUMENT,
    ROOM_BYTES,
    ROOM_ENV,
)
from coadapt.executors.processes.spare_replica import Process
from coadapt.model.contract_env import (
    CPU_SLOT_TYPE,
    ENV_FORK,
    ENV_GPU_TYPE,
    ENV_PARAMS,
    is_reserved_env,
)

# What a shell does more with than to split words.
OF_THE_SHELL = frozenset("$`\\|&;<>()*?[]{}~#!\n")
# A script that sets a variable may mean a library that reads it when it is imported.
SETS_VARIABLES = re.compile(
    r"environ\[[^]]*]\s*=(?!=)|environ\.(setdefault|update|pop)|putenv|dotenv"
)
START_MAX_S = 60.0  # of the server's imports
MESSAGE_BYTES_MAX = 4096
# Not -m: this package must not be looked for in the job's directory first.
SERVE = (
    "import sys; del sys.path[0]; "
    "from coadapt.executors.processes.fork_server import main; main()"
)

logger = logging.getLogger(__name__)


def command_of(order: LaunchOrder, envs: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the words of an order's run line `python SCRIPT ...` or `python -m MODULE
    ...`, None if its replicas cannot be forks.

    They can if the job has parameters, as a trial has, runs on CPU slots of this
    machine by this interpreter and without `setup`, and does not opt out by ENV_FORK.
    envs: the environment that replicas have in common.
    """
    if (
        ENV_PARAMS not in envs
        or envs.get(ENV_FORK) == "0"
        or envs.get(ENV_GPU_TYPE) != CPU_SLOT_TYPE
        or order.setup
        or any(replica.via for replica in order.replicas)
        or not OF_THE_SHELL.isdisjoint(order.run)
    ):
        return None
    try:
        python, *arguments = shlex.split(order.run)
    except ValueError:  # no words, or an open quote
        return None
    if arguments[:1] == ["-u"] and envs.get("PYTHONUNBUFFERED"):
        del arguments[0]
    found = shutil.which(python, path=envs.get("PATH"))
    ours = Path(sys.executable)
    if (
        not arguments
        or found is None
        or Path(found).parent != ours.parent
        or not ours.samefile(found)
    ):
        return None
    script = _script(order.workdir, arguments)
    if script is None or SETS_VARIABLES.search(script):
        return None
    return (python, *arguments)


def _script(workdir: str, arguments: list[str]) -> str | None:
    """Return the text of the script, "" for a module that is not in `workdir`, None if
    there is no script.
    """
    if arguments[0] == "-m":
        if len(arguments) == 1:
            return None
        path = Path(workdir, *arguments[1].split(".")).with_suffix(".py")
        missing = ""
    elif arguments[0].startswith("-"):
        return None
    else:
        path = Path(workdir, arguments[0])
        missing = None
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return missing


@dataclass(slots=True)
class ForkedLauncher:
    """A launcher that the server forks: as much of subprocess.Popen as the executor
    needs. If the server cannot fork it, `instead` starts an ordinary one.
    """

    server: "ForkServer"
    generation: str
    instead: Callable[[], Process]
    asked_at: float = field(default_factory=time.monotonic)
    _ordinary: Process | None = None

    @property
    def pid(self) -> int:
        """The process id, 0 before the process is there."""
        if self._ordinary is not None:
            return self._ordinary.pid
        return int((self.server.launchers.get(self.generation) or "0").split()[0])

    def poll(self) -> int | None:
        """Return 0 once the launcher is gone, None before. Raises OSError if an
        ordinary one cannot be started.
        """
        if self._ordinary is not None:
            return self._ordinary.poll()
        self.server.read()
        identity = self.server.launchers.get(self.generation)
        if identity is not None:
            return None if lives(identity) else 0
        if self.server.serves and time.monotonic() < self.asked_at + START_MAX_S:
            return None
        # Two launchers do no harm: only the one that gets the job's lock does anything.
        self.server.close()
        self._ordinary = self.instead()
        return None


class ForkServer:
    """The process that forks. envs, workdir: what its children have in common."""

    def __init__(self, envs: Mapping[str, str], workdir: str) -> None:
        """Start it. Raises OSError."""
        self.key = (envs, workdir)
        self.launchers: dict[str, str] = {}  # identities by generation
        self._why_unfit = ""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE, ROOM_ARGUMENT],
                cwd=workdir,
                env={**envs, ROOM_ENV: "x" * ROOM_BYTES},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def serves(self) -> bool:
        return not self._why_unfit and self._process.poll() is None

    @property
    def is_unfit(self) -> bool:
        """Whether another one with the same environment would not serve either."""
        return bool(self._why_unfit) or (self._process.poll() or 0) > 0

    def ask(
        self, generation: str, command: tuple[str, ...], envs: Mapping[str, str]
    ) -> None:
        """Ask for the launcher of a generation, with the environment `envs`. Raises
        OSError.
        """
        self.launchers.pop(generation, None)
        request = {"generation": generation, "command": command, "envs": dict(envs)}
        self._line.send(json.dumps(request).encode())

    def read(self) -> None:
        """Take in the answers that are there."""
        while message := self._receive():
            answer = json.loads(message)
            if "unfit" in answer:
                self._why_unfit = answer["unfit"]
                logger.info("trials start one by one: %s", self._why_unfit)
            else:
                self.launchers[answer["generation"]] = answer["launcher"]

    def _receive(self) -> bytes:
        try:
            return self._line.recv(MESSAGE_BYTES_MAX)
        except OSError:  # nothing yet, or closed
            return b""

    def close(self) -> None:
        """End the process. Its children live on."""
        self._line.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class ForkServers:
    """At most one server at a time, for the trials of one study."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def launch(
        self,
        generation: str,
        order: LaunchOrder,
        envs: Mapping[str, str],
        instead: Callable[[], Process],
    ) -> Process:
        """Start the launcher of a generation as a fork where that is possible, by
        `instead` elsewhere. envs: the launcher's environment. Raises OSError.
        """
        of_replicas = {**envs, **order.envs}
        command = command_of(order, of_replicas)
        if command is None:
            return instead()
        common = {
            name: value
            for name, value in of_replicas.items()
            if not is_reserved_env(name) or name == "CUDA_VISIBLE_DEVICES"
        }
        try:
            server = self._server_for(common, order.workdir)
            if server is None:
                return instead()
            server.ask(generation, command, envs)
        except OSError as error:
            logger.info("a trial starts in the ordinary way: %s", error)
            return instead()
        return ForkedLauncher(server, generation, instead)

    def _server_for(self, envs: Mapping[str, str], workdir: str) -> ForkServer | None:
        """Return the server for this environment, None if it would not serve, or the
        present one serves others.
        """
        present = self._server
        if present is not None:
            present.read()
            if present.key == (envs, workdir):
                if present.serves:
                    return present
                if present.is_unfit:
                    return None
            elif present.serves:
                return None
            present.close()
        self._server = ForkServer(envs, workdir)
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
