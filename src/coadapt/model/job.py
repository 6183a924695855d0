"""What a user submits. A JobSpec never changes after submission."""

from dataclasses import dataclass, field
from enum import StrEnum


class RescaleContract(StrEnum):
    """What a job's user may rely on when the allocation changes; docs/vocabulary.md states each promise."""

    FIXED = "fixed"
    ADAPTIVE = "adaptive"
    SELF = "self"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A user or team: its weight in fair shares, and the most GPUs it may hold at once (None: no limit)."""

    id: str = "default"
    weight: float = 1.0
    quota_gpus: int | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Tenant.id must not be empty")
        if self.weight <= 0:
            raise ValueError(f"Tenant.weight must be > 0, got {self.weight}")
        if self.quota_gpus is not None and self.quota_gpus < 0:
            raise ValueError(f"Tenant.quota_gpus must be >= 0, got {self.quota_gpus}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """Replicas (= GPUs) that a job may hold while it runs, and the count its user would pick by hand.

    `requested` is what policies that never resize use; it defaults to `min`.
    """

    min: int = 1
    max: int = 1
    requested: int = 0

    def __post_init__(self) -> None:
        if self.min < 1:
            raise ValueError(f"gpus: the minimum must be >= 1, got {self.min}")
        if self.max < self.min:
            raise ValueError(f"gpus: the maximum must be >= the minimum, got {self.min}..{self.max}")
        if self.requested == 0:
            object.__setattr__(self, "requested", self.min)
        if not self.min <= self.requested <= self.max:
            raise ValueError(f"gpus: requested must be within {self.min}..{self.max}, got {self.requested}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Batch sizes that a job may use, in samples.

    initial: M0, to which progress and efficiency refer. requested: the total batch its user would pick by
    hand (default: initial); contracts other than `adaptive`, and policies that know no adaptive jobs, use it.
    max_total: the largest total batch. min_atomic, max_atomic: bounds of one pass on one replica
    (max_atomic None: only max_total binds). accumulation: whether gradient accumulation is allowed.
    """

    initial: int
    requested: int = 0
    max_total: int = 0
    min_atomic: int = 1
    max_atomic: int | None = None
    accumulation: bool = True

    def __post_init__(self) -> None:
        if self.initial < 1:
            raise ValueError(f"batch.initial must be >= 1, got {self.initial}")
        if self.requested == 0:
            object.__setattr__(self, "requested", self.initial)
        if self.max_total == 0:
            object.__setattr__(self, "max_total", max(self.initial, self.requested))
        if self.max_total < self.initial:
            raise ValueError(f"batch.max must be >= batch.initial ({self.initial}), got {self.max_total}")
        if not 1 <= self.requested <= self.max_total:
            raise ValueError(f"batch.requested must be within 1..{self.max_total}, got {self.requested}")
        if self.min_atomic < 1:
            raise ValueError(f"batch.min_atomic must be >= 1, got {self.min_atomic}")
        if self.max_atomic is not None and self.max_atomic < self.min_atomic:
            raise ValueError(
                f"batch.max_atomic must be >= batch.min_atomic ({self.min_atomic}), got {self.max_atomic}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a replica: shell commands, environment and working directory of a real job."""

    run: str
    setup: str = ""
    envs: tuple[tuple[str, str], ...] = ()
    workdir: str = "."

    def __post_init__(self) -> None:
        if not self.run.strip():
            raise ValueError("run: the command must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as submitted. `application` names what it trains (traces and profiles are found by it)."""

    name: str
    batch: BatchLimits
    replicas: ReplicaLimits = field(default_factory=ReplicaLimits)
    contract: RescaleContract = RescaleContract.FIXED
    tenant: Tenant = field(default_factory=Tenant)
    application: str = ""
    max_failures: int = 3
    launch: Launch | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.max_failures < 0:
            raise ValueError(f"max_failures must be >= 0, got {self.max_failures}")

    @property
    def adaptive(self) -> bool:
        """Whether the scheduler may choose the batch size."""
        return self.contract is RescaleContract.ADAPTIVE
