"""Floor 0: the frozen values that everything else speaks in. Standard library only."""

from coadapt.model.batch import BatchConfig
from coadapt.model.cluster import (
    DEFAULT_GPU_TYPE,
    WAITING,
    Allocation,
    GpuType,
    JobId,
    Node,
    NodeId,
    Placement,
)
from coadapt.model.errors import InputError
from coadapt.model.job import BatchLimits, JobSpec, Launch, ReplicaLimits, RescaleContract, Tenant
from coadapt.model.plan import Plan, PlanError, check_plan
from coadapt.model.report import Forecast, GradStats, ThroughputParams, TrainingReport
from coadapt.model.view import ClusterView, JobView

__all__ = [
    "DEFAULT_GPU_TYPE",
    "WAITING",
    "Allocation",
    "BatchConfig",
    "BatchLimits",
    "ClusterView",
    "Forecast",
    "GpuType",
    "GradStats",
    "InputError",
    "JobId",
    "JobSpec",
    "JobView",
    "Launch",
    "Node",
    "NodeId",
    "Placement",
    "Plan",
    "PlanError",
    "ReplicaLimits",
    "RescaleContract",
    "Tenant",
    "ThroughputParams",
    "TrainingReport",
    "check_plan",
]
