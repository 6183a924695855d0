"""Runs under the terms of a paper: its loop of rounds by hand, its options of policies,
its figures beside ours.
"""

import csv
import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from coadapt.cli.research.compare import compare
from coadapt.cli.research.inputs import parse_cluster
from coadapt.model import InputError
from coadapt.sim.experiment import ExperimentConfig, RunResult
from coadapt.sim.published import terms as all_terms
from coadapt.sim.published.figures import PUBLISHED
from coadapt.sim.published.play import play_as_published
from coadapt.sim.published.terms import TERMS, terms_of
from coadapt.sim.traces import load_trace
from tests.sim.traces.stage import write_profiles, write_workload
from tests.sim.traces.test_shockwave import line, write

APP = typer.Typer()
APP.command()(compare)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def play(folder: Path, policy: str, *lines: str) -> RunResult:
    workload, applications = load_trace(*write(folder, *lines))
    return play_as_published(
        workload,
        applications,
        parse_cluster("1x2"),
        policy,
        0,
        terms=terms_of("shockwave"),
        config=ExperimentConfig(),
    )


def test_a_job_alone_trains_in_whole_rounds(tmp_path: Path) -> None:
    """119,360 steps at 50 a second: 19 rounds of 6,000, and 5,360. None of the first
    two costs a start.
    """
    alone = line("LM (batch size 10)", 119_360, 1, "static", 0.0)
    result = play(tmp_path, "gavel", alone)
    (job,) = result.jobs
    assert job.jct_s == pytest.approx(19 * 120.0 + 5_360 / 50.0)
    # The profile: 20 epochs of 59,675 samples, in whole seconds; fewer jobs than GPUs
    # are no contention.
    assert job.rho_isolated == pytest.approx(job.jct_s / 2_387, rel=1e-3)
    assert result.metrics.makespan_s == pytest.approx(job.jct_s)
    assert result.metrics.utilisation == pytest.approx(0.5)


def test_every_baseline_of_a_paper_can_be_made() -> None:
    for terms in TERMS.values():
        parse_cluster(terms.cluster)
        for name in terms.baselines:
            terms.create(name, 0)
    for name, figures in PUBLISHED.items():
        for _, policy in figures:
            terms_of(name).create(policy, 0)


def test_what_a_user_names_goes_before_what_the_paper_says() -> None:
    ours = terms_of("shockwave").create("gavel(central=false)", 0)
    theirs = terms_of("shockwave").create("gavel", 0)
    assert vars(ours) != vars(theirs)


def test_sias_gavel_is_the_one_of_its_paper() -> None:
    baseline = terms_of("sia").baseline("gavel")
    assert (baseline.choice, baseline.round_s) == ("mst", 360.0)
    assert type(terms_of("sia").create("gavel", 0)).__name__ == "Mst"


def test_the_figures_of_the_paper_are_written_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, profiles = write(tmp_path)
    known = {"shockwave": {("small", "gavel"): {"makespan_s": 1000.0}}}
    monkeypatch.setattr(all_terms, "PUBLISHED", known)
    out = tmp_path / "out"
    done = call(
        str(trace), "--profiles", str(profiles), "--policy", "gavel,fifo",
        "--as-published", "--out", str(out), "--parallel", "1", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["published"]
    assert (row["policy"], row["figure"], row["published"]) == (
        "gavel",
        "makespan_s",
        1000.0,
    )
    assert row["here"] == 1000.0 * (1.0 + row["difference"])
    with (out / "published.csv").open(encoding="utf-8") as file:
        assert [each["cluster"] for each in csv.DictReader(file)] == ["1x32"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("builtin:2",), "a trace of format builtin"),
        (("builtin:2", "--round", "30"), "a trace of format builtin"),
        ((), "with settings of rounds"),
    ],
)
def test_what_no_paper_says_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    profiles = write_profiles(tmp_path / "profiles")
    usual = (
        str(write_workload(tmp_path)),
        "--profiles",
        str(profiles),
        "--round",
        "30",
    )
    done = call(
        *(arguments or usual),
        "--policy",
        "fifo",
        "--as-published",
        "--out",
        str(tmp_path / "o"),
    )
    assert isinstance(done.exception, InputError)
    assert complaint in str(done.exception)
    assert not (tmp_path / "o").exists()
