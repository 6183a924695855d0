"""Orders: the only output of the core.

Start, Resize, Retract and Stop are idempotent per (job, generation): an executor that has carried one out
answers a repeat with the present fate of that generation (ReplicasStarted, ReplicasKept or ReplicasExited),
and ignores a generation lower than one it has already seen for that job.
"""

from dataclasses import dataclass

from coadapt.model import Allocation, BatchConfig, ClusterView, JobId, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Solve:
    """Run the policy on `view`; answer PlanReady or PlanFailed with the same round."""

    round: int
    view: ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start the replicas, from the last checkpoint if there is one. `batch` None: the job picks its own."""

    job: JobId
    generation: int
    spec: JobSpec
    allocation: Allocation
    batch: BatchConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Bring the running replicas to `allocation` in place; they are of generation `generation` from then on.

    Answer ReplicasStarted (new generation), ReplicasKept if it did not come about, or ReplicasExited (new
    generation) if the job ended meanwhile.
    """

    job: JobId
    generation: int
    spec: JobSpec
    allocation: Allocation
    batch: BatchConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retract:
    """Take back the Resize of this generation, if the replicas have not begun to change; they train on.

    Answer ReplicasKept, or if it is too late what became of the Resize. One that comes later is not followed.
    """

    job: JobId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Save state and end all replicas of the job; answer ReplicasExited with this generation."""

    job: JobId
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAlarm:
    """Post TimerFired at instant `at`. A new alarm replaces the one before."""

    at: float


Command = Solve | Start | Resize | Retract | Stop | SetAlarm
JobCommand = Start | Resize | Retract | Stop
