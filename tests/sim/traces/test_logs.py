"""Logs of real clusters, in small files of their form, and workloads drawn from them
(OSDI'21).
"""

import json
import re
from pathlib import Path

import pytest

from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import InputError
from coadapt.sim.experiment import ExperimentConfig, simulate
from coadapt.sim.traces import load_trace
from coadapt.sim.traces import read_log as traces_read_log
from coadapt.sim.traces.cluster_log import LoggedJob
from coadapt.sim.traces.osdi21_generator import Recipe, generate, requests_of, whole
from coadapt.sim.traces.tally import ReadOptions
from coadapt.sim.traces.tuned_jobs import TunedJob, write_jobs
from tests.sim.traces.stage import write_profiles

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,600.0,1,600.0,a
2017-10-09 07:00:55,120.0,4,480.0,b
2017-10-09 07:05:55,0.0,4,0.0,b
2017-10-09 07:06:55,50.0,0,0.0,b
"""


def entry(**changes: object) -> dict[str, object]:
    """Return one job of Philly's JSON: two attempts, 60 s and 120 s, the second on 3
    GPUs of two nodes.
    """
    first = {
        "start_time": "2017-10-07 01:12:00",
        "end_time": "2017-10-07 01:13:00",
        "detail": [],
    }
    detail = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu5"]}]
    last = {
        "start_time": "2017-10-07 02:00:00",
        "end_time": "2017-10-07 02:02:00",
        "detail": detail,
    }
    job = {
        "status": "Pass",
        "vc": "v",
        "jobid": "app_1",
        "attempts": [first, last],
        "user": "u",
    }
    return {**job, "submitted_time": "2017-10-07 01:11:39", **changes}


SPAN = {"start_time": "2017-10-07", "end_time": "2017-10-08"}
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u,vcA,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:02,2020-06-09 18:51:02,600,1
8,u,vcB,4,16,1,FAILED,2020-06-09 18:41:00,2020-06-09 18:41:00,2020-06-09 18:43:00,120,0
9,u,vcB,0,16,1,COMPLETED,2020-06-09 18:41:00,2020-06-09 18:41:00,2020-06-09 18:43:00,120,0
"""
ACME = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "a1,u5,8,64,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,"
    "2023-03-01 00:20:51+08:00,117,32,7488.0\n"
    "a2,u5,1,8,128,Other,CANCELLED,2023-03-01 00:19:00+08:00,,,0,0,0.0\n"
)
PAI = """j1,worker,2,Terminated,100,400,600,29,50,T4
j1,ps,1,Terminated,110,500,600,29,,
j2,tensorflow,1,Running,120,,600,29,100,V100
j3,tensorflow,1,Failed,50,80,600,29,25,MISC
"""


def written(folder: Path, text: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_reduced_philly_log_becomes_rigid_jobs(tmp_path: Path) -> None:
    workload, applications = load_trace(written(tmp_path, PHILLY))
    assert [(job.id, job.at, job.spec.tenant) for job in workload.jobs] == [
        ("0-job-1", 0.0, "b"),
        ("1-job-0", 60.0, "a"),
    ]
    replicas = workload.jobs[0].spec.replicas
    assert (replicas.min, replicas.requested, replicas.max) == (4, 4, 4)
    config = ExperimentConfig(rescale_s=0.0)
    history = simulate(
        workload, applications, parse_cluster("1x5"), "fifo", config=config
    ).history
    # Each waits for the next round, and runs as long as it did there.
    assert [job.ended_at for job in history.jobs.values()] == [180.0, 660.0]


def test_the_philly_log_itself_counts_all_attempts(tmp_path: Path) -> None:
    waiting = entry(attempts=[])
    running = entry(
        attempts=[{"start_time": "2017-10-07 01:12:00", "end_time": None, "detail": []}]
    )
    path = written(tmp_path, json.dumps([waiting, entry(), running]))
    (job,) = traces_read_log(path)
    assert (job.name, job.run_s, job.num_gpus, job.tenant) == ("app_1", 180.0, 3, "v")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (PHILLY.replace("600.0,1,", "long,1,"), "line 2, duration: got 'long'; allowed: a finite"),
        (PHILLY.replace("120.0,4", "120.0,1.5"), "line 3, num_gpus: got '1.5'; allowed: an integer >= 0"),
        (PHILLY.replace("2017-10-09 07:01:55", "Monday"), "line 2, timestamp: got 'Monday'; allowed: an"),
        (PHILLY[: PHILLY.index("\n") + 1] + "2017-10-09 07:05:55,0.0,4,0.0,b\n", "no job that ran on a GPU"),
        ('[{"jobid": ', "line 1 column 12: got 'Expecting value'; allowed: a JSON list of jobs"),
        (json.dumps([entry(attempts=3)]), "job 1, attempts: got 3; allowed: a list"),
        (json.dumps([entry(attempts=[{**SPAN, "detail": 1}])]), "detail: got 1; allowed: a list of nodes"),
        (json.dumps([entry(submitted_time="now")]), "job 1: got \"Invalid isoformat string: 'now'\"; "),
    ],
)  # fmt: skip
def test_a_bad_philly_log_is_one_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_trace(written(tmp_path, text), name="philly")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HELIOS, [("8", 0.0, 120.0, 4, "vcB"), ("7", 1.0, 600.0, 1, "vcA")]),
        (ACME, [("a1", 0.0, 117.0, 64, "u5")]),
        (PAI, [("j3", 0.0, 30.0, 1, "default"), ("j1", 50.0, 300.0, 1, "default")]),
    ],
)
def test_other_logs_become_rigid_jobs(
    tmp_path: Path, text: str, expected: list[tuple[str, float, float, int, str]]
) -> None:
    workload, applications = load_trace(written(tmp_path, text))
    found = [
        (
            job.spec.name,
            job.at,
            applications[job.application].length_s,  # type: ignore[attr-defined]
            job.spec.replicas.requested,
            job.spec.tenant,
        )
        for job in workload.jobs
    ]
    assert found == expected
    assert [each.num_gpus for each in traces_read_log(written(tmp_path, text))]


@pytest.mark.parametrize("missing", ["None", "", "null", "NULL", "nan", None])
def test_a_time_that_was_not_logged_leaves_a_job_out(
    tmp_path: Path, missing: str | None
) -> None:
    first = {"start_time": missing, "end_time": "2017-10-07 01:13:00", "detail": []}
    unsaid = entry(attempts=[first])
    path = written(tmp_path, json.dumps([unsaid, entry()]))
    workload, _ = load_trace(path)
    assert (len(workload.jobs), workload.num_rows) == (1, 2)
    assert dict(workload.left_out) == {"a time was not logged, or it had not ended": 1}
    shown = missing or ""
    text = HELIOS.replace("2020-06-09 18:41:02", shown)
    assert len(load_trace(written(tmp_path, text))[0].jobs) == 1


KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    "k1,u1,1,8,96,Other,COMPLETED,2023-05-17 10:00:00+00:00,2023-05-17 11:00:00+00:00,"
    "2023-05-17 11:10:00+00:00,{duration},3600.0,33600.0\n"
)


@pytest.mark.parametrize(
    ("duration", "num_mended"), [("4200", 1), ("600", 0), ("601.0", 0), ("", 1)]
)
def test_a_job_runs_from_its_start_to_its_end(
    tmp_path: Path, duration: str, num_mended: int
) -> None:
    workload, applications = load_trace(
        written(tmp_path, KALOS.format(duration=duration))
    )
    (application,) = applications.values()
    assert application.length_s == 600.0  # type: ignore[attr-defined]
    assert sum(workload.mended.values()) == num_mended


def test_a_run_over_a_change_of_clocks_is_as_long_as_it_was(tmp_path: Path) -> None:
    text = KALOS.format(duration="600").replace("11:10:00+00:00", "12:10:00+01:00")
    (application,) = load_trace(written(tmp_path, text))[1].values()
    assert application.length_s == 600.0  # type: ignore[attr-defined]


def test_parts_of_gpus_are_kept_unless_whole_ones_are_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, PAI)
    loads = [each.load for each in load_trace(path)[1].values()]
    assert loads == [0.25, 1.0]
    whole_ones = load_trace(path, options=ReadOptions(whole_gpus=True))[1]
    assert {each.load for each in whole_ones.values()} == {1.0}
    workload = load_trace(path)[0]
    assert dict(workload.left_out) == {
        "no GPU": 1,
        "a task that had not ended, or never ran": 1,
    }


def test_a_part_of_a_gpu_however_small_is_a_job_of_one_gpu(tmp_path: Path) -> None:
    path = written(tmp_path, "j,t,1,Terminated,0,60,600,29,1e-300,T4\n")
    (job,) = load_trace(path)[0].jobs
    assert job.spec.replicas.requested == 1


def test_a_job_with_a_bad_task_is_left_out_whole(tmp_path: Path) -> None:
    text = PAI + "j3,worker,1,Failed,x,80,600,29,25,MISC\n"
    workload, _ = load_trace(
        written(tmp_path, text), options=ReadOptions(skip_bad=True)
    )
    assert [job.spec.name for job in workload.jobs] == ["j1"]
    assert workload.left_out["not readable: start_time"] == 1


def test_the_published_header_of_pai_is_passed_over(tmp_path: Path) -> None:
    header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    assert len(load_trace(written(tmp_path, header + PAI))[0].jobs) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (HELIOS.replace("1,1,1,COMP", "x,1,1,COMP"), "line 2, gpu_num: got 'x'; allowed: an integer >= 0"),
        (ACME.replace("117,32", "-1,32"), "line 2, duration: got '-1'; allowed: a finite number >= 0"),
        (PAI.replace("100,400", "500,400"), "line 1, end_time: got '400'; allowed: no less than"),
        (PAI.replace("Failed", "Done"), "line 4, status: got 'Done'; allowed: Terminated, Failed"),
        (PAI.replace(",MISC", ""), "line 4: got 'j3,tensorflow,1,Failed,50,80,600,29,25'; allowed: 10"),
    ],
)  # fmt: skip
def test_bad_rows_of_other_logs_are_one_line(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_trace(written(tmp_path, text))


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="allowed: a log of a cluster: philly, sensetime, pai"
    ):
        traces_read_log(written(tmp_path, "arrival_s,gpus\n"))


def logged(hours: float, at: float = 3 * 3600.0, num_gpus: int = 2) -> LoggedJob:
    return LoggedJob(
        name="x", at=at, run_s=hours * 3600.0 / num_gpus, num_gpus=num_gpus
    )


REQUESTS = {
    name: ((number, 8), (2 * number, 16))
    for number, name in enumerate(
        ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"), start=1
    )
}


def test_a_generated_workload_has_the_log_s_sizes_and_hours(tmp_path: Path) -> None:
    early = logged(0.5, at=2 * 3600.0 + 7)
    night = logged(500.0, at=11 * 3600.0)
    log = [
        logged(0.5),
        logged(5.0),
        logged(50.0),
        logged(500.0),
        early,
        night,
        logged(1001.0),
        logged(0.001),
    ]
    jobs = generate(log, REQUESTS, Recipe(num_jobs=5, seed=1))
    assert [job.time for job in jobs] == [7, 3600, 3600, 3600, 3600]
    sizes = [job.application for job in jobs]
    assert sizes[0] in ("cifar10", "ncf")
    assert sizes[2] in ("deepspeech2", "bert")
    assert sizes[3:] == ["yolov3", "imagenet"]
    assert jobs == generate(log, REQUESTS, Recipe(num_jobs=5, seed=1))
    with pytest.raises(
        InputError, match="--jobs: got 6; allowed: at most 5, which came in these hours"
    ):
        generate(log, REQUESTS, Recipe(num_jobs=6))
    assert all(
        (job.num_replicas, job.batch_size) in REQUESTS[job.application] for job in jobs
    )


def test_a_whole_log_is_drawn_with_its_arrivals() -> None:
    log = [logged(2000.0, at=100.0), logged(0.5, at=40.0), logged(50.0, at=90_000.0)]
    jobs = whole(log, REQUESTS, seed=1)
    assert [(job.time, job.application) for job in jobs[1:]] == [
        (60, "imagenet"),
        (89_960, "yolov3"),
    ]
    assert jobs[0].time == 0
    assert jobs[0].application in ("cifar10", "ncf")
    assert jobs == whole(log, REQUESTS, seed=1)


def test_a_generated_workload_is_read_back(tmp_path: Path) -> None:
    jobs = [TunedJob("m-0", 3, "m", 2, 16), TunedJob("m-1", 60, "m", 1, 8)]
    path = tmp_path / "workload.csv"
    write_jobs(path, jobs)
    workload, _ = load_trace(path, write_profiles(tmp_path / "profiles"))
    assert [(job.spec.name, job.at) for job in workload.jobs] == [
        (job.name, job.time) for job in jobs
    ]
    assert [job.spec.replicas.requested for job in workload.jobs] == [2, 1]


def test_seeds_draw_other_workloads() -> None:
    log = [logged(0.5, at=3 * 3600.0 + second) for second in range(40)]
    drawn = [
        generate(log, REQUESTS, Recipe(num_jobs=10, seed=seed)) for seed in range(3)
    ]
    assert drawn[0] != drawn[1] != drawn[2]
    assert {job.application for each in drawn for job in each} == {"cifar10", "ncf"}


def test_a_profile_that_misses_is_named() -> None:
    with pytest.raises(InputError, match="--profiles: got 'no cifar10, ncf, "):
        requests_of({})
