"""Starts replicas as real processes, forked from a server that has torch loaded already: seconds saved."""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT_S = 200.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch._dynamo", "coadapt.train", "tests.train.toy"])


def run_replicas(
    target: Callable[[Any], None], arguments: list[Any], folder: Path, envs: dict[str, str] | None = None
) -> list[int]:
    """Run one replica per item of `arguments` to its end; return the exit codes, as a shell would see them.

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
    outputs = "\n".join(path.read_text() for path in sorted(folder.glob("output-*.txt")))
    assert not alive, f"{len(alive)} replicas hung\n{outputs}"
    return [process.exitcode if process.exitcode is not None else -1 for process in processes]


def start(
    target: Callable[[Any], None], argument: Any, env: dict[str, str], output: Path
) -> multiprocessing.process.BaseProcess:
    """Start one process; what it prints is appended to `output`."""
    process = _context.Process(target=_replica, args=(target, argument, env, str(output)))
    process.start()
    return process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _replica(target: Callable[[Any], None], argument: Any, env: dict[str, str], output: str) -> None:
    os.setsid()  # a signal to the process group must not reach the tests
    with open(output, "a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.environ.update(env)
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
        # Not the interpreter's own end: a forked process shares exit handlers with its server.
        os._exit(code)
