"""A workload: which job comes when. Values only; importers and generators make them."""

import math
from dataclasses import dataclass

from coadapt.model import JobId, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One arrival: job `id` is submitted at `at` seconds and trains `application`."""

    id: JobId
    at: float
    application: str
    spec: JobSpec

    def __post_init__(self) -> None:
        if not (math.isfinite(self.at) and self.at >= 0.0):
            raise ValueError(f"TraceJob.at must be finite and >= 0, got {self.at}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in order of arrival. The core breaks ties of arrival by id, so ids should sort in file order."""

    name: str
    jobs: tuple[TraceJob, ...]

    def __post_init__(self) -> None:
        if len({job.id for job in self.jobs}) != len(self.jobs):
            raise ValueError(f"Workload {self.name!r}: a job id occurs twice")
