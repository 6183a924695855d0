"""Shots at random moments on a Ray cluster of three nodes: nothing lost, nothing
doubled, every job ends.

    python -m tests.executors.ray_kills --kills 20

Of a replica, a launcher, all processes of a job at once, a node with its daemon and
workers, the scheduler; a node is stopped in order. The head holds no jobs: with it
Ray's own books would be gone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from coadapt.executors.processes.job_processes import kill_marked
from tests.executors.kill_range import NODES, SLOTS, Range, shoot_many
from tests.executors.ray_nodes import start_ray

KINDS = ("replica", "node", "scheduler", "launcher", "stop", "whole job")


class RayRange(Range):
    def __init__(self, folder: Path, seed: int) -> None:
        self.ray, _ = start_ray({"node_name": "head", "num_cpus": 0})
        self.nodes: dict[str, Any] = {}
        options = ("--executor-option", f"address={self.ray.address}")
        super().__init__(folder, seed, ("--executor", "ray", *options))

    def start(self) -> None:
        for name in NODES:
            self._join(name)

    def stop(self) -> None:
        self.ray.shutdown()

    def kill(self, kind: str, job: str, node: str) -> Callable[[], None]:
        match kind:
            case "replica" | "launcher":
                self.cluster.kill_job(job, launcher=kind == "launcher")
            case "whole job":
                kill_marked(self.cluster.checkpoints(job))
            case "node" | "stop":
                self.ray.remove_node(
                    self.nodes.pop(node), allow_graceful=kind == "stop"
                )
                return lambda: self._join(node)
            case "scheduler":
                self.cluster.kill()
                return lambda: self.cluster.up(SLOTS)
        return lambda: None

    def whole(self) -> bool:
        known = self.cluster.client.get("/v1/cluster")["nodes"]
        return {node["id"] for node in known} == set(NODES)  # type: ignore[union-attr,index,call-overload]

    def told(self) -> str:
        return ", ".join(self.nodes)

    def _join(self, name: str) -> None:
        self.nodes[name] = self.ray.add_node(node_name=name, num_cpus=SLOTS)


if __name__ == "__main__":
    shoot_many(RayRange, KINDS, __doc__)
