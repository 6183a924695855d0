"""The importer of Sia's format: a profile per GPU type, its memory, and each model's
own rescale time.
"""

from pathlib import Path

import pytest

from coadapt.cli.research.simulate import parse_cluster
from coadapt.model import InputError, Placement
from coadapt.sim.applications import Setting, UnmeasuredError
from coadapt.sim.experiment import simulate
from coadapt.sim.learned import first_look
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.sia import TypedApplication
from tests.sim.traces.stage import WORKLOAD, write_profiles, write_workload

PLACEMENTS = "placement,local_bsz,step_time,sync_time\n"
SCALABILITY = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    """Return profiles of one model: as the Pollux artifact's on aws, at half the time
    and up to 8 on rtx.
    """
    folder = write_profiles(tmp_path / "profiles")
    for kind in ("placements", "scalability"):
        (folder / f"m/{kind}.csv").rename(folder / f"m/{kind}-aws.csv")
    (folder / "m/placements-rtx.csv").write_text(
        f"{PLACEMENTS}1,4,0.5,0.0\n1,8,1.0,0.0\n2,4,0.75,0.25\n2,6.0,0.8,0.25\n"
    )
    (folder / "m/scalability-rtx.csv").write_text(f"{SCALABILITY}3,3,4,3.0,2.0\n")
    return folder


def on(gpu_type: str, *replicas: int) -> Setting:
    return Setting(Placement(replicas or (1,)), gpu_type)


def test_step_times_are_those_of_the_type_times_the_slowdown(profiles: Path) -> None:
    application = TypedApplication(profiles / "m")
    assert application.gpu_types == ("aws", "rtx")
    assert application.step_time(on("aws"), 4) == pytest.approx((1.2, 0.0))
    assert application.step_time(on("rtx", 2), 4) == pytest.approx((0.9, 0.3))
    with pytest.raises(
        UnmeasuredError, match="measured on aws, rtx, not on GPU type 'quad'"
    ):
        application.step_time(on("quad"), 4)


def test_memory_is_what_was_measured_on_type_and_placement(profiles: Path) -> None:
    application = TypedApplication(profiles / "m")
    assert (application.limits.min_atomic, application.limits.max_atomic) == (4, 16)
    assert [application.max_atomic(on("rtx", *each)) for each in ((1,), (2,))] == [8, 6]
    assert application.max_atomic(on("aws", 1)) == 16
    half = Setting(Placement((1,)), "aws", gpu_share=0.5)
    assert application.max_atomic(half) == 8


def test_a_format_is_told_by_its_profiles(tmp_path: Path, profiles: Path) -> None:
    path = write_workload(tmp_path)
    assert isinstance(load_trace(path, profiles)[1]["m"], TypedApplication)
    other = write_profiles(tmp_path / "other")
    assert not isinstance(load_trace(path, other)[1]["m"], TypedApplication)


def test_each_model_has_its_own_rescale_time(tmp_path: Path, profiles: Path) -> None:
    (profiles / "m").rename(profiles / "yolov3")
    text = WORKLOAD.replace(",m,", ",yolov3,").replace(",60,", ",60.5,")
    workload, applications = load_trace(write_workload(tmp_path, text), profiles)
    assert [(job.at, job.rescale_s) for job in workload.jobs] == [
        (0.0, 80.0),
        (60.5, 80.0),
    ]
    cluster = parse_cluster("1x2:aws,1x2:rtx")
    history = simulate(workload, applications, cluster, "fifo").history
    costs = [job.usage.costs.total_s for job in history.jobs.values()]
    assert costs == [80.0, 80.0]


def test_an_unknown_type_is_named(profiles: Path) -> None:
    (profiles / "m/placements-tpu.csv").write_text(f"{PLACEMENTS}1,4,0.5,0.0\n")
    with pytest.raises(
        InputError, match=r"got 'placements-tpu.csv'; allowed: placements-\*.csv of"
    ):
        TypedApplication(profiles / "m")


def test_profiles_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match="--profiles: got 'nothing'; allowed: a directory with APPLICATION/",
    ):
        load_trace(write_workload(tmp_path), None, "sia")


def test_a_first_look_times_one_gpu_of_each_type(profiles: Path) -> None:
    told = first_look(
        TypedApplication(profiles / "m"), ["aws", "quad", "rtx"]
    ).by_type()
    assert sorted(told) == ["aws", "rtx"]
    aws, rtx = (told[name].params for name in ("aws", "rtx"))
    # 8 samples: 2 s and 1 s, times the slowdown of 1.2.
    assert aws.alpha_c + 8 * aws.beta_c == pytest.approx(2.4, rel=0.02)
    assert rtx.alpha_c + 8 * rtx.beta_c == pytest.approx(1.2, rel=0.02)
    assert {each.profile.num_replicas_profiled for each in told.values()} == {1}
