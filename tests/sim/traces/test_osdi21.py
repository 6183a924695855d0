"""The importer of the Pollux artifact's format: mapping, interpolation, and every
complaint.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coadapt.model import (
    BatchConfig,
    BatchLimits,
    Forecast,
    GradStats,
    InputError,
    JobSpec,
    Placement,
    ReplicaLimits,
    RescaleContract,
)
from coadapt.sim.agent import Training, assignment, report
from coadapt.sim.applications import Setting, TellsMetrics, UnmeasuredError
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.osdi21 import MeasuredApplication
from coadapt.sim.workload import TraceJob
from tests.sim.stage import at
from tests.sim.traces.stage import WORKLOAD, write_profiles, write_workload

HEADER = WORKLOAD.splitlines()[0]


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    return write_profiles(tmp_path / "profiles")


@pytest.fixture
def application(profiles: Path) -> MeasuredApplication:
    return MeasuredApplication(profiles / "m")


def test_a_workload_becomes_adaptive_jobs(tmp_path: Path, profiles: Path) -> None:
    workload, applications = load_trace(write_workload(tmp_path), profiles)
    limits = {"initial": 8, "max_total": 16, "min_atomic": 4, "max_atomic": 16}
    assert workload.name == "w"
    assert workload.jobs[1] == TraceJob(
        id="1-m-1",
        at=60.0,
        application="m",
        spec=JobSpec(
            name="m-1",
            application="m",
            batch=BatchLimits(requested=16, **limits),
            replicas=ReplicaLimits(min=1, max=4, requested=2),
            contract=RescaleContract.ADAPTIVE,
        ),
    )
    assert applications["m"].limits == BatchLimits(**limits)
    assert applications["m"].num_epochs == 2


def test_ids_sort_in_file_order(tmp_path: Path, profiles: Path) -> None:
    rows = "".join(f"m-{index},0,m,1,8\n" for index in range(11))
    workload, _ = load_trace(write_workload(tmp_path, f"{HEADER}\n{rows}"), profiles)
    assert [job.id for job in workload.jobs] == sorted(job.id for job in workload.jobs)


def test_the_artifact_s_exceptions(tmp_path: Path) -> None:
    profiles = write_profiles(tmp_path / "profiles", "ncf", "yolov3")
    (profiles / "ncf/validation-32768.csv").write_text(
        "progress,iteration,metric,grad_sqr,grad_var\n100,9,0,1,1\n200,19,0,1,1\n"
    )
    text = f"{HEADER}\nncf-0,0,ncf,4,1024\nyolov3-1,0,yolov3,1,8\n"
    (ncf, yolov3), _ = (
        load_trace(write_workload(tmp_path, text), profiles)[0].jobs,
        None,
    )
    assert ncf.spec.contract is RescaleContract.FIXED
    assert (ncf.spec.batch.requested, ncf.spec.replicas) == (32768, ReplicaLimits())
    assert yolov3.spec.batch.max_atomic == 8


class TestTruth:
    """Step times, gradient statistics and progress between the measured points."""

    def test_measured_placements_are_lines_over_the_atomic_batch(
        self, application: MeasuredApplication
    ) -> None:
        assert application.step_time(at(2), 4) == (1.5, 0.5)
        assert application.step_time(at(2), 10) == (3.0, 0.5)

    def test_rotations_are_one_placement(
        self, application: MeasuredApplication
    ) -> None:
        assert (
            application.step_time(at(2, 1), 4)
            == application.step_time(at(1, 2), 4)
            == (2.5, 1.5)
        )

    def test_others_lie_between_placements_of_like_size(
        self, application: MeasuredApplication
    ) -> None:
        # 4 nodes, 5 replicas: on the line from (2, 4) to (6, 6).
        step_s, sync_s = application.step_time(at(1, 1, 1, 2), 4)
        assert (step_s, sync_s) == pytest.approx((3.0, 2.0))

    @pytest.mark.parametrize(
        ("placement", "atomic"),
        [((2,), 3), ((2,), 17), ((1, 1, 1, 2), 3), ((4, 4), 4), ((2,) * 9, 4)],
    )
    def test_nothing_is_extrapolated(
        self, application: MeasuredApplication, placement: tuple[int, ...], atomic: int
    ) -> None:
        with pytest.raises(
            UnmeasuredError,
            match=re.escape(f"m: {atomic} samples per GPU on placement {placement} "),
        ):
            application.step_time(at(*placement), atomic)

    def test_gradient_statistics_are_lines_over_the_batch(
        self, application: MeasuredApplication
    ) -> None:
        assert application.grad_stats(8, 0) == GradStats(sqr=1.0, var=1.0)
        assert application.grad_stats(16, 1) == GradStats(sqr=1.0, var=3.0)
        assert application.grad_stats(10, 0) == GradStats(sqr=1.25, var=1.5)

    @pytest.mark.parametrize("total", [7, 17])
    def test_no_statistics_outside_the_measured_batches(
        self, application: MeasuredApplication, total: int
    ) -> None:
        with pytest.raises(UnmeasuredError, match=r"measured are 8\.\.16"):
            application.grad_stats(total, 0)

    def test_an_epoch_is_over_when_the_least_run_had_ended_it(
        self, application: MeasuredApplication
    ) -> None:
        assert [application.progress_at(epoch) for epoch in range(3)] == [
            0.0,
            100.0,
            199.0,
        ]

    def test_steps_are_lines_over_the_batch(
        self, application: MeasuredApplication
    ) -> None:
        assert [application.steps(8, epoch) for epoch in range(3)] == [
            0.0,
            100.0,
            200.0,
        ]
        assert application.steps(12, 2) == 175.0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "m-0,-5,m,1,8",
            "line 2, time: got '-5'; allowed: a number from 0 to 10000000000",
        ),
        (
            "m-0,soon,m,1,8",
            "line 2, time: got 'soon'; allowed: a number from 0 to 10000000000",
        ),
        ("m-0,1,m,one,8", "line 2, num_replicas: got 'one'; allowed: an integer >= 1"),
        ("m-0,1,m,0,8", "line 2, num_replicas: got '0'; allowed: an integer >= 1"),
        (
            "m-0,1,m,3,8",
            "line 2, num_replicas: got 3; allowed: 1..2 for a total batch of 8",
        ),
        ("m-0,1,m,1,7", "line 2, batch_size: got 7; allowed: 8..16, as measured"),
        ("m-0,1,m,1,32", "line 2, batch_size: got 32; allowed: 8..16, as measured"),
        ("m-0,1,x,1,8", "line 2, application: got 'x'; allowed: one of m"),
        (",1,m,1,8", "line 2, name: got ''; allowed: a name"),
        (
            "m-0,1,m,1,8\nm-0,2,m,1,8",
            "line 3, name: got 'm-0'; allowed: a name that no earlier line has",
        ),
        ("m-0,1,m,1", "line 2: got 'm-0,1,m,1'; allowed: 5 values, one per column"),
    ],
)
def test_a_bad_workload_is_one_line(
    tmp_path: Path, profiles: Path, line: str, message: str
) -> None:
    path = write_workload(tmp_path, f"{HEADER}\n{line}\n")
    with pytest.raises(InputError) as error:
        load_trace(path, profiles)
    assert str(error.value) == f"{path} {message}"


def test_a_missing_column_is_named(tmp_path: Path, profiles: Path) -> None:
    path = write_workload(
        tmp_path, "name,application,num_replicas,batch_size\nm-0,m,1,8\n"
    )
    with pytest.raises(InputError, match="allowed: a column 'time' among them"):
        load_trace(path, profiles)


def test_an_empty_workload_is_refused(tmp_path: Path, profiles: Path) -> None:
    with pytest.raises(InputError, match="at least one row"):
        load_trace(write_workload(tmp_path, HEADER + "\n"), profiles)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_an_unknown_format_is_refused(
    tmp_path: Path, profiles: Path, text: str
) -> None:
    with pytest.raises(
        InputError,
        match=r"the header of a known format \(sia, osdi21, .*arrival_s,gpus,curve,length_s",
    ):
        load_trace(write_workload(tmp_path, text), profiles)


def test_a_format_can_be_named(tmp_path: Path, profiles: Path) -> None:
    path = write_workload(tmp_path, "a,b\n1,2\n")
    with pytest.raises(InputError, match="allowed: a column 'name'"):
        load_trace(path, profiles, "osdi21")
    with pytest.raises(InputError, match="--format: got 'csv'; allowed: sia, osdi21"):
        load_trace(path, profiles, "csv")


class TestBadProfiles:
    """Profiles are input too."""

    @pytest.mark.parametrize("make", [False, True])
    def test_no_profiles(self, tmp_path: Path, make: bool) -> None:
        empty = tmp_path / "empty"
        if make:
            empty.mkdir()
        with pytest.raises(InputError, match="--profiles"):
            load_trace(write_workload(tmp_path), empty)

    @pytest.mark.parametrize(
        ("file", "text", "message"),
        [
            (
                "placements.csv",
                "placement,local_bsz,step_time,sync_time\n21,4,1,0\n",
                "the smallest rotation",
            ),
            (
                "placements.csv",
                "placement,local_bsz,step_time,sync_time\n10,4,1,0\n",
                "no digit 0",
            ),
            (
                "placements.csv",
                "placement,local_bsz,step_time,sync_time\n1,4,1,1\n",
                "less than step_time, 1.0",
            ),
            (
                "scalability.csv",
                "num_nodes,num_replicas\n6,6\n",
                "a column 'local_bsz' among them",
            ),
            (
                "validation-8.csv",
                "progress,iteration,grad_sqr,grad_var\n1,1,-1,1\n",
                "a finite number >= 0",
            ),
        ],
    )
    def test_bad_files(
        self, tmp_path: Path, profiles: Path, file: str, text: str, message: str
    ) -> None:
        (profiles / "m" / file).write_text(text)
        with pytest.raises(InputError, match=message) as error:
            load_trace(write_workload(tmp_path), profiles)
        assert file in error.value.field

    def test_no_training_runs(self, tmp_path: Path, profiles: Path) -> None:
        for path in (profiles / "m").glob("validation-*.csv"):
            path.unlink()
        with pytest.raises(InputError, match="one per measured total batch size"):
            load_trace(write_workload(tmp_path), profiles)


def test_a_model_s_own_measure_is_what_its_jobs_log(
    application: MeasuredApplication, profiles: Path
) -> None:
    assert isinstance(application, TellsMetrics)
    assert application.metrics(8, 1) == {"validation_metric": 0.5}
    assert application.metrics(12, 2) == {"validation_metric": 0.6}
    given = assignment(
        application,
        JobSpec(name="m", batch=application.limits),
        Setting(Placement((1,))),
        BatchConfig(total=8, atomic=8),
    )
    forecast = Forecast(remaining_steps=1.0, step_time_s=(1.0,))
    training = Training(batch=BatchConfig(total=8, atomic=8))
    assert (
        report(application, given, training, forecast).metrics == {}
    )  # before its first epoch ended
    after = report(application, given, replace(training, epoch=2), forecast)
    assert after.metrics == {"validation_metric": 0.6}
    for path in (profiles / "m").glob("validation-*.csv"):
        path.write_text("progress,iteration,grad_sqr,grad_var\n100,100,1,1\n")
    assert MeasuredApplication(profiles / "m").metrics(8, 1) == {}


def test_a_measure_that_is_no_number_is_blamed(profiles: Path) -> None:
    path = profiles / "m" / "validation-8.csv"
    path.write_text("progress,iteration,metric,grad_sqr,grad_var\n100,100,good,1,1\n")
    with pytest.raises(
        InputError, match="line 2, metric: got 'good'; allowed: a number, or nothing"
    ):
        MeasuredApplication(profiles / "m")
