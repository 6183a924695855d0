"""What a user submits. A JobSpec never changes after submission."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from coadapt.model.batch_rule import BatchRule
from coadapt.model.checkpoint_url import check_checkpoint_url
from coadapt.model.efficiency import EfficiencySpec
from coadapt.model.schedule import BatchSchedule
from coadapt.model.tenant import DEFAULT_TENANT, EVERYBODY, TenantId

# Batch limits that are kept once for all jobs that have the same.
LIMITS_KEPT = 4096


class RescaleContract(StrEnum):
    """What a change of the allocation may do to a job's training. docs/vocabulary.md
    states each promise.
    """

    FIXED = "fixed"
    ADAPTIVE = "adaptive"
    SELF = "self"
    FROZEN = "frozen"
    SCHEDULE = "schedule"


# Contracts under which the scheduler does not dictate a batch: the job chooses it.
OWNS_BATCH = (RescaleContract.SELF, RescaleContract.SCHEDULE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """The numbers of replicas (= GPUs) that a job may hold while it runs.

    requested: the number that the user would choose by hand, default `min`; policies
    that never rescale use it. gpu_types: the types that the job may run on; empty: any.
    """

    min: int = 1
    max: int = 1
    requested: int = 0
    gpu_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.min < 1:
            raise ValueError(f"gpus: the minimum must be >= 1, got {self.min}")
        if self.max < self.min:
            raise ValueError(
                f"gpus: the maximum must be >= the minimum, got {self.min}..{self.max}"
            )
        if self.requested == 0:
            object.__setattr__(self, "requested", self.min)
        if not self.min <= self.requested <= self.max:
            raise ValueError(
                f"gpus: requested must be within {self.min}..{self.max}, got "
                f"{self.requested}"
            )
        if "" in self.gpu_types or len(set(self.gpu_types)) < len(self.gpu_types):
            raise ValueError(f"gpu_types must be different names, got {self.gpu_types}")

    @property
    def in_words(self) -> str:
        """Return the allowed numbers of replicas as text: `1..4`, or `2`."""
        return f"{self.min}" if self.min == self.max else f"{self.min}..{self.max}"

    @property
    def types_in_words(self) -> str:
        """Return the allowed GPU types as text: `one type`, `type a100 or v100`."""
        return f"type {' or '.join(self.gpu_types)}" if self.gpu_types else "one type"

    def allows_type(self, gpu_type: str) -> bool:
        """Return whether the job may run on GPUs of `gpu_type`."""
        return not self.gpu_types or gpu_type in self.gpu_types


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Batch sizes that a job may use, in samples.

    initial: M0, to which progress and efficiency refer. requested: the total batch that
    the user would choose by hand (default: initial); contracts other than `adaptive`,
    and policies that do not choose batches, use it. max_total: the largest total batch.
    min_atomic, max_atomic: bounds of one pass on one replica (max_atomic None: only
    max_total limits it). accumulation: whether gradient accumulation is allowed.
    schedule: the total batches to come, under contract `schedule`; then `requested` is
    the first of them. rule: how a job under contract `self` changes its batch, from
    `requested` up to `max_total`.
    """

    initial: int
    requested: int = 0
    max_total: int = 0
    min_atomic: int = 1
    max_atomic: int | None = None
    accumulation: bool = True
    schedule: BatchSchedule | None = None
    rule: BatchRule | None = None
    _hash: int = field(init=False, compare=False, repr=False, default=0)

    def __hash__(self) -> int:
        # Cuts of batches are kept by these limits, and are looked up for every job in
        # every round.
        return self._hash

    def __post_init__(self) -> None:
        if self.initial < 1:
            raise ValueError(f"batch.initial must be >= 1, got {self.initial}")
        if self.requested == 0:
            first = self.initial if self.schedule is None else self.schedule.totals[0]
            object.__setattr__(self, "requested", first)
        largest = self.requested if self.schedule is None else max(self.schedule.totals)
        if self.max_total == 0:
            object.__setattr__(
                self, "max_total", max(self.initial, self.requested, largest)
            )
        if self.max_total < self.initial:
            raise ValueError(
                f"batch.max must be >= batch.initial ({self.initial}), got "
                f"{self.max_total}"
            )
        if not 1 <= self.requested <= self.max_total:
            raise ValueError(
                f"batch.requested must be within 1..{self.max_total}, got "
                f"{self.requested}"
            )
        if self.schedule is not None and self.requested != self.schedule.totals[0]:
            raise ValueError(
                f"batch.requested must be the first of batch.schedule, "
                f"{self.schedule.totals[0]}, "
                f"got {self.requested}"
            )
        if largest > self.max_total:
            raise ValueError(
                f"batch.schedule: at most batch.max ({self.max_total}), got {largest}"
            )
        if self.rule is not None and self.requested == self.max_total:
            raise ValueError(
                f"batch.rule needs batch.max above the batch it begins with, "
                f"{self.requested}"
            )
        if self.min_atomic < 1:
            raise ValueError(f"batch.min_atomic must be >= 1, got {self.min_atomic}")
        if self.max_atomic is not None and self.max_atomic < self.min_atomic:
            raise ValueError(
                f"batch.max_atomic must be >= batch.min_atomic ({self.min_atomic}), "
                f"got {self.max_atomic}"
            )
        # Of whole numbers alone, so that it is the same in every process that this is
        # handed to.
        sizes = (
            self.initial,
            self.requested,
            self.max_total,
            self.min_atomic,
            self.max_atomic or 0,
        )
        totals = () if self.schedule is None else self.schedule.totals
        object.__setattr__(self, "_hash", hash((*sizes, self.accumulation, totals)))


@lru_cache(maxsize=LIMITS_KEPT)
def _one_for_all(limits: BatchLimits) -> BatchLimits:
    """Return the first limits that were equal to `limits`: what is kept by them is then
    found at once.
    """
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLength:
    """How long a job trains, as its user declared it, in one of three units. It is a
    hint that may be wrong.
    """

    epochs: float | None = None
    steps: float | None = None
    samples: float | None = None

    def __post_init__(self) -> None:
        given = [
            value
            for value in (self.epochs, self.steps, self.samples)
            if value is not None
        ]
        if len(given) != 1 or not (math.isfinite(given[0]) and given[0] > 0):
            raise ValueError(
                "length: exactly one of epochs, steps, samples, finite and > 0, "
                f"got {self.epochs}, {self.steps}, {self.samples}"
            )


# Reports come about every 30 s; a long validation or a first compilation sends none for
# many minutes.
HANG_TIMEOUT_S = 1_800.0
# To install what a job needs takes minutes, to fetch its data perhaps an hour.
SETUP_TIMEOUT_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a replica: shell commands, environment and working directory.

    checkpoints: URL of the object store for checkpoints; empty: the job's own
    directory.
    """

    run: str
    setup: str = ""
    envs: tuple[tuple[str, str], ...] = ()
    workdir: str = "."
    hang_timeout_s: float | None = HANG_TIMEOUT_S
    """A job that reports, but has not for so long, is stopped and started again; None:
    it is let be.
    """
    checkpoints: str = ""
    setup_timeout_s: float | None = SETUP_TIMEOUT_S
    """`setup` that takes longer is ended, and the job has failed once more; None: it
    may take for ever.
    """

    def __post_init__(self) -> None:
        if not self.run.strip():
            raise ValueError("run: the command must not be empty")
        if self.hang_timeout_s is not None and not self.hang_timeout_s > 0:
            raise ValueError(f"hang_timeout must be > 0, got {self.hang_timeout_s}")
        if self.setup_timeout_s is not None and not self.setup_timeout_s > 0:
            raise ValueError(f"setup_timeout must be > 0, got {self.setup_timeout_s}")
        if self.checkpoints:
            check_checkpoint_url(self.checkpoints, "checkpoints")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as submitted."""

    name: str
    batch: BatchLimits
    replicas: ReplicaLimits = field(default_factory=ReplicaLimits)
    contract: RescaleContract = RescaleContract.FIXED
    tenant: TenantId = DEFAULT_TENANT
    """The owner of the job. What the tenant may have is state of the scheduler:
    ClusterView.tenants.
    """
    priority: int = 0
    """Higher goes first among the jobs of its tenant, for policies that know
    priorities.
    """
    deadline_at: float | None = None
    """When it is to have ended, s, for policies that know deadlines; None: at no
    certain time.
    """
    length: JobLength | None = None
    """How long it is to train, as declared."""
    application: str = ""
    """What it trains; traces and profiles are found by it."""
    efficiency: EfficiencySpec = field(default_factory=EfficiencySpec)
    """How the progress per sample of larger batches is estimated, where the contract is
    `adaptive`.
    """
    max_failures: int = 3
    max_cost: float | None = None
    """It is stopped once its GPUs have cost so much, in the currency of the prices;
    None: no limit.
    """
    launch: Launch | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch", _one_for_all(self.batch))
        if not self.name:
            raise ValueError("name must not be empty")
        if not self.tenant:
            raise ValueError("tenant must not be empty")
        if self.tenant == EVERYBODY:
            raise ValueError(
                f"tenant must be a name; {EVERYBODY!r} stands for all of them"
            )
        if self.deadline_at is not None and not math.isfinite(self.deadline_at):
            raise ValueError(f"deadline_at must be finite, got {self.deadline_at}")
        if (self.contract is RescaleContract.SCHEDULE) is not (
            self.batch.schedule is not None
        ):
            raise ValueError(
                f"batch.schedule goes with contract schedule only, got {self.contract}"
            )
        if self.batch.rule is not None and self.contract is not RescaleContract.SELF:
            raise ValueError(
                f"batch.rule goes with contract self only, got {self.contract}"
            )
        if self.max_failures < 0:
            raise ValueError(f"max_failures must be >= 0, got {self.max_failures}")
        if self.max_cost is not None and not 0.0 < self.max_cost < math.inf:
            raise ValueError(f"max_cost must be finite and > 0, got {self.max_cost}")

    @property
    def hang_timeout_s(self) -> float:
        """Return the seconds without a report after which a job that reports is
        restarted; infinity: never.
        """
        allowed_s = None if self.launch is None else self.launch.hang_timeout_s
        return math.inf if allowed_s is None else allowed_s

    @property
    def adaptive(self) -> bool:
        """Whether the scheduler may choose the batch size."""
        return self.contract is RescaleContract.ADAPTIVE

    @property
    def batch_is_own(self) -> bool:
        """Whether only the job decides its batch, so that no policy may dictate one."""
        return self.contract in OWNS_BATCH
