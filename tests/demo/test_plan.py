"""What the demo expects: lawful job files, results read right, and verdicts that can be
bad.
"""

from dataclasses import replace

import pytest

from coadapt.model import RescaleContract
from coadapt.service.jobfile import job_spec
from demo.plan import JOBS, DemoJob, Verdict, as_json, find_result

ACCURACY = DemoJob(name="shapes", at_s=0.0, higher_is_better=True, tolerance=0.02)
ERROR = DemoJob(name="factorise", at_s=5.0, higher_is_better=False, tolerance=0.02)


def verdict(job: DemoJob, result: float | None, state: str = "succeeded") -> Verdict:
    return Verdict(
        job=job,
        id=f"{job.name}-1",
        state=state,
        metric="figure",
        plain=0.9,
        result=result,
        num_gpus=(1, 2),
        num_rescales=1,
        num_failures=0,
        wait_s=1.0,
        total_s=30.0,
        batch=64,
    )


def test_the_job_files_show_what_the_demo_promises() -> None:
    specs = [job_spec(job.file, 1000.0) for job in JOBS]
    assert [spec.name for spec in specs] == [job.name for job in JOBS]
    assert {RescaleContract.FIXED, RescaleContract.ADAPTIVE} <= {
        spec.contract for spec in specs
    }
    assert any(spec.replicas.min == spec.replicas.max > 1 for spec in specs), (
        "no rigid job"
    )
    assert len({job.at_s for job in JOBS}) == len(JOBS) == 4


def test_the_last_figure_counts() -> None:
    log = (
        "epoch 0: loss 0.5\nfinal accuracy 0.2500\nepoch 1: loss 0.4\nfinal bits per "
        "letter 0.3558\n"
    )
    assert find_result(log) == ("bits per letter", 0.3558)
    assert find_result("epoch 0: loss 0.5\nthe final accuracy 0.9\n") is None


@pytest.mark.parametrize(
    ("job", "result", "good"),
    [
        (ACCURACY, 0.95, True),
        (ACCURACY, 0.885, True),
        (ACCURACY, 0.87, False),
        (ERROR, 0.5, True),
        (ERROR, 0.915, True),
        (ERROR, 0.93, False),
        (ERROR, None, False),
    ],
)
def test_a_result_may_be_better_but_hardly_worse(
    job: DemoJob, result: float | None, good: bool
) -> None:
    assert verdict(job, result).good is good
    assert not replace(verdict(job, result), state="failed").good


def test_the_outcome_is_good_if_every_job_is() -> None:
    good = verdict(ACCURACY, 0.9)
    bad = verdict(ERROR, 0.99)
    assert as_json([good], 60.0, "r.html")["good"] is True
    assert as_json([good, bad], 60.0, "r.html") == {
        "good": False,
        "wall_s": 60.0,
        "report": "r.html",
        "jobs": [
            {
                "name": name,
                "id": f"{name}-1",
                "state": "succeeded",
                "metric": "figure",
                "result": result,
                "plain": 0.9,
                "tolerance": 0.02,
                "good": is_good,
                "num_gpus": [1, 2],
                "num_rescales": 1,
                "num_failures": 0,
                "wait_s": 1.0,
                "total_s": 30.0,
                "batch": 64,
            }
            for name, result, is_good in (
                ("shapes", 0.9, True),
                ("factorise", 0.99, False),
            )
        ],
    }
