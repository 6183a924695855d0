"""What the demo does and expects: four jobs, when each is submitted, and how good its result has to be."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

JOBS_DIR = Path(__file__).parent / "jobs"
RESULT_MARK = "result "


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """One job: `<name>.yaml` and `<name>.py`, submitted `at_s` after the scheduler is up.

    metric: the figure of its result that is compared with a plain run's; it may be worse by `tolerance`.
    """

    name: str
    at_s: float
    what: str
    contract: str
    metric: str
    higher_is_better: bool
    tolerance: float

    @property
    def job_file(self) -> Path:
        return JOBS_DIR / f"{self.name}.yaml"

    @property
    def script(self) -> Path:
        return JOBS_DIR / f"{self.name}.py"

    def shortfall(self, result: float, plain: float) -> float:
        """Return by how much `result` is worse than `plain`; negative where it is better."""
        return plain - result if self.higher_is_better else result - plain


# A fixed job is promised the undisturbed run up to the order of floating-point sums, which training
# amplifies: its tolerance is a few test samples wide. An adaptive job takes fewer, larger steps on purpose.
JOBS = (
    DemoJob(
        name="digits", at_s=0.0, what="convolutional network, images of digits", contract="adaptive, 1..4",
        metric="accuracy", higher_is_better=True, tolerance=0.02,
    ),
    DemoJob(
        name="spirals", at_s=20.0, what="perceptron, two spirals, 10 % wrong labels", contract="fixed, 1..2",
        metric="accuracy", higher_is_better=True, tolerance=0.01,
    ),
    DemoJob(
        name="letters", at_s=30.0, what="recurrent network, Python's own source", contract="fixed, rigid 2",
        metric="bits_per_letter", higher_is_better=False, tolerance=0.03,
    ),
    DemoJob(
        name="ratings", at_s=40.0, what="matrix factorisation, noisy ratings", contract="adaptive, 1..4",
        metric="rmse", higher_is_better=False, tolerance=0.03,
    ),
)  # fmt: skip


def find_result(log: str) -> Mapping[str, float] | None:
    """Return the figures that a script printed last, None if it printed none."""
    lines = [line for line in log.splitlines() if line.startswith(RESULT_MARK)]
    if not lines:
        return None
    figures: dict[str, float] = json.loads(lines[-1].removeprefix(RESULT_MARK))
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one job did. `result` None: it ended without one."""

    job: DemoJob
    id: str
    state: str
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
            "metric": verdict.job.metric,
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
    return {"good": all(v.good for v in verdicts), "wall_s": round(wall_s, 1), "report": report, "jobs": jobs}
