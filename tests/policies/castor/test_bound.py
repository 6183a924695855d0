"""The proven bound: below every simulated schedule, and what a job alone takes where it is alone."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.castor_bound import ROUNDING_S, WIDTH_S, Setting, bound, bounded, epochs_of, jobs_of, search
from coadapt.model import Node, RescaleContract
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.library.builtin import builtin_workload

CLUSTER = (Node(id="node-0", num_gpus=4),)
SETTING = Setting(num_gpus=4, node_gpus=4)


def test_no_schedule_is_below_the_bound_and_prices_make_it_tighter() -> None:
    workload, applications = builtin_workload("busy", 8, 3, num_gpus=4)
    config = ExperimentConfig(figures_only=True)
    found = simulate(workload, applications, CLUSTER, "castor", config=config).metrics
    jobs = jobs_of(workload, applications, SETTING)
    waits_s = jobs.starts_J.sum() - sum(job.at for job in workload.jobs)
    free_s, _ = bound(jobs, np.zeros(1), WIDTH_S, 4.0)
    least_s, price_I = search(jobs, 4, found.makespan_s, steps=10)
    assert price_I.max() > 0.0
    assert 1.1 * free_s < least_s
    assert least_s + waits_s <= found.jct_mean_s * len(workload.jobs)


def test_a_job_alone_that_keeps_its_batch_is_bounded_by_what_it_takes() -> None:
    workload, applications = builtin_workload("default", 1, 5, num_gpus=4)
    job = workload.jobs[0]
    spec = replace(job.spec, contract=RescaleContract.FIXED)
    workload = replace(workload, jobs=(replace(job, spec=spec),))
    work_E, rate_EK = epochs_of(applications[job.application], spec, SETTING)
    epoch_E = (work_E[:, None] / rate_EK).min(axis=1)
    starts_s = max(np.ceil(job.at / 60.0), 1.0) * 60.0 + 30.0 - job.at
    least_s = bounded(workload, applications, SETTING, 10_000.0)
    assert least_s == pytest.approx(starts_s + (epoch_E - ROUNDING_S).sum(), rel=1e-6)
    result = simulate(workload, applications, CLUSTER, "fifo", config=ExperimentConfig(figures_only=True))
    assert least_s <= result.metrics.jct_mean_s
