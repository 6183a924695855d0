"""`coadapt compare`: what it writes, what it does not run twice, and one line for each
mistake.
"""

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from coadapt.cli.research.compare import PAGE, RESULTS, compare
from coadapt.model import ClusterView, InputError, Plan
from tests.sim.traces.stage import write_profiles, write_workload

APP = typer.Typer()
APP.command()(compare)
IDLE = f"{__name__}:Idle"


class Idle:
    """Starts nobody, so that its runs cannot end."""

    def allocate(self, view: ClusterView) -> Plan:
        return Plan(allocations={}, reasons={job.id: "never" for job in view.jobs})


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    profiles = write_profiles(tmp_path / "profiles")
    out = tmp_path / "out"
    return [
        str(write_workload(tmp_path)),
        "--profiles",
        str(profiles),
        "--out",
        str(out),
        "--parallel",
        "1",
    ]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def test_a_file_in_place_of_a_directory_is_refused(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "out").touch()
    done = call(*arguments, "--policy", "fifo,srtf", "--cluster", "1x2")
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--out: got ")


def test_it_writes_tables_and_a_page_and_runs_only_what_is_new(
    arguments: list[str], tmp_path: Path
) -> None:
    first = call(
        *arguments, "--policy", "fifo,srtf", "--cluster", "1x2", "--cluster", "2x2"
    )
    assert first.exit_code == 0, first.output
    assert "ratio to fifo" in first.stdout
    assert "are there already" not in first.stderr
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        PAGE,
        "jobs.csv",
        RESULTS,
        "rounds.csv",
        "runs.csv",
    ]
    lines = (out / RESULTS).read_text().splitlines()
    assert len(lines) == 4
    assert '"policies":["fifo","srtf"]' in (out / PAGE).read_text()

    (out / RESULTS).write_text(
        "\n".join(lines[:3]) + "\n" + lines[3][:50]
    )  # it was ended while it wrote
    more = call(
        *arguments,
        "--policy",
        "srtf,fifo,tiresias",
        "--cluster",
        "1x2",
        "--cluster",
        "2x2",
        "--json",
    )
    assert more.exit_code == 0, more.output
    assert "3 of 6 runs are there already" in more.stderr
    answer = json.loads(more.stdout)
    assert answer["baseline"] == "srtf"
    assert answer["ratios"]["srtf"]["jct_mean_s"] == [1.0, None, None, 1]
    assert answer["independent"]["fifo"] == "1 trace"
    assert [(row["cluster"], row["policy"]) for row in answer["runs"]] == [
        (cluster, policy)
        for cluster in ("1x2", "2x2")
        for policy in ("srtf", "fifo", "tiresias")
    ]
    times = {json.loads(line)["figures"]["jct_mean_s"] for line in lines}
    assert times <= {row["jct_mean_s"] for row in answer["runs"]}


def test_copies_are_not_played(arguments: list[str], tmp_path: Path) -> None:
    done = call(
        *arguments, "--policy", "fifo,ones,srtf", "--cluster", "2x2", "--seeds", "3"
    )
    assert done.exit_code == 0, done.output
    assert "nor fifo, srtf depend on the seed" in done.stderr
    assert len((tmp_path / "out" / RESULTS).read_text().splitlines()) == 5
    # ones is asked 1 s after each arrival, the others are not: that is said.
    assert "are not asked alike" in done.stdout
    assert "+1 s" in done.stdout
    alike = call(
        *arguments, "--policy", "fifo,ones", "--cluster", "2x2", "--reaction", "1"
    )
    assert "are not asked alike" not in alike.stdout


def test_a_run_that_cannot_end_does_not_end_the_others(
    arguments: list[str], tmp_path: Path
) -> None:
    done = call(*arguments, "--policy", f"{IDLE},fifo", "--cluster", "2x2")
    assert done.exit_code == 1
    assert f"error: {IDLE}, seed 0: w: after" in done.stderr
    assert "fifo" in done.stdout
    again = call(*arguments, "--policy", f"{IDLE},fifo", "--cluster", "2x2")
    assert (
        "1 of 2 runs are there already" in again.stderr
    )  # the other one is tried again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--policy", "fifo", "--baseline", "srtf"),
            "--baseline: got 'srtf'; allowed: fifo",
        ),
        (("--policy", "polux"), "policy: got 'polux'"),
        (
            ("--policy", "fifo", "--table", "xlsx"),
            "--table: got 'xlsx'; allowed: csv, json, parquet",
        ),
        (
            ("--policy", "fifo", "--parallel", "0"),
            "--parallel: got 0; allowed: 1 to 1024",
        ),
        (("--policy", "fifo", "--seeds", "0"), "--seeds: got 0; allowed: 1 to 10000"),
        (
            ("--policy", "fifo", "--cluster", "2x2", "--cluster", "2x2"),
            "allowed: each cluster once",
        ),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    refused = call(*arguments, *options)
    assert isinstance(refused.exception, InputError)
    assert message in str(refused.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("missing", "message"),
    [("pyarrow", "coadapt[parquet]"), ("plotly", "coadapt[report]")],
)
def test_what_cannot_be_written_is_said_before_anything_runs(
    arguments: list[str],
    missing: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "coadapt.sim.comparison.tables.find_spec",
        lambda name: None if name == missing else object(),
    )
    refused = call(*arguments, "--policy", "fifo", "--table", "parquet")
    assert message in str(refused.exception)
    assert not (tmp_path / "out").exists()
