"""A process here that stands for one of a Ray node: what that prints it prints, and as that ends it ends.

To the launcher it is the replica. It is a driver of Ray's own, so Ray ends what it started as soon as this
process is gone, however it went. Started as `python -m … CLUSTER NODE CPUS GPUS COMMAND…`.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from coadapt.executors.processes.standing_in import end_as

CONNECTING = {"namespace": "coadapt", "log_to_driver": False, "configure_logging": False}
# Of Ray's own making, for processes on this machine: there they would be wrong.
LOCAL_ENVS = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "VIRTUAL_ENV_PROMPT")

# One waits for output while another tells the process to stop.
CALLS = 2

_told = threading.Event()


def main(cluster: str, node: str, cpus: str, gpus: str, *command: str) -> None:
    """Run `command` on the Ray node with id `node`, holding so much of it; never returns."""
    signal.signal(signal.SIGTERM, _on_signal)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from coadapt.executors.ray.runner import Runner

    ray.init(cluster, **CONNECTING)
    signal.signal(signal.SIGTERM, _on_signal)  # Ray has put one of its own in its place
    envs = {name: value for name, value in os.environ.items() if name not in LOCAL_ENVS}
    try:
        remote = ray.remote(num_cpus=float(cpus), num_gpus=float(gpus), max_concurrency=CALLS)(Runner)
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        code = _follow(remote.options(scheduling_strategy=there).remote(list(command), envs, os.getcwd()))
    except ray.exceptions.RayError as error:
        _print(f"this replica's node is lost: {str(error).splitlines()[0]}\n".encode())
        code = -signal.SIGKILL
    end_as(code)


def _follow(runner: Any) -> int:
    """Pass on what it prints, and that it is told to stop; return its exit code."""
    import ray

    passed_on = False
    while True:
        if _told.is_set() and not passed_on:
            ray.get(runner.terminate.remote())
            passed_on = True
        data, code = ray.get(runner.read.remote())
        _print(data)
        if code is not None:
            return int(code)


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    _told.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
