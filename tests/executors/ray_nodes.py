"""Starts Ray clusters whose nodes are all this machine."""

import os
from typing import Any

TRIES = 3


def start_ray(*nodes: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return a cluster of Ray's own for tests, and its nodes, each started with the
    options that it has here.

    Ray gives a node 30 s to start, and a busy machine may take longer: then all is done
    again.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    for tries_left in reversed(range(TRIES)):
        cluster = Cluster()
        try:
            return cluster, [cluster.add_node(**options) for options in nodes]
        except Exception:  # of several types: each of its waits raises another one
            cluster.shutdown()
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
