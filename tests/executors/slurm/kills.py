"""Shots at random moments under Slurm: nothing lost, nothing doubled, every job ends.

    python -m tests.executors.slurm.kills --kills 20

Of a replica, a launcher, a node's daemon with all of its steps or without, the
scheduler, the controller; a node is drained, an allocation is cancelled.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from coadapt.executors.processes.job_processes import marked_processes
from tests.executors.kill_range import NODES, SLOTS, Range, shoot_many
from tests.executors.slurm.daemons import HOW_TO_GET, SlurmCluster, missing
from tests.executors.slurm.processes import kill_node

OPTIONS = ("nodes=2", "max_nodes=3", "look_s=1", "time_limit=60")
KINDS = (
    "replica",
    "node",
    "scheduler",
    "launcher",
    "drain",
    "slurmctld",
    "scancel",
    "slurmd",
)


class SlurmRange(Range):
    harmless = ("scheduler", "slurmctld")

    def __init__(self, folder: Path, seed: int) -> None:
        options = (part for option in OPTIONS for part in ("--executor-option", option))
        super().__init__(folder, seed, ("--executor", "slurm", *options))
        self.slurm = SlurmCluster(folder / "slurm", NODES, gpus=SLOTS)

    def start(self) -> None:
        self.slurm.start()
        os.environ["SLURM_CONF"] = str(self.slurm.conf)  # this process is nobody else's

    def stop(self) -> None:
        self.slurm.stop()

    def kill(self, kind: str, job: str, node: str) -> Callable[[], None]:
        match kind:
            case "replica" | "launcher":
                self.cluster.kill_job(job, launcher=kind == "launcher")
            case "node":
                marked = set(marked_processes(self.cluster.checkpoints(job)))
                kill_node(self.slurm, node, marked)
                return lambda: self.slurm.start_node(node)
            case "slurmd":
                # Its steps live on, and train, until Slurm says that the node is down.
                self.slurm.kill(node)
                return lambda: self.slurm.start_node(node)
            case "scheduler":
                self.cluster.kill()
                return lambda: self.cluster.up(SLOTS)
            case "slurmctld":
                self.slurm.kill("slurmctld")
                return self.slurm.start_controller
            case "drain":
                self.slurm.call(
                    "scontrol",
                    "update",
                    f"NodeName={node}",
                    "State=DRAIN",
                    "Reason=test",
                )
                return lambda: self._resume(node)
            case "scancel":
                name = (self.cluster.state / "slurm" / "pool").read_text()
                self.slurm.call("scancel", f"--name={name}", "--state=RUNNING")
        return lambda: None

    def whole(self) -> bool:
        states = self.slurm.states()
        for node in (node for node, state in states.items() if state.startswith("dr")):
            # A controller that is killed at once forgets what it was last told.
            self._resume(node)
        return set(states.values()) <= {"idle", "mix", "alloc"}

    def told(self) -> str:
        return str(self.slurm.states())

    def _resume(self, node: str) -> None:
        self.slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


if __name__ == "__main__":
    if missing():
        sys.exit(HOW_TO_GET)
    shoot_many(SlurmRange, KINDS, __doc__)
