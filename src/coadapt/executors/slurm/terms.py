"""The settings with which allocations are requested: the executor's options, and the
options of sbatch that follow from them.
"""

from dataclasses import dataclass

from coadapt.model import InputError
from coadapt.model.offer import Offer

# Added to the time in which replicas save: until their end is noticed, and their
# processes are gone.
LEAVE_MARGIN_S = 30.0
NODES_MAX = 100_000
PER_NODE_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRequest:
    """A request in Slurm's own words; "" or None: the site's default. See
    docs/engines/slurm.md.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    time_limit: str = ""
    gpus_per_node: int | None = None
    slots: int | None = None
    cpus_per_gpu: int | None = None
    further: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises InputError."""
        for name, value in (
            ("gpus_per_node", self.gpus_per_node),
            ("slots", self.slots),
        ):
            if value is not None and not 1 <= value <= PER_NODE_MAX:
                raise InputError(
                    f"executor slurm, option {name}", value, f"1..{PER_NODE_MAX}"
                )
        if self.gpus_per_node is not None and self.slots is not None:
            raise InputError(
                "executor slurm, option slots",
                self.slots,
                "either slots or gpus_per_node",
            )
        for option in self.further:
            if not option.startswith("--"):
                raise InputError(
                    "executor slurm, option sbatch",
                    option,
                    "options such as --constraint=a100",
                )

    @property
    def options(self) -> tuple[str, ...]:
        """The options of sbatch. The environment is not passed on, because Slurm keeps
        it where others may read it.
        """
        named = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "time": self.time_limit,
            "gpus-per-node": self.gpus_per_node,
            "cpus-per-gpu": self.cpus_per_gpu,
            "cpus-per-task": self.slots,
        }
        options = [f"--{name}={value}" for name, value in named.items() if value]
        return ("--ntasks-per-node=1", *options, *self.further)


# --no-kill: an allocation outlives each of its nodes. --no-requeue: the pool asks for
# another one by itself.
HOLDING = (
    "--no-kill",
    "--no-requeue",
    "--export=HOME",
    "--output=/dev/null",
    "--error=/dev/null",
    "--chdir=/",
    "--comment=pool of a Coadapt scheduler",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """nodes: how many are always held. max_nodes: how many at most while jobs wait.
    allocation: see on_slurm.

    offer: the nodes of the pool, if they are bought; then the sizer orders its size.
    idle_s: how long a node above `nodes` is idle before it is given back. look_s:
    seconds between two queries of Slurm. leave_s: how long before the end of its
    allocation a node leaves.
    """

    request: SlurmRequest
    nodes: int = 1
    max_nodes: int = 1
    idle_s: float = 300.0
    look_s: float = 5.0
    leave_s: float = 60.0
    allocation: str = ""
    offer: Offer | None = None

    @property
    def slots(self) -> int | None:
        return self.request.slots

    @property
    def slots_per_node(self) -> int:
        return self.request.slots or self.request.gpus_per_node or 1

    @property
    def sbatch(self) -> tuple[str, ...]:
        return (*HOLDING, *self.request.options)
