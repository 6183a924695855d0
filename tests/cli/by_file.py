"""A policy for tests: every job gets as many GPUs as the file named by
COADAPT_TEST_GPUS says.
"""

import os
from pathlib import Path

from coadapt.model import Allocation, ClusterView, Plan


class ByFile:
    def allocate(self, view: ClusterView) -> Plan:
        count = int(Path(os.environ["COADAPT_TEST_GPUS"]).read_text())
        allocation = Allocation(slots=((view.nodes[0].id, count),))
        return Plan(allocations={job.id: allocation for job in view.jobs})
