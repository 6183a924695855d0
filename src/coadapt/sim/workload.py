"""A workload: which job comes when. Values only; importers and generators make them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model import JobId, JobSpec, Tenant

# The longest job that a run plays to its end: 100 days.
LENGTH_MAX_S = 100 * 86_400.0
# The latest arrival, s: seconds since 1970 are in range, milliseconds are not.
ARRIVAL_MAX_S = 1e10


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One arrival: job `id` is submitted at `at` seconds and trains `application`.

    rescale_s: what a start or a rescale costs it, in seconds of training; None: what it
    costs all jobs.
    """

    id: JobId
    at: float
    application: str
    spec: JobSpec
    rescale_s: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at) and self.at >= 0.0):
            raise ValueError(f"TraceJob.at must be finite and >= 0, got {self.at}")
        if self.rescale_s is not None and not (
            math.isfinite(self.rescale_s) and self.rescale_s >= 0.0
        ):
            raise ValueError(
                f"TraceJob.rescale_s must be finite and >= 0, got {self.rescale_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in order of arrival. The core breaks ties of arrival by id, so ids should
    sort in file order.

    tenants: what is granted to the tenants of whom the workload says something.
    num_rows: of the file it is of, with how many were left out, or mended, for which
    reason.
    """

    name: str
    jobs: tuple[TraceJob, ...]
    tenants: tuple[Tenant, ...] = ()
    num_rows: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    mended: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({job.id for job in self.jobs}) != len(self.jobs):
            raise ValueError(f"Workload {self.name!r}: a job id occurs twice")
