"""What castor is held against: a job alone gets all GPUs, and two share them, as a
fluid or in rounds.
"""

from dataclasses import replace

import pytest

from benchmarks.castor.gap import clairvoyant, kinds_of, phases_of
from benchmarks.castor.ideal import ROUND_S, Job, ideal
from coadapt.sim.library.builtin import builtin_workload

MEAN_ALONE = (0.0, 0.0)


def test_a_job_alone_ends_when_all_gpus_have_done_its_phases() -> None:
    workload, applications = builtin_workload("default", 1, 5)
    job = workload.jobs[0]
    phases = phases_of(applications[job.application], job.spec)
    assert len(phases) > 1
    found = clairvoyant(workload, applications, MEAN_ALONE, usual_s=1.0)
    least_s = sum(phase.work / phase.goodput_K.max() for phase in phases)
    assert found["jct"] == pytest.approx(least_s, rel=1e-6)
    assert found["makespan"] == pytest.approx(job.at + least_s, rel=1e-6)


def test_two_at_once_share_the_gpus() -> None:
    workload, applications = builtin_workload("default", 1, 5)
    job = workload.jobs[0]
    alone_s = clairvoyant(workload, applications, MEAN_ALONE, usual_s=1.0)["jct"]
    twice = replace(workload, jobs=(job, replace(job, id="another")))
    found = clairvoyant(twice, applications, MEAN_ALONE, usual_s=1.0)
    assert alone_s < found["jct"] < 2.0 * alone_s
    assert found["makespan"] <= job.at + 2.0 * alone_s


def ideal_jobs(*at: float) -> list[Job]:
    """Return jobs of one application that come then."""
    workload, applications = builtin_workload("default", 1, 5)
    (phases,) = kinds_of(workload, applications).values()
    return [Job(each, list(phases)) for each in at]


def test_an_ideal_job_alone_waits_for_a_round_and_its_start() -> None:
    (job,) = ideal_jobs(30.0)
    least_s = sum(phase.work / phase.goodput_K.max() for phase in job.phases)
    for rescale_s in (0.0, 30.0):
        found = ideal(ideal_jobs(30.0), MEAN_ALONE, rescale_s)
        assert least_s + rescale_s + ROUND_S - 30.0 <= found["jct"] * (1 + 1e-9)
        assert found["jct"] <= 1.05 * least_s + 3.0 * rescale_s + ROUND_S
        assert found["makespan"] == pytest.approx(found["jct"] + 30.0)


def test_ideal_jobs_share_the_gpus_and_changes_cost_what_they_take() -> None:
    alone_s = ideal(ideal_jobs(0.0), MEAN_ALONE, 0.0)["jct"]
    free, dear = (
        ideal(ideal_jobs(0.0, 0.0, 0.0), MEAN_ALONE, rescale_s)
        for rescale_s in (0.0, 30.0)
    )
    assert alone_s < free["jct"] < free["makespan"] <= 3.0 * alone_s
    assert free["jct"] + 30.0 <= dear["jct"]
