"""Built-in applications and workloads: laws of the curves, sensible requests,
determinism, bad input.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.goodput.batch import split_total
from coadapt.goodput.efficiency import gain
from coadapt.model import BatchConfig, GradStats, InputError
from coadapt.sim.applications import Application, packed, step_s
from coadapt.sim.library.builtin import (
    MIXES,
    arrivals,
    builtin_workload,
    sensible_requests,
)
from coadapt.sim.library.profiles import (
    BUILTIN_APPLICATIONS,
    NoiseCurve,
    ParametricApplication,
)
from tests.sim.stage import at

APPLICATIONS = sorted(BUILTIN_APPLICATIONS)
each_application = pytest.mark.parametrize("name", APPLICATIONS)


def total_steps(application: ParametricApplication, total: int) -> float:
    return application.steps(total, application.num_epochs)


@each_application
def test_it_is_an_application(name: str) -> None:
    application: Application = BUILTIN_APPLICATIONS[name]
    assert application.name == name


@each_application
def test_steps_at_the_initial_batch_are_the_progress(name: str) -> None:
    application = BUILTIN_APPLICATIONS[name]
    for epoch in (0, 1, application.num_epochs):
        assert application.steps(application.limits.initial, epoch) == pytest.approx(
            application.progress_at(epoch)
        )


@each_application
def test_larger_batches_take_fewer_steps_but_more_samples(name: str) -> None:
    application = BUILTIN_APPLICATIONS[name]
    totals = [application.limits.initial * 2**k for k in range(6)]
    steps = [total_steps(application, total) for total in totals]
    assert steps == sorted(steps, reverse=True)
    samples = [count * total for count, total in zip(steps, totals, strict=True)]
    assert samples == sorted(samples)


@each_application
def test_one_epoch_of_steps_is_progress_over_gain(name: str) -> None:
    application = BUILTIN_APPLICATIONS[name]
    total = application.limits.max_total
    stats = application.grad_stats(total, 0)
    expected = application.progress_at(1) / gain(
        total / application.limits.initial, stats.sqr, stats.var
    )
    assert application.steps(total, 1) == pytest.approx(expected)


@each_application
def test_noise_grows_over_the_training(name: str) -> None:
    application = BUILTIN_APPLICATIONS[name]
    noise = [
        application.grad_stats(64, epoch).var for epoch in range(application.num_epochs)
    ]
    assert noise == sorted(noise)
    assert noise[-1] > noise[0]


@each_application
def test_more_replicas_are_faster_per_sample_but_not_perfectly(name: str) -> None:
    application = BUILTIN_APPLICATIONS[name]
    total = application.limits.max_total
    counts = (1, 2, 4)
    seconds = [
        step_s(application, packed(n, 4), split_total(total, n, application.limits))
        for n in counts
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert all(
        seconds[0] < n * took for n, took in zip(counts[1:], seconds[1:], strict=True)
    )


def test_one_replica_synchronises_nothing() -> None:
    application = BUILTIN_APPLICATIONS["resnet18-cifar10"]
    whole_s, sync_s = application.step_time(at(1), 128)
    assert sync_s == 0.0
    assert whole_s == pytest.approx(
        application.params.alpha_c + 128 * application.params.beta_c
    )
    batch = BatchConfig(total=256, atomic=128, accumulation=1)
    assert step_s(application, at(1), batch) == pytest.approx(2 * whole_s)


def test_what_is_not_known_is_an_error() -> None:
    application = BUILTIN_APPLICATIONS["bert-squad"]
    last = application.num_epochs
    for call in (
        lambda: application.step_time(at(), 4),
        lambda: application.step_time(at(1), 0),
        lambda: application.grad_stats(12, last),
        lambda: application.grad_stats(12, -1),
        lambda: application.grad_stats(0, 0),
        lambda: application.progress_at(last + 1),
        lambda: application.steps(12, last + 1),
        lambda: application.steps(0, 1),
        lambda: application.noise.at(1.1),
        lambda: NoiseCurve(first=0.0, growth=2.0),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_noise_curve_by_hand() -> None:
    curve = NoiseCurve(first=100.0, growth=4.0, drops=(0.5,), jump=3.0)
    assert [curve.at(0.0), curve.at(0.49) < 200.0, curve.at(0.5), curve.at(1.0)] == [
        100.0,
        True,
        600.0,
        1200.0,
    ]
    application = BUILTIN_APPLICATIONS["neumf-movielens"]
    assert application.grad_stats(256, 0) == GradStats(
        sqr=1.0, var=50_000 * 50**0.05 / 256
    )


# -- workloads
# --------------------------------------------------------------------------------------


def test_equal_arguments_give_equal_workloads() -> None:
    assert builtin_workload(num_jobs=40, seed=3) == builtin_workload(
        num_jobs=40, seed=3
    )
    assert builtin_workload(num_jobs=40, seed=3) != builtin_workload(
        num_jobs=40, seed=4
    )


def test_the_default_workload_has_the_shape_that_it_promises() -> None:
    counts: Counter[str] = Counter()
    for seed in range(10):
        workload, applications = builtin_workload(seed=seed)
        counts.update(job.application for job in workload.jobs)
        assert len(workload.jobs) == 160
        assert all(0 <= job.at < 8 * 3600 for job in workload.jobs)
        assert {job.application for job in workload.jobs} <= applications.keys()
    for name, share in MIXES["default"].shares.items():
        assert counts[name] / 1600 == pytest.approx(share, abs=0.04)
    assert sum(MIXES["default"].shares.values()) == pytest.approx(1.0)


def test_ids_sort_in_order_of_arrival() -> None:
    workload, _ = builtin_workload(num_jobs=120, seed=1)
    assert sorted(workload.jobs, key=lambda job: job.id) == list(workload.jobs)
    assert sorted(workload.jobs, key=lambda job: job.at) == list(workload.jobs)


@given(
    num_jobs=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
    num_gpus=st.integers(1, 80),
    name=st.sampled_from(sorted(MIXES)),
)
def test_every_request_fits_the_cluster_and_the_job(
    num_jobs: int, seed: int, num_gpus: int, name: str
) -> None:
    workload, applications = builtin_workload(name, num_jobs, seed, num_gpus=num_gpus)
    assert len(workload.jobs) == num_jobs
    for job in workload.jobs:
        replicas = job.spec.replicas
        batch = job.spec.batch
        assert 1 <= replicas.requested <= replicas.max <= num_gpus
        assert batch.requested >= replicas.requested * batch.min_atomic
        application = applications[job.application]
        config = split_total(batch.requested, replicas.requested, batch)
        assert step_s(application, packed(replicas.requested, 4), config) > 0


def test_busy_has_twice_the_rate() -> None:
    quiet, _ = builtin_workload("default", 500)
    busy, _ = builtin_workload("busy", 500)
    assert quiet.jobs[-1].at / busy.jobs[-1].at == pytest.approx(2.0, rel=0.02)
    assert (quiet.name, busy.name) == ("builtin:500", "builtin:busy:500")


def test_the_middle_of_the_day_is_three_times_as_busy_as_its_edges() -> None:
    instants = arrivals(100_000, 9000.0, np.random.default_rng(0))
    counts, _ = np.histogram(instants, bins=9, range=(0.0, 9000.0))
    assert counts[4] / counts[0] == pytest.approx(
        2.84, rel=0.1
    )  # means over ninths of 1 + 2 sin²
    assert instants == sorted(instants)


@each_application
def test_requests_scale_reasonably(name: str) -> None:
    for num_replicas, total in sensible_requests(BUILTIN_APPLICATIONS[name], 64):
        assert total >= num_replicas
    assert sensible_requests(BUILTIN_APPLICATIONS["yolov3-voc"], 64) == ((4, 64),)
    assert sensible_requests(BUILTIN_APPLICATIONS["yolov3-voc"], 1) == ((1, 8),)
    on_sixteen = sensible_requests(BUILTIN_APPLICATIONS["resnet50-imagenet"], 16)
    assert on_sixteen
    assert all(1 < num_replicas <= 16 for num_replicas, _ in on_sixteen)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"name": "nope"}, "builtin workload"),
        ({"num_jobs": 0}, "builtin workload, number of jobs"),
        ({"num_gpus": 0}, "builtin workload, number of GPUs"),
    ],
)
def test_bad_input_names_the_field(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        builtin_workload(**arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


# -- origin
# --------------------------------------------------------------------------------------

SOURCE_NAMES = {
    "resnet18-cifar10": "cifar10",
    "neumf-movielens": "ncf",
    "deepspeech2-arctic": "deepspeech2",
    "bert-squad": "bert",
    "yolov3-voc": "yolov3",
    "resnet50-imagenet": "imagenet",
}


@pytest.mark.papers
@each_application
def test_fits_explain_the_measurements_that_they_come_from(name: str) -> None:
    """Root mean square error of log step time below 0.17 on all rows of the OSDI'21
    profiles.
    """
    root = os.environ.get("COADAPT_TRACES")
    if not root:
        pytest.skip("COADAPT_TRACES is not set")
    folder = Path(root) / "osdi21" / "traces" / SOURCE_NAMES[name]
    header, *rows = (
        line.split(",") for line in (folder / "placements.csv").read_text().splitlines()
    )
    assert header[:4] == ["placement", "local_bsz", "step_time", "sync_time"]
    application = BUILTIN_APPLICATIONS[name]
    errors = [
        np.log(
            application.step_time(at(*map(int, row[0])), int(row[1]))[0] / float(row[2])
        )
        for row in rows
    ]
    assert np.sqrt(np.mean(np.square(errors))) < 0.17
