"""What the demo does and expects: four jobs, when each is submitted, and how good its
result has to be.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coadapt.service.jobfile import JobFile, read_job_file

JOBS_DIR = Path(__file__).parent / "jobs"


@dataclass(frozen=True, kw_only=True)
class DemoJob:
    """The job of `jobs/<name>.yaml`, submitted `at_s` after the scheduler is up.

    Its script ends by printing a figure, which may be worse by `tolerance` than without
    the scheduler.
    """

    name: str
    at_s: float
    higher_is_better: bool
    tolerance: float

    @property
    def path(self) -> Path:
        return JOBS_DIR / f"{self.name}.yaml"

    @cached_property
    def file(self) -> JobFile:
        return read_job_file(self.path)

    def shortfall(self, result: float, plain: float) -> float:
        """Return by how much `result` is worse than `plain`; negative where it is
        better.
        """
        return plain - result if self.higher_is_better else result - plain


# A fixed job is promised the undisturbed run up to the order of floating-point sums.
# Training amplifies that: on one AMD processor the accuracy of shapes-fixed was 0.027
# above that of its script alone after all its epochs, and 0.027 below after a third. An
# adaptive job takes fewer, larger steps, on purpose.
JOBS = (
    DemoJob(name="shapes", at_s=0.0, higher_is_better=True, tolerance=0.03),  # accuracy
    DemoJob(name="shapes-fixed", at_s=14.0, higher_is_better=True, tolerance=0.03),
    DemoJob(
        name="tiny-gpt", at_s=20.0, higher_is_better=False, tolerance=0.01
    ),  # bits per letter
    DemoJob(
        name="factorise", at_s=26.0, higher_is_better=False, tolerance=0.02
    ),  # error of a rating
)


def find_result(log: str) -> tuple[str, float] | None:
    """Return name and value of the figure that a script printed last, None if it
    printed none.
    """
    found = re.findall(r"^final ([a-z ]+) (\d+\.\d+)$", log, re.M)
    return (found[-1][0], float(found[-1][1])) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one job did. `result` None: it ended without one."""

    job: DemoJob
    id: str
    state: str
    metric: str
    plain: float
    result: float | None
    num_gpus: tuple[int, ...]
    num_rescales: int
    num_failures: int
    wait_s: float
    total_s: float
    batch: int | None

    @property
    def good(self) -> bool:
        if self.state != "succeeded" or self.result is None:
            return False
        return self.job.shortfall(self.result, self.plain) <= self.job.tolerance


def as_json(verdicts: list[Verdict], wall_s: float, report: str) -> dict[str, object]:
    """Return the demo's outcome as plain data."""
    jobs = [
        {
            "name": verdict.job.name,
            "id": verdict.id,
            "state": verdict.state,
            "metric": verdict.metric,
            "result": verdict.result,
            "plain": verdict.plain,
            "tolerance": verdict.job.tolerance,
            "good": verdict.good,
            "num_gpus": list(verdict.num_gpus),
            "num_rescales": verdict.num_rescales,
            "num_failures": verdict.num_failures,
            "wait_s": round(verdict.wait_s, 1),
            "total_s": round(verdict.total_s, 1),
            "batch": verdict.batch,
        }
        for verdict in verdicts
    ]
    return {
        "good": all(v.good for v in verdicts),
        "wall_s": round(wall_s, 1),
        "report": report,
        "jobs": jobs,
    }
