"""The clairvoyant fluid: a job alone gets all GPUs, and two share them."""

from dataclasses import replace

import pytest

from benchmarks.castor_gap import clairvoyant, phases_of
from coadapt.sim.library.builtin import builtin_workload

MEAN_ALONE = (0.0, 0.0)


def test_a_job_alone_ends_when_all_gpus_have_done_its_phases() -> None:
    workload, applications = builtin_workload("default", 1, 5)
    job = workload.jobs[0]
    phases = phases_of(applications[job.application], job.spec)
    assert len(phases) > 1
    found = clairvoyant(workload, applications, MEAN_ALONE, usual_s=1.0)
    least_s = sum(work / goodput_V[-1] for work, _, goodput_V in phases)
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
