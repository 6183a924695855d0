"""Runs a part of a benchmark on two replicas: processes of one thread each, connected
by gloo.
"""

import argparse
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def on_two_replicas(
    target: Callable[[argparse.Namespace], T], options: argparse.Namespace
) -> T:
    """Return what `target(options)`, a function of a module, returns on the first of
    two replicas.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    processes = [
        context.Process(
            target=_replica, args=(rank, port, target, options, result), daemon=True
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    while result.empty():
        if any(process.exitcode for process in processes):
            raise SystemExit("a replica failed, see above")
        time.sleep(0.1)
    found: T = result.get()
    for process in processes:
        process.join()
    return found


def _replica(
    rank: int,
    port: int,
    target: Callable[[argparse.Namespace], T],
    options: argparse.Namespace,
    result: "multiprocessing.Queue[T]",
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    found = target(options)
    torch.distributed.destroy_process_group()
    if rank == 0:
        result.put(found)
