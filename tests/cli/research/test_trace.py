"""`coadapt trace`: its verbs, what they write, and what they refuse."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from coadapt.cli.completion import complete_format
from coadapt.cli.research.trace import trace
from coadapt.model import InputError
from coadapt.sim.report.workload_page import workload_page
from coadapt.sim.traces import FORMATS, load_trace
from coadapt.sim.workload import Workload
from tests.sim.traces.stage import write_profiles, write_workload
from tests.sim.traces.test_logs import PHILLY, written


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A workload of two jobs at 0 and 60 s, with its profiles."""
    profiles = write_profiles(tmp_path / "profiles")
    return [str(write_workload(tmp_path)), "--profiles", str(profiles)]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(trace, list(arguments))


def answer(*arguments: str) -> dict[str, object]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def refusal(*arguments: str) -> str:
    result = call(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def test_list_tells_every_format() -> None:
    formats = answer("list")["formats"]
    assert isinstance(formats, list)
    assert [each["name"] for each in formats] == list(FORMATS)
    assert all(
        each["text"].endswith(".") and f"{each['name']:12}" in call("list").output
        for each in formats
    )
    assert complete_format("s") == ["sia", "shockwave", "sensetime"]


def test_describe_counts(arguments: list[str]) -> None:
    facts = answer("describe", *arguments)
    assert facts == {
        "name": "w",
        "num_rows": 2,
        "left_out": {},
        "mended": {},
        "gpu_parts": {},
        "num_jobs": 2,
        "hours": pytest.approx(1 / 60),
        "jobs_per_hour": pytest.approx(120.0),
        "gpus_mean": 1.5,
        "gpus_max": 2,
        "applications": {"m": 2},
    }
    assert "     2 × m" in call("describe", *arguments).output


def test_what_is_converted_is_the_same_workload(
    tmp_path: Path, arguments: list[str]
) -> None:
    out = tmp_path / "plain.csv"
    assert answer("convert", *arguments, "--out", str(out)) == {
        "file": str(out),
        "num_jobs": 2,
    }
    first, second = (
        load_trace(Path(each), Path(arguments[2]))[0]
        for each in (arguments[0], str(out))
    )
    assert [(job.at, job.spec) for job in first.jobs] == [
        (job.at, job.spec) for job in second.jobs
    ]


def test_scale_moves_arrivals_and_a_sample_begins_at_0(
    tmp_path: Path, arguments: list[str]
) -> None:
    faster = tmp_path / "faster.csv"
    one = tmp_path / "one.csv"
    call("scale", *arguments, "--rate", "4", "--out", str(faster))
    assert [job.at for job in load_trace(faster, Path(arguments[2]))[0].jobs] == [
        0.0,
        15.0,
    ]
    drawn = set()
    for seed in range(8):
        call(
            "sample",
            str(faster),
            *arguments[1:],
            "--jobs",
            "1",
            "--seed",
            str(seed),
            "--out",
            str(one),
        )
        (job,) = load_trace(one, Path(arguments[2]))[0].jobs
        drawn.add((job.spec.name, job.at))
    assert drawn == {("m-0", 0.0), ("m-1", 0.0)}
    call("sample", str(faster), *arguments[1:], "--jobs", "2", "--out", str(one))
    assert [job.at for job in load_trace(one, Path(arguments[2]))[0].jobs] == [
        0.0,
        15.0,
    ]


def test_a_deadline_moves_with_its_job(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    out = tmp_path / "out.csv"
    table.write_text("arrival_s,gpus,curve,length_s,deadline_s\n100,1,1:1,60,400\n")
    for verb in (("scale", "--rate", "2"), ("sample", "--jobs", "1")):
        call(verb[0], str(table), *verb[1:], "--out", str(out))
        (job,) = load_trace(out)[0].jobs
        assert (job.spec.deadline_at or 0.0) - job.at == 300.0


HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u1,v1,,1,1,COMPLETED,2020-06-10 18:41:01,2020-06-10 18:41:05,2020-06-10 "
    "18:51:05,600,4\n"
    "2,u1,v1,1,1,1,COMPLETED,2020-06-10 18:41:01,2020-06-10 18:41:05,2020-06-10 "
    "18:51:05,600,4\n"
    "3,u1,v1,1,1,1,COMPLETED,2020-06-10 18:41:01,2020-06-10 18:41:05,2020-06-10 "
    "18:51:05,-3,4\n"
)


def test_rows_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(HELIOS)
    refused = refusal("describe", str(log))
    assert "line 2, gpu_num: got ''; allowed: an integer >= 0; 2 of 3 rows" in refused
    assert "(gpu_num 1, duration 1), --skip-bad leaves them out" in refused
    result = call("describe", str(log), "--skip-bad", "--json")
    facts = json.loads(result.stdout)
    assert (facts["num_rows"], facts["num_jobs"]) == (3, 1)
    assert facts["left_out"] == {
        "not readable: gpu_num": 1,
        "not readable: duration": 1,
    }
    assert "3 rows, 1 jobs: 1 left out (not readable: duration)" in result.stderr


def test_one_bad_cell_in_a_long_log_is_told_and_no_error(tmp_path: Path) -> None:
    header, bad, good, _ = HELIOS.splitlines()
    log = tmp_path / "log.csv"
    log.write_text("\n".join([header, *[good] * 50, bad, *[good] * 50]) + "\n")
    result = call("describe", str(log))
    assert result.exit_code == 0, result.output
    assert "     1 rows left out: not readable: gpu_num" in result.stdout
    log.write_text("\n".join([header, *[good] * 50, bad, bad, *[good] * 50]) + "\n")
    assert "2 of 102 rows cannot be read" in refusal("describe", str(log))


def test_plot_writes_a_page_of_escaped_data(
    tmp_path: Path, arguments: list[str]
) -> None:
    out = tmp_path / "page.html"
    answer("plot", *arguments, "--out", str(out))
    assert "Jobs that come, by hour" in out.read_text()
    workload, _ = load_trace(Path(arguments[0]), Path(arguments[2]))
    assert "<script>alert" not in workload_page(
        Workload(name="<script>alert", jobs=workload.jobs)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("convert", "builtin", "--to", "csv"),
            "--to: got 'csv'; allowed: plain or osdi21",
        ),
        (
            ("scale", "builtin", "--rate", "0"),
            "--rate: got 0.0; allowed: 0.001 to 1000",
        ),
        (("sample", "builtin:9", "--jobs", "10"), "--jobs: got 10; allowed: 1 to 9"),
        (
            ("scale", "nothing.csv", "--rate", "2"),
            "WORKLOAD: got 'nothing.csv'; allowed: builtin, a workload file",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    assert refusal(*words, "--out", str(tmp_path / "out.csv")).startswith(message)
    assert refusal(*words[:2], *words[2:], "--out", str(tmp_path)).startswith(
        ("--", "WORKLOAD")
    )


@pytest.mark.parametrize(
    ("words", "ending", "allowed"),
    [
        (("convert", "builtin:2"), ".xyz", ".csv"),
        (("convert", "log.csv", "--to", "osdi21"), ".parquet", ".csv"),
        (("sample", "builtin:2", "--jobs", "1"), ".json", ".csv"),
        (("scale", "builtin:2", "--rate", "2"), ".html", ".csv"),
        (("plot", "builtin:2"), ".csv", ".html"),
    ],
)
def test_a_file_is_named_for_what_is_in_it(
    tmp_path: Path, words: tuple[str, ...], ending: str, allowed: str
) -> None:
    out = tmp_path / f"out{ending}"
    assert refusal(*words, "--out", str(out)).startswith(
        f"--out: got '{out}'; allowed: a name that ends in {allowed}"
    )
    assert not out.exists()
    if words[0] != "convert":
        answer(*words, "--out", str(tmp_path / "out"))


def test_generating_needs_profiles(tmp_path: Path) -> None:
    log = written(tmp_path, PHILLY)
    out = str(tmp_path / "out.csv")
    assert refusal("convert", str(log), "--to", "osdi21", "--out", out).startswith(
        "--profiles: got 'nothing'"
    )
