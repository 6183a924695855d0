"""What one job gets: its GPUs, and the batch where somebody dictates it. The two always travel together."""

from dataclasses import dataclass

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import WAITING, Allocation
from coadapt.model.quick_init import quick_init


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An allocation, and the batch to train with on it; batch None: the job picks its own."""

    allocation: Allocation = WAITING
    batch: BatchConfig | None = None

    def __bool__(self) -> bool:
        return bool(self.allocation.slots)

    def satisfies(self, wanted: "Grant") -> bool:
        """Return whether a job that has this needs no order to have `wanted`: an open batch fits any."""
        return self.allocation == wanted.allocation and wanted.batch in (None, self.batch)


NO_GRANT = Grant()
