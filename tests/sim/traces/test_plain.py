"""A table of one's own: what each column means, every complaint, and that it keeps what
was written.
"""

import bz2
import codecs
import gzip
import lzma
import re
from pathlib import Path

import pytest

from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import InputError, JobLength, RescaleContract, Tenant
from coadapt.sim.experiment import (
    ExperimentConfig,
    compose,
    new_policy,
    simulate,
)
from coadapt.sim.library.builtin import builtin_workload
from coadapt.sim.traces import load_trace
from coadapt.sim.traces.plain import write_plain
from tests.sim.traces.stage import write_profiles, write_workload

CURVE = "name,arrival_s,gpus,curve,length_s\nmine,30,2,1:100 2:150 4:300,600\n"
APPLICATION = "arrival_s,gpus,application\n0,2,m\n"


def test_a_curve_is_elastic_and_runs_as_fast_as_it_says(tmp_path: Path) -> None:
    workload, applications = load_trace(write_workload(tmp_path, CURVE))
    (job,) = workload.jobs
    replicas = job.spec.replicas
    assert (job.id, job.at, replicas.min, replicas.requested, replicas.max) == (
        "0-mine",
        30.0,
        1,
        2,
        4,
    )
    config = ExperimentConfig(rescale_s=0.0)
    for gpus, run_s in ((2, 600.0), (1, 900.0)):
        cluster = parse_cluster(f"1x{gpus}")
        history = simulate(
            workload, applications, cluster, "optimus", config=config
        ).history
        assert history.jobs["0-mine"].ended_at == pytest.approx(60.0 + run_s, abs=1.0)


def test_an_application_is_adaptive_unless_said_otherwise(tmp_path: Path) -> None:
    profiles = write_profiles(tmp_path / "profiles")
    header = "arrival_s,gpus,application,batch,contract,gpus_min,gpus_max,tenant\n"
    text = header + "0,2,m,,,,,\n1,2,m,16,fixed,2,4,t\n"
    first, second = (
        job.spec for job in load_trace(write_workload(tmp_path, text), profiles)[0].jobs
    )
    assert (first.contract, first.batch.requested) == (RescaleContract.ADAPTIVE, 8)
    assert (first.replicas.min, first.replicas.requested, first.replicas.max) == (
        1,
        2,
        4,
    )
    assert (second.contract, second.batch.requested, second.tenant) == (
        RescaleContract.FIXED,
        16,
        "t",
    )
    assert (second.replicas.min, second.replicas.max) == (2, 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CURVE.replace("1:100 2:150", "2:150 1:100"), "line 2, curve: got '2:150 1:100 4:300'; allowed:"),
        (CURVE.replace("1:100", "1:fast"), "line 2, curve: got '1:fast 2:150 4:300'; allowed: GPUS:RATE"),
        (CURVE.replace("30,2,", "30,8,"), "line 2, gpus: got 8; allowed: 1..4, which its curve covers"),
        (CURVE.replace(",600", ",0"), "line 2, length_s: got 0.0; allowed: a finite number > 0"),
        (CURVE.replace(",length_s", "").replace(",600", ""), "allowed: a column 'length_s' for curves"),
        (CURVE.replace("30,2,1:100 2:150 4:300", "30,2,"), "line 2, application: got ''; allowed: an"),
        (APPLICATION.replace("gpus", "gpu"), "line 1, columns: got 'arrival_s,gpu,application'"),
        (APPLICATION.replace(",m", ",k"), "line 2, application: got 'k'; allowed: one of m"),
        (APPLICATION.replace("0,2", "0,9"), "line 2, gpus: got 9; allowed: 1..4, by its limits"),
        (APPLICATION.replace("0,2", "-1,2"), "line 2, arrival_s: got '-1'; allowed: a number from 0 to 10000000000"),
    ],
)  # fmt: skip
def test_a_bad_table_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    profiles = write_profiles(tmp_path / "profiles")
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_trace(write_workload(tmp_path, text), profiles)


def test_what_was_written_is_read_back_as_it_was(tmp_path: Path) -> None:
    profiles = write_profiles(tmp_path / "profiles")
    sources = [
        (load_trace(write_workload(tmp_path), profiles), profiles),
        (load_trace(write_workload(tmp_path, CURVE)), None),
        (builtin_workload(num_jobs=12), None),
    ]
    for (workload, applications), needed in sources:
        path = tmp_path / "plain.csv"
        write_plain(path, workload, applications)
        again, _ = load_trace(path, needed)
        assert [(job.at, job.spec) for job in again.jobs] == [
            (job.at, job.spec) for job in workload.jobs
        ]


FULL = (
    "name,arrival_s,gpus,gpus_min,gpus_max,curve,length_s,tenant,priority,weight,deadline_s,declared_length,gpu_load\n"
    "a,10,2,1,2,1:100 2:150 4:300,600,t,-1,4,700.5,300 s,0.5\n"
    "b,20,1,,,1:100,60,u,,,,64 steps,\n"
)


def test_what_a_user_says_of_a_job_reaches_its_spec(tmp_path: Path) -> None:
    workload, applications = load_trace(write_workload(tmp_path, FULL))
    first, second = workload.jobs
    assert (first.spec.tenant, first.spec.priority, first.spec.deadline_at) == (
        "t",
        -1,
        700.5,
    )
    assert first.spec.length == JobLength(samples=300.0 * 150.0)
    assert second.spec.length == JobLength(steps=64.0)
    assert (first.spec.replicas.min, first.spec.replicas.max) == (1, 2)
    assert workload.tenants == (Tenant(id="t", weight=4.0),)
    assert applications[first.application].load == 0.5
    path = tmp_path / "again.csv"
    write_plain(path, workload, applications)
    again, _ = load_trace(path)
    assert [(job.at, job.spec) for job in again.jobs] == [
        (job.at, job.spec) for job in workload.jobs
    ]
    assert again.tenants == workload.tenants


def test_weights_and_deadlines_act(tmp_path: Path) -> None:
    """Under castor, weights of 4 and 1 and a deadline change who waits; what was kept
    is counted.
    """
    header = "arrival_s,gpus,curve,length_s,tenant,weight,deadline_s\n"
    rows = "0,1,1:1,600,a,1,2000\n0,1,1:1,600,b,4,650\n"
    workload, applications = load_trace(write_workload(tmp_path, header + rows))
    config = ExperimentConfig(rescale_s=0.0)
    result = simulate(
        workload, applications, parse_cluster("1x1"), "srtf", config=config
    )
    assert (result.metrics.num_deadlines, result.metrics.num_deadlines_met) == (2, 1)
    simulation = compose(
        workload, applications, parse_cluster("1x1"), new_policy("srtf", 0), config
    )
    simulation.run()
    tenants = simulation.runtime.scheduler.state.tenants
    assert {name: tenant.weight for name, tenant in tenants.items()} == {
        "a": 1.0,
        "b": 4.0,
    }


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("gpus_max", "gpus_maks", ("line 1, columns: got 'gpus_maks'; allowed: 'gpus_max' is the nearest; "
            "known are")),
        ("declared_length", "Deadline", "line 1, columns: got 'Deadline'; allowed: 'deadline_s' is the nearest"),
        ("gpu_load", "gpus", "line 1, columns: got 'gpus'; allowed: each column once"),
        ("700.5", "9", ("line 2, deadline_s: got 9.0; allowed: an instant like arrival_s, and no "
            "less: 10")),
        (",-1,", ",high,", "line 2, priority: got 'high'; allowed: an integer"),
        ("300 s", "5 min", "line 2, declared_length: got '5 min'; allowed: a number > 0 and a unit"),
        ("64 steps", "-64 steps", "line 3, declared_length: got '-64 steps'"),
        (",0.5\n", ",1.5\n", "line 2, gpu_load: got 1.5; allowed: a number in (0, 1]"),
        ("2,1,2,", "2,1,8,", "line 2, gpus_max: got 8; allowed: no less than `gpus`, and 1..4"),
        ("2,1,2,", "2,3,4,", "line 2, gpus_min: got 3; allowed: at most `gpus`"),
        ("b,20,1,,,1:100,60,u,,,", "b,20,1,,,1:100,60,t,,2,", "line 3, weight: got 2.0; allowed: 4 as above"),
        ("-1,4,", "-1,0,", "line 2, weight: got 0.0; allowed: a finite number > 0"),
        (",60,u", ",1e300,u", "line 3, length_s: got '1e300'; allowed: a number from 0 to 8640000"),
        ("b,20,", "b,1.7e12,", "line 3, arrival_s: got '1.7e12'; allowed: a number from 0 to 10000000000"),
    ],
)  # fmt: skip
def test_what_is_no_such_value_is_one_line(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_trace(write_workload(tmp_path, FULL.replace(old, new, 1)))


def test_jobs_without_gpus_are_left_out_and_counted(tmp_path: Path) -> None:
    text = CURVE + "prepares,40,0,,\n"
    workload, _ = load_trace(write_workload(tmp_path, text))
    assert [job.spec.name for job in workload.jobs] == ["mine"]
    assert dict(workload.left_out) == {"no GPU": 1}
    with pytest.raises(InputError, match="no job that needs a GPU"):
        load_trace(write_workload(tmp_path, "arrival_s,gpus,curve,length_s\n0,0,,\n"))


def _as_spreadsheets_do(text: str) -> bytes:
    return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("w.csv", _as_spreadsheets_do(CURVE)),
        ("w.csv", _as_spreadsheets_do(CURVE.replace(",", ";"))),
        ("w.csv", CURVE.replace(",", "|").encode()),
        ("w.csv", CURVE.replace(",", "\t").encode()),
        ("w.csv", CURVE.replace("\n", ",,\n").encode()),
        ("w.csv", (CURVE + ",,,,\n\n").encode()),
        ("w.csv", "\n".join(f'"{line}"'.replace(",", '","') for line in CURVE.splitlines()).encode()),
        ("w.csv.gz", gzip.compress(CURVE.encode(), mtime=0)),
        ("w.csv.gz", gzip.compress(_as_spreadsheets_do(CURVE), mtime=0)),
        ("w.csv", gzip.compress(CURVE.encode(), mtime=0)),
        ("w.csv.bz2", bz2.compress(CURVE.encode())),
        ("w.csv.xz", lzma.compress(CURVE.encode())),
        ("w.csv", CURVE.encode("utf-16")),
        ("w.csv", codecs.BOM_UTF16_BE + CURVE.replace(",", "\t").encode("utf-16-be")),
    ],
)  # fmt: skip
def test_a_table_is_read_however_it_was_saved(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    workload, _ = load_trace(path)
    assert (workload.name, [(job.id, job.at) for job in workload.jobs]) == (
        "w",
        [("0-mine", 30.0)],
    )


def test_a_compressed_file_that_was_cut_off_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.csv.gz"
    path.write_bytes(gzip.compress(CURVE.encode(), mtime=0)[:-12])
    with pytest.raises(InputError, match="allowed: a readable text file"):
        load_trace(path)
