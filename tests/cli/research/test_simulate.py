"""`coadapt simulate`: its output, its options, and one line for each mistake."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from coadapt.cli.research.inputs import parse_cluster
from coadapt.cli.research.simulate import FIGURES, simulate
from coadapt.model import InputError, Node
from coadapt.policies.ones.policy import Ones
from coadapt.sim import warm_up
from coadapt.sim.warm_up import COMPILES
from tests.sim.traces.stage import WORKLOAD, write_profiles, write_workload

APP = typer.Typer()
APP.command()(simulate)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A workload with its profiles, and a cluster that they cover."""
    profiles = write_profiles(tmp_path / "profiles")
    return [
        str(write_workload(tmp_path)),
        "--profiles",
        str(profiles),
        "--cluster",
        "2x2",
    ]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def refusal(*arguments: str) -> str:
    """Return the text of the InputError that the call ends in, having said no more than
    that it compiles.
    """
    result = call(*arguments)
    assert isinstance(result.exception, InputError), result.output
    assert result.output in ("", f"{COMPILES}\n")
    return str(result.exception)


def entries(*arguments: str) -> list[dict[str, object]]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    text = json.loads(result.stdout)
    assert list(text) == ["results"]
    found: list[dict[str, object]] = text["results"]
    return found


def test_json_has_one_entry_per_trace_policy_and_seed(arguments: list[str]) -> None:
    found = entries(*arguments, "--policy", "fifo,optimus", "--seeds", "2")
    assert [(e["trace"], e["policy"], e["seed"]) for e in found] == [
        ("w", "fifo", 0),
        ("w", "fifo", 1),
        ("w", "optimus", 0),
        ("w", "optimus", 1),
    ]
    assert list(found[0]) == ["trace", "policy", "seed", *FIGURES]
    assert found[0]["num_jobs"] == 2


def test_what_no_seed_changes_is_played_once(
    arguments: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "tables"
    result = call(
        *arguments, "--policy", "fifo,ones", "--seeds", "3", "--json", "--out", str(out)
    )
    assert "2 of 6 runs do not depend on their seed" in result.stderr
    found = json.loads(result.stdout)["results"]
    assert [(e["policy"], e["seed"]) for e in found] == [
        (policy, seed) for policy in ("fifo", "ones") for seed in range(3)
    ]
    assert len({e["cpu_s"] for e in found if e["policy"] == "fifo"}) == 1
    assert len({e["cpu_s"] for e in found if e["policy"] == "ones"}) == 3
    with (out / "runs.csv").open(encoding="utf-8") as file:
        assert [row["policy"] for row in csv.DictReader(file)] == [
            "fifo",
            *["ones"] * 3,
        ]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_of_jobs_and_rounds_are_written(
    arguments: list[str], tmp_path: Path, form: str
) -> None:
    out = tmp_path / "tables"
    result = call(
        *arguments, "--policy", "fifo,srtf", "--out", str(out), "--table", form
    )
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == [
        f"{name}.{form}" for name in ("jobs", "rounds", "runs")
    ]
    if form == "csv":
        rows = list(csv.DictReader((out / "jobs.csv").open(encoding="utf-8")))
    else:
        rows = (
            pytest.importorskip("pyarrow.parquet")
            .read_table(out / "jobs.parquet")
            .to_pylist()
        )
    assert [(row["policy"], row["job"]) for row in rows] == [
        (policy, job) for policy in ("fifo", "srtf") for job in ("0-m-0", "1-m-1")
    ]
    for row in rows:
        arrival_s, started_s, ended_s = (
            float(row[name]) for name in ("arrival_s", "started_s", "ended_s")
        )
        assert float(row["first_wait_s"]) == started_s - arrival_s >= 0.0
        assert float(row["jct_s"]) == pytest.approx(ended_s - arrival_s)
        assert float(row["gpu_s"]) > 0.0


def test_the_names_of_the_figures_are_public() -> None:
    assert " ".join(("trace", "policy", "seed", *FIGURES)) == (
        "trace policy seed num_jobs jct_mean_s jct_p50_s jct_p90_s jct_p99_s "
        "makespan_s rho_max unfair_share "
        "utilisation num_rescales decision_ms_p50 decision_ms_max cpu_s peak_rss_mb "
        "rho_isolated_max "
        "unfair_isolated_share"
    )


def test_round_and_rescale_reach_the_run(arguments: list[str]) -> None:
    (usual,) = entries(*arguments, "--policy", "fifo")
    (slow,) = entries(
        *arguments, "--policy", "fifo", "--round", "120", "--rescale", "40"
    )
    assert usual["makespan_s"] != slow["makespan_s"]


def test_a_policy_s_options_are_in_its_name(arguments: list[str]) -> None:
    found = entries(
        *arguments,
        "--policy",
        "tiresias(thresholds_gpu_s=[1.0, 2.0]),fifo(backfill=true)",
    )
    assert [entry["policy"] for entry in found] == [
        "tiresias(thresholds_gpu_s=[1.0, 2.0])",
        "fifo(backfill=true)",
    ]
    assert "allowed: backfill=False" in refusal(
        *arguments, "--policy", "fifo(backfil=true)"
    )


def test_a_round_follows_an_arrival(arguments: list[str]) -> None:
    (usual,) = entries(*arguments, "--policy", "fifo")
    (quick,) = entries(*arguments, "--policy", "fifo", "--reaction", "1")
    assert float(str(quick["jct_mean_s"])) < float(str(usual["jct_mean_s"])) - 10.0
    assert "allowed: 0 to 86400, or inf" in refusal(*arguments, "--reaction", "-1")
    assert "allowed: 0 to 86400, or inf" in refusal(*arguments, "--reaction", "nan")


@pytest.mark.long
def test_castor_is_asked_at_arrivals_unless_told_otherwise(
    arguments: list[str],
) -> None:
    (usual,) = entries(*arguments, "--policy", "castor")
    (same,) = entries(*arguments, "--policy", "castor", "--reaction", "2")
    (alone,) = entries(*arguments, "--policy", "castor", "--reaction", "inf")
    assert usual["jct_mean_s"] == same["jct_mean_s"]
    assert float(str(usual["jct_mean_s"])) < float(str(alone["jct_mean_s"])) - 10.0


@pytest.mark.parametrize("wanted", [-1.0, math.nan, "soon"])
def test_a_policy_that_wants_no_time_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, wanted: object
) -> None:
    monkeypatch.setattr(Ones, "reaction_s", wanted)
    assert "Ones.reaction_s" in refusal(*arguments, "--policy", "ones")
    assert entries(*arguments, "--policy", "ones", "--reaction", "inf")


def test_reports_may_be_seldom_and_no_less_than_a_second_apart(
    arguments: list[str],
) -> None:
    (usual,) = entries(*arguments, "--policy", "srtf")
    (seldom,) = entries(*arguments, "--policy", "srtf", "--reports", "86400")
    assert seldom["jct_mean_s"] == usual["jct_mean_s"]
    assert "allowed: 1 to 86400" in refusal(*arguments, "--reports", "0.5")


def test_a_table_names_traces_and_policies(arguments: list[str]) -> None:
    result = call(*arguments, "--policy", "fifo,srtf")
    assert result.exit_code == 0
    words = result.stdout.split()
    assert [
        word for word in ("w", "fifo", "srtf", "makespan") if word not in words
    ] == []
    assert all(len(line) <= 120 for line in result.stdout.splitlines())


def test_directories_stand_for_their_files(
    tmp_path: Path, arguments: list[str]
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("b.csv", "a.csv"):
        write_workload(folder, name=name)
    found = entries(str(folder), *arguments[1:], "--policy", "fifo")
    assert [entry["trace"] for entry in found] == ["a", "b"]


def test_files_of_one_name_are_told_apart(tmp_path: Path, arguments: list[str]) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    found = entries(str(write_workload(folder)), *arguments, "--policy", "fifo")
    assert [entry["trace"] for entry in found] == ["other/w", f"{tmp_path.name}/w"]


@pytest.mark.parametrize("name", ["builtin:3", "builtin:busy:3"])
def test_built_in_workloads_need_no_profiles(name: str) -> None:
    (found,) = entries(name, "--policy", "fifo")
    assert found["num_jobs"] == 3


def test_a_report_is_written(tmp_path: Path, arguments: list[str]) -> None:
    page = tmp_path / "out.html"
    assert (
        call(*arguments, "--policy", "fifo,srtf", "--report", str(page)).exit_code == 0
    )
    assert "m-0" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "best"), "policy: got 'best'; allowed: fifo, "),
        (
            ("--policy", "fifo,fifo"),
            "--policy: got 'fifo,fifo'; allowed: policies, each once",
        ),
        (("--policy", ","), "--policy: got ','; allowed: policies, each once"),
        (("--cluster", "16"), "--cluster: got '16'; allowed: NODESxGPUS, such as 16x4"),
        (("--cluster", "0x4"), "--cluster: got '0x4'"),
        (("--cluster", "2x4"), "cluster: got '2x4'; allowed: what the profiles cover"),
        (("--seeds", "0"), "--seeds: got 0; allowed: 1 to 10000"),
        (("--parallel", "0"), "--parallel: got 0"),
        (("--round", "0"), "--round: got 0.0; allowed: 1 to 86400"),
        (("--round", "nan"), "--round: got nan"),
        (("--rescale", "-1"), "--rescale: got -1.0"),
        (("--interference", "1"), "--interference: got 1.0"),
        (("--format", "csv"), "--format: got 'csv'; allowed: sia, osdi21"),
        (("--report", "/nowhere/at/all.html"), "--report: got '/nowhere/at/all.html'"),
    ],
)
def test_a_bad_option_is_refused(
    arguments: list[str], options: tuple[str, str], message: str
) -> None:
    assert refusal(*arguments, *options).startswith(message)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            "builtin:none",
            "WORKLOAD: got 'builtin:none'; allowed: builtin, builtin:JOBS",
        ),
        ("builtin:busy:1:2", "WORKLOAD: got 'builtin:busy:1:2'"),
        ("builtin:0", "WORKLOAD: got 'builtin:0'; allowed: builtin, builtin:JOBS"),
        ("nothing.csv", "WORKLOAD: got 'nothing.csv'; allowed: builtin, a workload"),
        (
            "buildin",
            (
                "WORKLOAD: got 'buildin'; allowed: builtin, a workload file or a "
                "directory of them; did you mean builtin?"
            ),
        ),
    ],
)
def test_a_bad_workload_name_is_refused(workload: str, message: str) -> None:
    assert refusal(workload).startswith(message)


def test_profiles_are_asked_for_where_a_format_needs_them(arguments: list[str]) -> None:
    assert refusal(arguments[0]).startswith(
        "--profiles: got 'nothing'; allowed: a directory with"
    )


def test_profiles_are_refused_where_nothing_reads_them(tmp_path: Path) -> None:
    assert refusal("builtin", "--profiles", str(tmp_path)).startswith("--profiles: got")


def test_a_page_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal("builtin", "--report", str(tmp_path)).startswith("--report: got")


def test_a_missing_file_and_an_empty_directory_are_refused(
    tmp_path: Path, arguments: list[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "a workload file" in refusal(str(tmp_path / "none.csv"), *arguments[1:])
    assert "a directory with *.csv files" in refusal(str(empty), *arguments[1:])


def test_a_workload_given_twice_is_refused(arguments: list[str]) -> None:
    assert refusal(arguments[0], *arguments).endswith("allowed: each workload once")


def test_a_job_that_can_never_fit_is_told_before_the_first_step(
    tmp_path: Path,
) -> None:
    text = "arrival_s,gpus,curve,length_s\n0,16,16:1,60\n5,2,2:1,60\n"
    table = str(write_workload(tmp_path, text))
    options = (table, "--cluster", "2x4", "--policy", "fifo")
    assert "too large are 0-job-0 (16 GPUs); --skip-too-large" in refusal(*options)
    result = call(*options, "--skip-too-large", "--json")
    assert json.loads(result.stdout)["results"][0]["num_jobs"] == 1
    assert "1 of 2 jobs left out, which can never fit" in result.stderr


def test_a_run_that_never_ends_is_one_line(
    tmp_path: Path, arguments: list[str]
) -> None:
    write_workload(tmp_path, WORKLOAD.replace("m-1,60,m,2,16", "m-1,60,m,4,16"))
    result = call(*arguments[:-1], "1x2", "--policy", "fifo")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: w: after ")
    assert result.stderr.count("\n") == 1


@pytest.mark.processes
def test_the_module_runs_alone(tmp_path: Path, arguments: list[str]) -> None:
    write_workload(tmp_path, WORKLOAD.replace("m-0,0", "m-0,-1"))
    command = [sys.executable, "-m", "coadapt.cli.research.simulate", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"error: {arguments[0]} line 2, time: got '-1'; allowed: a number from 0 "
        "to 10000000000\n"
    )


def test_compiling_is_told_on_stderr(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_cold_parts", lambda name: [name])
    result = call(*arguments, "--policy", "fifo", "--json")
    assert result.stderr == warm_up.COMPILES + "\n"
    assert len(json.loads(result.stdout)["results"]) == 1


def test_nodes_sort_in_the_order_of_their_numbers() -> None:
    nodes = parse_cluster("11x3")
    assert nodes[:2] == (Node(id="node-00", num_gpus=3), Node(id="node-01", num_gpus=3))
    assert [node.id for node in nodes] == sorted(node.id for node in nodes)


def test_groups_of_nodes_have_types_and_racks() -> None:
    nodes = parse_cluster("2x4:t4@r1, 1x8:a100,1x2@r2")
    assert nodes == (
        Node(id="node-0", num_gpus=4, gpu_type="t4", rack="r1"),
        Node(id="node-1", num_gpus=4, gpu_type="t4", rack="r1"),
        Node(id="node-2", num_gpus=8, gpu_type="a100"),
        Node(id="node-3", num_gpus=2, rack="r2"),
    )


@pytest.mark.parametrize(
    "text",
    ["", "4", "4x", "4x4:", "4x4@", "4x4:t4@", "4x4,,2x2", "99999x1,1x1", "4x4:t 4"],
)
def test_anything_else_is_no_cluster(text: str) -> None:
    with pytest.raises(InputError, match="--cluster"):
        parse_cluster(text)
