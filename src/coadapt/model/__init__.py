"""Floor 0: the frozen values that everything else speaks in. Standard library only."""

from coadapt.model.batch import BatchConfig
from coadapt.model.batch_rule import BatchRule, RuleKind
from coadapt.model.cluster import (
    DEFAULT_GPU_TYPE,
    NO_GRANT,
    SHARERS_MAX,
    WAITING,
    Allocation,
    Grant,
    JobId,
    Node,
    NodeId,
    Placement,
    gpus_by_type,
)
from coadapt.model.devices import PARTS, FreeGpus, Holding, SharedGpu, holding
from coadapt.model.efficiency import EfficiencyKind, EfficiencyPoint, EfficiencySpec
from coadapt.model.errors import InputError
from coadapt.model.job import (
    BatchLimits,
    JobLength,
    JobSpec,
    Launch,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.model.measured import Measured, RescaleCosts, Usage
from coadapt.model.plan import Plan, PlanError, check_plan
from coadapt.model.report import (
    ApplicationTimes,
    BatchMode,
    Forecast,
    GradStats,
    ThroughputParams,
    TimedStep,
    TrainingReport,
    TypeProfile,
)
from coadapt.model.schedule import BatchSchedule
from coadapt.model.tenant import DEFAULT_TENANT, Tenant, TenantId
from coadapt.model.view import ClusterView, JobView

__all__ = [
    "DEFAULT_GPU_TYPE",
    "DEFAULT_TENANT",
    "NO_GRANT",
    "PARTS",
    "SHARERS_MAX",
    "WAITING",
    "Allocation",
    "ApplicationTimes",
    "BatchConfig",
    "BatchLimits",
    "BatchMode",
    "BatchRule",
    "BatchSchedule",
    "ClusterView",
    "EfficiencyKind",
    "EfficiencyPoint",
    "EfficiencySpec",
    "Forecast",
    "FreeGpus",
    "GradStats",
    "Grant",
    "Holding",
    "InputError",
    "JobId",
    "JobLength",
    "JobSpec",
    "JobView",
    "Launch",
    "Measured",
    "Node",
    "NodeId",
    "Placement",
    "Plan",
    "PlanError",
    "ReplicaLimits",
    "RescaleContract",
    "RescaleCosts",
    "RuleKind",
    "SharedGpu",
    "Tenant",
    "TenantId",
    "ThroughputParams",
    "TimedStep",
    "TrainingReport",
    "TypeProfile",
    "Usage",
    "check_plan",
    "gpus_by_type",
    "holding",
]
