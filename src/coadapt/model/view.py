"""All that a policy sees: a frozen picture of the cluster at the start of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import WAITING, Allocation, JobId, Node
from coadapt.model.job import JobSpec
from coadapt.model.report import Forecast, GradStats, ThroughputParams


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One active job. Nothing here refers to live state: it pickles, and it is safe to keep.

    started_at: first start, None before it. num_rescales: changes of allocation after the first start
    (a preemption counts when the job starts again). rescale_s: mean measured rescale time of this job, or the
    cluster's default before one was measured. batch_history: (instant, total batch) at each change.
    """

    id: JobId
    spec: JobSpec
    submitted_at: float
    allocation: Allocation = WAITING
    batch: BatchConfig | None = None
    started_at: float | None = None
    attained_service_gpu_s: float = 0.0
    num_rescales: int = 0
    rescale_s: float = 30.0
    progress: float = 0.0
    progress_target: float | None = None
    throughput: Mapping[str, ThroughputParams] = field(default_factory=dict)
    grad: GradStats | None = None
    num_replicas_profiled: int = 0
    forecast: Forecast | None = None
    batch_history: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster at instant `at` (s): live nodes by id, and active jobs by (submitted_at, id)."""

    at: float
    nodes: tuple[Node, ...]
    jobs: tuple[JobView, ...]

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)
