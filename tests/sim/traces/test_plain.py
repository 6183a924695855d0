"""A table of one's own: what each column means, every complaint, and that it keeps what was written."""

import re
from pathlib import Path

import pytest

from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import InputError, RescaleContract
from coadapt.sim.experiment import ExperimentConfig, simulate
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
        (CURVE.replace(",length_s", ",other"), "allowed: a column 'length_s' for curves"),
        (CURVE.replace("30,2,1:100 2:150 4:300", "30,2,"), "line 2, application: got ''; allowed: an"),
        (APPLICATION.replace("gpus", "gpu"), "line 1, columns: got 'arrival_s,gpu,application'"),
        (APPLICATION.replace(",m", ",k"), "line 2, application: got 'k'; allowed: one of m"),
        (APPLICATION.replace("0,2", "0,9"), "line 2, gpus: got 9; allowed: 1..4, by its limits"),
        (APPLICATION.replace("0,2", "-1,2"), "line 2, arrival_s: got '-1'; allowed: a finite number >= 0"),
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
