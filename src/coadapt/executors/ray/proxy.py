"""A process here that represents a process on a Ray node: it prints that process's
output, and ends in the same way.

To the launcher it is the replica. It is a driver of Ray's own, so Ray ends what it
started as soon as this process is gone, however it went. Started as `python -m …
CLUSTER AUTH_MODE NODE CPUS GPUS SHIPS COMMAND…`.
"""

import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from coadapt.executors.processes import line as lines
from coadapt.executors.processes.proxy_process import (
    EXIT_NOT_BEGUN,
    NODE_LOST,
    Begun,
    end_as,
)
from coadapt.executors.processes.records.generation_dir import JobDir
from coadapt.executors.ray import set_up
from coadapt.executors.ray.client import (
    CONNECT_S,
    ENV_AUTH_MODE,
    TOKEN_ENVS,
    reaches,
)
from coadapt.executors.ray.others import actor_name, tag_of
from coadapt.model.contract_env import ENV_CHECKPOINT_DIR, ENV_GENERATION
from coadapt.model.devices import PARTS

CONNECTING = {
    "namespace": "coadapt",
    "log_to_driver": False,
    "configure_logging": False,
}
# Variables that Ray sets for processes on this machine. On another machine they would
# be wrong.
LOCAL_ENVS = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "VIRTUAL_ENV_PROMPT")
NOT_FOR_JOBS = frozenset({*LOCAL_ENVS, ENV_AUTH_MODE, *TOKEN_ENVS})
# Ray would end this process, and the replica with it, a minute after the cluster's head
# is gone. But the process is to end with the replica. If the replica has to end too,
# Ray reports that.
ENV_WITHOUT_HEAD = "RAY_gcs_rpc_server_reconnect_timeout_s"
WITHOUT_HEAD_S = 1_000_000

SHIPS = "1"
# Files that a run does not need, or that would make Ray see a new directory for each
# run.
NOT_SHIPPED = (".git", "__pycache__", ".venv")
EXIT_FAILED = 1

# The time between two checks whether the actor has begun, or a stop was ordered.
LOOK_S = 0.2
# An actor that waits for longer is reported, and then taken back, so that another plan
# can be made.
SAY_S = 10.0
BEGIN_S = 120.0
# One thread waits for output while another one orders the process to stop.
CALLS = 2

_stop_asked = threading.Event()


def main(
    cluster: str, node: str, cpus: str, gpus: str, ships: str, *command: str
) -> None:
    """Run `command` on the Ray node with id `node`, with this many of its CPUs and
    GPUs. Never returns.

    ships: "1" if Ray has to bring the job's directory to the node. Otherwise it is
    there already.
    """
    signal.signal(signal.SIGTERM, _on_signal)
    begun = Begun()
    if not reaches(cluster, CONNECT_S):
        _print(f"error: Ray's head does not answer at {cluster}\n".encode())
        end_as(EXIT_NOT_BEGUN)
    envs = {
        name: value for name, value in os.environ.items() if name not in NOT_FOR_JOBS
    }
    os.environ[ENV_WITHOUT_HEAD] = str(WITHOUT_HEAD_S)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from coadapt.executors.ray.runner import Runner

    try:
        ray.init(
            cluster, **CONNECTING, **(_shipped(os.getcwd()) if ships == SHIPS else {})
        )
    except ConnectionError as error:
        _print(f"error: Ray's head does not answer: {error}\n".encode())
        end_as(EXIT_NOT_BEGUN)
    except (ValueError, RuntimeError) as error:
        _print(f"error: its driver cannot connect to Ray: {error}\n".encode())
        end_as(EXIT_FAILED)
    signal.signal(signal.SIGTERM, _on_signal)  # Ray has replaced it by its own
    try:
        remote = ray.remote(
            num_cpus=float(cpus), num_gpus=float(gpus), max_concurrency=CALLS
        )(Runner)
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        # Ray takes a minute to notice that a node is disconnected. This connection
        # shows it sooner.
        exchange = lines.Exchange(ray.util.get_node_ip_address())
        envs |= exchange.envs
        what = _set_up_first(command) if ships == SHIPS else list(command)
        workdir = None if ships == SHIPS else os.getcwd()
        runner = remote.options(
            scheduling_strategy=there, name=_name(node, float(cpus) + float(gpus))
        ).remote(what, envs, workdir)
        code = _begin(runner, begun, f"{float(gpus):g} GPU, {float(cpus):g} CPU")
        if code is None:
            code = _follow(runner, exchange)
    except ray.exceptions.RuntimeEnvSetupError as error:
        _print(
            f"error: its directory could not be brought to the node: {error}\n".encode()
        )
        code = EXIT_FAILED
    except ray.exceptions.RayError as error:
        _print(f"{NODE_LOST}{str(error).splitlines()[0]}\n".encode())
        code = -signal.SIGKILL
    end_as(code)


def _shipped(workdir: str) -> dict[str, Any]:
    return {"runtime_env": {"working_dir": workdir, "excludes": list(NOT_SHIPPED)}}


def _set_up_first(command: tuple[str, ...]) -> list[str]:
    """Return the command that runs the job's `setup` on its node, once, before
    `command`.
    """
    job = JobDir(Path(os.environ[ENV_CHECKPOINT_DIR]).parent)
    order = job.generation(int(os.environ[ENV_GENERATION])).order()
    if order is None or not order.setup:
        return list(command)
    return [sys.executable, "-m", set_up.__name__, order.setup, *command]


def _name(node: str, slots: float) -> str:
    """Return a unique name for the actor. A repeated start has another process id, so
    it has another name.
    """
    job = JobDir(Path(os.environ[ENV_CHECKPOINT_DIR]).parent)
    tag = tag_of(job.path.parent.parent)
    member = (
        f"{os.environ[ENV_GENERATION]}-{os.environ.get('RANK', 'setup')}-{os.getpid()}"
    )
    return actor_name(tag, round(slots * PARTS), node, f"{job.path.name}-{member}")


def _begin(runner: Any, begun: Begun, needs: str) -> int | None:
    """Wait until Ray has placed the actor. Return an exit code if a stop was ordered,
    or if it takes too long.
    """
    import ray

    first = runner.read.remote()
    since = time.monotonic()
    said = False
    while not ray.wait([first], timeout=LOOK_S)[0]:
        waited_s = time.monotonic() - since
        if _stop_asked.is_set():
            ray.kill(runner)
            return -signal.SIGTERM
        if waited_s > SAY_S and not said:
            said = True
            _print(
                f"[coadapt: waits for {needs} on its node, held by others]\n".encode()
            )
        if waited_s > BEGIN_S:
            ray.kill(runner)
            why = (
                f"it did not begin within {BEGIN_S:.0f} s: {needs} of its node is "
                f"held by others in Ray"
            )
            _print(f"error: {why}\n".encode())
            return EXIT_NOT_BEGUN
    data, code = ray.get(first)
    begun.tell()
    _print(data)
    return None if code is None else int(code)


def _follow(runner: Any, exchange: lines.Exchange) -> int:
    """Pass on the actor's output, and an order to stop. Return its exit code."""
    line: socket.socket | None = None
    import ray

    passed_on = False
    while True:
        if _stop_asked.is_set() and not passed_on:
            ray.get(runner.terminate.remote())
            passed_on = True
        line = line or _called(exchange)
        reading = runner.read.remote()
        while not ray.wait([reading], timeout=LOOK_S)[0]:
            if line is not None and _is_dead(line):
                _print(f"{NODE_LOST}nothing is heard from it any more\n".encode())
                return -signal.SIGKILL
        data, code = ray.get(reading)
        _print(data)
        if code is not None:
            return int(code)


def _called(exchange: lines.Exchange) -> socket.socket | None:
    """Return the connection to the actor once it has connected. A node that cannot
    reach this machine has none.
    """
    ready, _, _ = select.select([exchange.server], [], [], 0.0)
    return exchange.answer() if ready else None


def _is_dead(line: socket.socket) -> bool:
    """Return whether the connection broke: its keep-alives were not answered, or the
    actor is gone.
    """
    ready, _, _ = select.select([line], [], [], 0.0)
    if not ready:
        return False
    try:
        return not line.recv(1)
    except OSError:
        return True


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _stop_asked.set()


if __name__ == "__main__":
    cluster, auth_mode, *others = sys.argv[1:]
    if auth_mode:  # else it is Ray's default
        os.environ[ENV_AUTH_MODE] = auth_mode
    main(cluster, *others)
