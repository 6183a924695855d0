"""The machines of the pool as nodes, and how a command becomes a step on one of
them.
"""

import sys
from collections.abc import Mapping

from coadapt.executors.processes.slots import Slot
from coadapt.executors.slurm import proxy, runner
from coadapt.executors.slurm.pool import Pool
from coadapt.executors.slurm.sizing import PoolHost
from coadapt.executors.slurm.terms import PoolTerms
from coadapt.model import DEFAULT_GPU_TYPE, Node, NodeId
from coadapt.model.contract_env import CPU_SLOT_TYPE
from coadapt.model.offer import Offer, OfferId

# The plan decides which job holds which slot, so Slurm gives all resources of an
# allocation to every step. Otherwise Slurm would let a new step wait until it has
# cleaned up after the previous one.
STEP = (
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mem=0",
    "--cpu-bind=none",
    "--mpi=none",
    "--input=none",
    "--unbuffered",
    "--quiet",
    "--export=ALL",
    "--job-name=coadapt",
)


class SlurmCluster:
    """`own_address`: where nodes reach this machine."""

    def __init__(self, pool: Pool, terms: PoolTerms, own_address: str) -> None:
        self._pool = pool
        self._terms = terms
        self._slots = terms.slots
        self._own_address = own_address
        # A replica may still name a node that has just left.
        self._known: dict[NodeId, PoolHost] = {}

    @property
    def nodes(self) -> tuple[Node, ...]:
        present = sorted(self._look().items())
        return tuple(
            node for name, host in present if (node := self._node(name, host)).num_gpus
        )

    @property
    def to_come(self) -> tuple[Node, ...]:
        """Nodes that are or may still be requested. Their type is that of the known
        nodes, if there are any.
        """
        present = self.nodes
        kind = CPU_SLOT_TYPE if self._slots is not None else DEFAULT_GPU_TYPE
        kind = present[0].gpu_type if present else kind
        numbers = range(len(present), self._terms.max_nodes)
        slots = self._terms.slots_per_node
        return tuple(
            Node(id=f"to-come-{number}", num_gpus=slots, gpu_type=kind)
            for number in numbers
        )

    @property
    def offers(self) -> tuple[Offer, ...]:
        """The pool's nodes, if they are bought."""
        return () if self._terms.offer is None else (self._terms.offer,)

    @property
    def noticed(self) -> Mapping[NodeId, float]:
        return self._pool.noticed

    def buy(self, nodes: Mapping[OfferId, int]) -> None:
        for offer in self.offers:
            self._pool.buy(nodes.get(offer.id, 0))

    def give_back(self, node: NodeId) -> None:
        self._pool.give_back(node)

    @property
    def devices(self) -> Mapping[NodeId, tuple[str, ...]]:
        """Numbers among the GPUs of the step. runner.py finds out which GPUs these
        are.
        """
        if self._slots is not None:
            return {}
        self._look()
        return {
            name: tuple(str(number) for number in range(host.gpus.count))
            for name, host in self._known.items()
            if host.gpus.count
        }

    @property
    def trouble(self) -> str:
        return self._pool.trouble

    @property
    def why_gone(self) -> Mapping[NodeId, str]:
        return self._pool.why_gone

    def address(self, node: NodeId) -> str:
        self._look()
        return self._known[node].address

    def via(self, node: NodeId, _slot: Slot) -> tuple[str, ...]:
        """Return a command that runs the command appended to it as a step on `node`."""
        self._look()
        host = self._known[node]
        gres = "none" if self._slots is not None else f"gpu:{host.gpus.count}"
        where = (f"--jobid={host.job}", f"--nodelist={node}", f"--gres={gres}")
        stand_in = (
            sys.executable,
            "-m",
            proxy.__name__,
            self._own_address,
            str(self._pool.suspect(node)),
        )
        return (*stand_in, *STEP, *where, sys.executable, "-m", runner.__name__)

    def _look(self) -> Mapping[NodeId, PoolHost]:
        hosts = self._pool.hosts
        self._known |= hosts
        return hosts

    def _node(self, name: NodeId, host: PoolHost) -> Node:
        slots = self._slots
        return Node(
            id=name,
            num_gpus=host.gpus.count if slots is None else slots,
            gpu_type=host.gpus.kind if slots is None else CPU_SLOT_TYPE,
            offer="" if self._terms.offer is None else self._terms.offer.id,
        )
