"""The processes of one run of the script: started, ordered and stopped as an executor
does it.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from coadapt.model.contract_env import (
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_EVERY_S,
    ENV_GENERATION,
    ENV_JOINING,
    ENV_RESCALE_DIR,
    EXIT_PEER_LOST,
)
from coadapt.model.rescale import (
    ORDER_FILE,
    RescaleOrder,
    begun_file,
    done_file,
    member_name,
    ready_file,
)
from coadapt.model.wire import to_json
from coadapt.train.env import ENV_CHECK_DIR, child_environ
from coadapt.train.wrappers.recorder import PLAN_FILE, Plan

LOOPBACK = "127.0.0.1"
LOOK_S = 0.02
END_S = 30.0
# A check must not save by itself in between: what it compares is the end.
NEVER_S = "1000000"
LOG_LINES = 15
# The one that failed first may take so long to end after those that lost contact with
# it.
CAUSE_S = 10.0


class LateError(Exception):
    """Something did not come within the time of the check."""


class ScriptRun:
    """The replicas of one run, in a folder of its own: rows, logs, checkpoints."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        plan: Plan,
        deadline: float,
        envs: Mapping[str, str],
    ) -> None:
        """`deadline`: on the monotonic clock; waits that would last longer raise
        LateError.
        """
        self.folder = folder
        self.members: tuple[str, ...] = ()
        self.generation = 0
        self._command = command
        self._envs = envs
        self._deadline = deadline
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._plan = plan
        self._rendezvous: socket.socket | None = None
        self._make_folders()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def _make_folders(self) -> None:
        (self.folder / "rescale").mkdir(parents=True)
        (self.folder / PLAN_FILE).write_text(json.dumps(to_json(self._plan)))

    def start(self, num_replicas: int) -> None:
        """Start a generation from nothing, or from the last checkpoint."""
        self.generation += 1
        self.members = tuple(
            member_name(self.generation, rank) for rank in range(num_replicas)
        )
        self._let_go_of_port()
        self._rendezvous = _reserve_port()
        port = self._rendezvous.getsockname()[1]
        rendezvous = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
        for rank in range(num_replicas):
            self._spawn(rank, num_replicas, rendezvous)

    def order(self, num_replicas: int, keep: Sequence[int]) -> list[str]:
        """Order another number of replicas, of which the ranks `keep` stay; return the
        names of those that leave.
        """
        self.generation += 1
        stay = [self.members[rank] for rank in keep]
        joining = range(len(stay), num_replicas)
        members = (*stay, *(member_name(self.generation, rank) for rank in joining))
        order = RescaleOrder(
            generation=self.generation, members=members, placement=(num_replicas,)
        )
        for rank in joining:
            self._spawn(rank, num_replicas, {ENV_JOINING: "1"})
        beside = self.folder / "rescale" / "order.new"
        beside.write_text(json.dumps(to_json(order)))
        beside.replace(self.folder / "rescale" / ORDER_FILE)
        leaving = [name for name in self.members if name not in members]
        self.members = members
        return leaving

    def at_the_door(self) -> bool:
        """Return whether the script has come to its training in all members."""
        return all((self.folder / f"{name}.door").exists() for name in self.members)

    def ready(self) -> bool:
        """Return whether all joining replicas of the last order wait for the others to
        call them.
        """
        joiners = [
            name for name in self.members if name.startswith(f"{self.generation}-")
        ]
        return all(
            (self.folder / "rescale" / ready_file(name)).exists() for name in joiners
        )

    def done(self) -> bool:
        """Return whether the last order was carried out."""
        return (self.folder / "rescale" / done_file(self.generation)).exists()

    def begun(self) -> bool:
        """Return whether the last order can fail no more without ending the run."""
        return (self.folder / "rescale" / begun_file(self.generation)).exists()

    def stop(self) -> None:
        """Ask all members to save and end."""
        for name in self.members:
            if self._processes[name].poll() is None:
                self._processes[name].send_signal(signal.SIGTERM)

    def alive(self) -> list[str]:
        return [
            name for name, process in self._processes.items() if process.poll() is None
        ]

    def ended(self) -> list[str]:
        """Return the members that have ended."""
        return [
            name for name in self.members if self._processes[name].poll() is not None
        ]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Return once `condition` holds. Raises LateError with `what` was waited
        for.
        """
        while not condition():
            if time.monotonic() > self._deadline:
                raise LateError(what)
            time.sleep(LOOK_S)

    def await_cause(self) -> None:
        """Wait some seconds for one that failed, where only such ended that lost
        contact with another.
        """
        until = time.monotonic() + CAUSE_S
        while time.monotonic() < until:
            codes = self.codes(self.ended()).values()
            if any(code != EXIT_PEER_LOST for code in codes):
                return
            time.sleep(LOOK_S)

    def codes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the exit codes of `names`, once they have ended."""
        names = list(names)
        self.wait(
            lambda: all(self._processes[name].poll() is not None for name in names),
            f"the end of {', '.join(names)}",
        )
        return {name: self._processes[name].wait() for name in names}

    def last_lines(self, name: str) -> list[str]:
        """Return the end of a replica's output."""
        path = self.folder / f"{name}.log"
        return (
            path.read_text(errors="replace").splitlines()[-LOG_LINES:]
            if path.exists()
            else []
        )

    def all_lines(self) -> dict[str, list[str]]:
        """Return the output of all replicas so far, by name."""
        return {
            path.stem: path.read_text(errors="replace").splitlines()
            for path in sorted(self.folder.glob("*.log"))
        }

    def begin_again(self) -> None:
        """Forget what the run has done so far: it ended before anything changed."""
        self.close()
        shutil.rmtree(self.folder)
        self._make_folders()

    def close(self) -> None:
        """End what is left, with the processes that it has started."""
        for name in self.alive():
            with suppress(ProcessLookupError):
                os.killpg(self._processes[name].pid, signal.SIGKILL)
            self._processes[name].wait(END_S)
        self._let_go_of_port()

    def _let_go_of_port(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
        self._rendezvous = None

    def _spawn(self, rank: int, num_replicas: int, envs: Mapping[str, str]) -> None:
        name = member_name(self.generation, rank)
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_replicas),
            "LOCAL_WORLD_SIZE": str(num_replicas),
            ENV_GENERATION: str(self.generation),
            ENV_RESCALE_DIR: str(self.folder / "rescale"),
            ENV_CHECKPOINT_DIR: str(self.checkpoints),
            ENV_CHECKPOINT_EVERY_S: NEVER_S,
            ENV_CHECK_DIR: str(self.folder),
            **self._envs,
            **envs,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = self.launch(self._command, child_environ(env), log)

    @staticmethod
    def launch(
        command: Sequence[str], env: Mapping[str, str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a replica, in a session of its own."""
        return subprocess.Popen(
            [sys.executable, *command],
            env=dict(env),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _reserve_port() -> socket.socket:
    """Return a socket bound to a port at which replicas can listen, and which no other
    program is given as long as it is open.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((LOOPBACK, 0))
    return reserved
