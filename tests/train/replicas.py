"""Starts replicas as real processes, forked from a server that has torch loaded
already: seconds saved.
"""

import atexit
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from coadapt.model.contract_env import ENV_GENERATION, ENV_JOINING, ENV_RESCALE_DIR
from coadapt.model.rescale import (
    ORDER_FILE,
    RescaleOrder,
    decided_file,
    done_file,
    member_name,
)
from coadapt.model.wire import to_json
from tests.ports import free_ports

TIMEOUT_S = 200.0
# Replicas that share the first GPU. NCCL refuses two of one host on one GPU, so each
# counts as a host of its own (_replica), connected through the loopback.
ON_ONE_GPU = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
}

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "coadapt.train",
        "tests.train.toy",
    ]
)


def run_replicas(
    target: Callable[[Any], None],
    arguments: list[Any],
    folder: Path,
    envs: dict[str, str] | None = None,
) -> list[int]:
    """Run one replica per item of `arguments` to its end; return the exit codes, as a
    shell would see them.

    Their output is appended to `output-<rank>.txt` in `folder`.
    """
    port = str(free_port())
    processes = []
    for rank, argument in enumerate(arguments):
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(len(arguments)),
            "LOCAL_WORLD_SIZE": str(len(arguments)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **(envs or {}),
        }
        output = folder / f"output-{rank}.txt"
        processes.append(start(target, argument, env, output))
    for process in processes:
        process.join(TIMEOUT_S)
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
        process.join()
    outputs = "\n".join(
        path.read_text() for path in sorted(folder.glob("output-*.txt"))
    )
    assert not alive, f"{len(alive)} replicas hung\n{outputs}"
    return [
        process.exitcode if process.exitcode is not None else -1
        for process in processes
    ]


def start(
    target: Callable[[Any], None], argument: Any, env: dict[str, str], output: Path
) -> multiprocessing.process.BaseProcess:
    """Start one process; what it prints is appended to `output`."""
    return forked(_replica, (target, argument, env, str(output)))


def forked(
    target: Callable[..., None], arguments: tuple[Any, ...]
) -> multiprocessing.process.BaseProcess:
    """Start `target(*arguments)` as a fork of the server."""
    process = _context.Process(target=target, args=arguments)
    process.start()
    return process


def free_port() -> int:
    """Return a port that no connection takes before the replicas meet there."""
    return free_ports(1)[0]


def _replica(
    target: Callable[[Any], None], argument: Any, env: dict[str, str], output: str
) -> None:
    os.setsid()  # a signal to the process group must not reach the tests
    with open(output, "a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.environ.update(
            {"CUDA_VISIBLE_DEVICES": "", "NCCL_HOSTID": str(os.getpid()), **env}
        )
        code = 0
        try:
            target(argument)
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:  # noqa: BLE001  # a replica's log shows it
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        # Not the interpreter's own end: a forked process shares exit handlers with its
        # server.
        os._exit(code)


def as_script(body: Callable[[], object]) -> NoReturn:
    """Run `body` in a replica as the interpreter runs a script: hook, then exit
    handlers.
    """
    from coadapt.train.exits.stop import register_end

    atexit._clear()  # what the server of these processes registered
    register_end()
    code = 0
    try:
        body()
    except SystemExit as end:
        code = int(end.code or 0)
    except Exception as error:  # noqa: BLE001  # the hook shows it
        sys.last_value = error
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


class Elastic:
    """A run whose replicas change in place, seen from its executor. Each replica runs
    `target(argument)`.
    """

    def __init__(
        self, target: Callable[[Any], None], argument: Any, folder: Path, **envs: str
    ) -> None:
        self._target = target
        self._argument = argument
        self._envs = envs
        self.folder = folder
        self.control_dir = folder / "rescale"
        self.control_dir.mkdir(exist_ok=True)
        self.generation = 0
        self.members: tuple[str, ...] = ()
        self._former: tuple[str, ...] = ()
        self.processes: dict[str, Any] = {}

    def start(self, num_replicas: int) -> None:
        """Start a generation from nothing, or from the last checkpoint."""
        self.generation += 1
        self.members = tuple(
            member_name(self.generation, rank) for rank in range(num_replicas)
        )
        self.processes = {}
        port = str(free_port())
        for rank in range(num_replicas):
            self._spawn(
                rank, num_replicas, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            )

    def order(
        self, num_replicas: int, *, keep: Sequence[int] | None = None
    ) -> list[str]:
        """Order another number of replicas, of which those of the ranks `keep` stay
        (None: as many as can).

        Returns the names of the leaving replicas.
        """
        self.generation += 1
        if keep is None:
            keep = range(min(num_replicas, len(self.members)))
        stay = [self.members[rank] for rank in keep]
        joining = range(len(stay), num_replicas)
        members = (*stay, *(member_name(self.generation, rank) for rank in joining))
        order = RescaleOrder(
            generation=self.generation, members=members, placement=(num_replicas,)
        )
        beside = self.control_dir / "order.new"
        beside.write_text(json.dumps(to_json(order)))
        beside.replace(self.control_dir / ORDER_FILE)
        for rank in joining:
            self._spawn(rank, num_replicas, {ENV_JOINING: "1"})
        leaving = [name for name in self.members if name not in members]
        self._former = self.members
        self.members = members
        return leaving

    def take_back(self) -> bool:
        """Take the last order back, and end those that were to join; return whether
        that came in time.
        """
        try:
            (self.control_dir / decided_file(self.generation)).touch(exist_ok=False)
        except FileExistsError:
            return False
        (self.control_dir / ORDER_FILE).unlink()
        joiners = self._joiners()
        for name in joiners:
            self.processes[name].kill()
        self.join(joiners)
        self.members = self._former
        return True

    def done(self) -> bool:
        """Return whether the last order was carried out."""
        return (self.control_dir / done_file(self.generation)).exists()

    def await_done(self) -> None:
        """Wait until the last order was carried out, or the run has ended. If the
        replicas that stay ended before the order, its joiners would wait for ever: that
        fails at once.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not self.done() and self.alive():
            assert time.monotonic() < deadline, (
                f"generation {self.generation} hangs\n{self.outputs()}"
            )
            kept = [name for name in self.members if name in self._former]
            trains = any(self.processes[name].is_alive() for name in kept)
            assert trains or not kept or self.done(), (
                f"the run ended before its change to generation {self.generation}; "
                f"train for longer\n{self.outputs()}"
            )
            time.sleep(0.01)

    def _joiners(self) -> list[str]:
        """The names of the replicas that the last order adds."""
        return [name for name in self.members if name not in self._former]

    def alive(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.is_alive()]

    def join(self, names: Iterable[str], timeout_s: float = TIMEOUT_S) -> list[int]:
        """Wait for the ends of replicas; return their exit codes."""
        deadline = time.monotonic() + timeout_s
        codes = []
        for name in names:
            process = self.processes[name]
            process.join(max(deadline - time.monotonic(), 0.0))
            assert not process.is_alive(), f"{name} hangs\n{self.outputs()}"
            codes.append(process.exitcode)
        return codes

    def end(self, timeout_s: float) -> float:
        """Tell all to stop once, as a launcher does when one has failed; return how
        long they took to end.
        """
        began = time.monotonic()
        for name in self.alive():
            self.processes[name].terminate()
        self.join(self.processes, timeout_s)
        return time.monotonic() - began

    def kill(self) -> None:
        """End what is left."""
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
                process.join()

    def outputs(self) -> str:
        paths = sorted(self.folder.glob("output-*.txt"))
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in paths)

    def _spawn(self, rank: int, num_replicas: int, envs: dict[str, str]) -> None:
        name = member_name(self.generation, rank)
        env = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_replicas),
            "LOCAL_WORLD_SIZE": str(num_replicas),
            ENV_GENERATION: str(self.generation),
            ENV_RESCALE_DIR: str(self.control_dir),
            **self._envs,
            **envs,
        }
        output = str(self.folder / f"output-{name}.txt")
        arguments = (self._target, self._argument, env, output)
        self.processes[name] = forked(_replica, arguments)
