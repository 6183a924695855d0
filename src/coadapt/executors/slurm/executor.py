"""The executor of processes over a pool of Slurm's nodes, and the thread that looks
after the pool.
"""

import dataclasses
import secrets
import threading

from coadapt.durable import write_whole
from coadapt.executors.host import Host
from coadapt.executors.processes.executor import ProcessExecutor, ProcessOptions
from coadapt.executors.slurm.cluster import SlurmCluster
from coadapt.executors.slurm.pool import Pool
from coadapt.executors.slurm.reach import check_time_limit
from coadapt.executors.slurm.terms import LEAVE_MARGIN_S, PoolTerms
from coadapt.executors.slurm.tools import SlurmError
from coadapt.model import InputError, Node
from coadapt.runtime.ports import Post

NAME_BYTES = 4
PRIVATE_DIR = 0o700


class SlurmExecutor(ProcessExecutor):
    """The executor over a pool. Closing it leaves the allocations, and the replicas in
    them, for the next executor.
    """

    def __init__(
        self, pool: Pool, cluster: SlurmCluster, host: Host, options: ProcessOptions
    ) -> None:
        super().__init__(cluster, host, options)
        self._pool = pool
        self._slurm = cluster

    @classmethod
    def over_pool(
        cls, terms: PoolTerms, host: Host, options: ProcessOptions
    ) -> "SlurmExecutor":
        """Return the executor over the allocations that are already held, or are
        requested now. Raises InputError.
        """
        terms = dataclasses.replace(terms, leave_s=host.stop_grace_s + LEAVE_MARGIN_S)
        check_time_limit(terms)
        folder = host.state_dir / "slurm"
        folder.mkdir(mode=PRIVATE_DIR, parents=True, exist_ok=True)
        name_file = folder / "pool"
        if not name_file.exists():
            write_whole(name_file, f"coadapt-{secrets.token_hex(NAME_BYTES)}")
        try:
            pool = Pool(
                terms,
                folder / "suspects",
                name_file.read_text().strip(),
                host.wanted_slots,
            )
        except SlurmError as error:
            raise InputError(
                "--executor",
                "slurm",
                f"an allocation that Slurm grants; Slurm says: {error}",
            ) from None
        return cls(pool, SlurmCluster(pool, terms, options.control_host), host, options)

    @property
    def to_come(self) -> tuple[Node, ...]:
        """The nodes that the largest pool has beyond the present ones."""
        return self._slurm.to_come

    def run(self, post: Post) -> None:
        looking = threading.Thread(
            target=self._pool.run, name="slurm pool", daemon=True
        )
        looking.start()
        try:
            super().run(post)
        finally:
            self._pool.close()
            looking.join()
