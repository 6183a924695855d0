"""In CI a reproduction test that did not run must fail, and an engine's: tried in a
pytest of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = """
import pytest

@pytest.mark.papers
def test_figure(traces):
    assert traces.is_dir()

@pytest.mark.papers
def test_needs_more():
    pytest.skip("no such trace")

def test_plain():
    pytest.skip("no browser")
"""

ENGINE = """
import pytest

@pytest.mark.engine("slurm")
def test_slurm():
    pytest.skip("no slurmd")

@pytest.mark.engine("kubernetes")
def test_kubernetes():
    pytest.skip("no etcd")
"""

RACE = """
import pytest
from pathlib import Path

@pytest.mark.processes
def test_race():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "the child was quicker"
"""

LEFT = """
import os

def test_left():
    assert {name for name in os.environ if name.startswith("COADAPT_")} == {"COADAPT_KUBE_APISERVER"}
"""


def outcome(folder: Path, sample: str = SAMPLE, **environment: str) -> str:
    shutil.copy(Path(__file__).parent / "conftest.py", folder)
    (folder / "test_sample.py").write_text(sample)
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n papers\n engine\n processes\n"
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("COADAPT_")
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(folder),
    ]
    run = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=clean | environment,
        capture_output=True,
        text=True,
    )
    return run.stdout


@pytest.mark.processes
def test_without_traces_papers_skip_and_that_is_said(tmp_path: Path) -> None:
    text = outcome(tmp_path)
    assert (
        "papers: 0 reproduced, 0 failed, 2 skipped (set COADAPT_TRACES to run them)"
        in text
    )
    assert "3 skipped" in text.splitlines()[-1]


@pytest.mark.processes
def test_where_papers_are_required_a_skip_fails(tmp_path: Path) -> None:
    text = outcome(tmp_path, COADAPT_TRACES=str(tmp_path), COADAPT_REQUIRE_PAPERS="1")
    assert "papers: 1 reproduced, 1 failed, 0 skipped" in text
    assert "1 failed, 1 passed, 1 skipped" in text.splitlines()[-1]


@pytest.mark.processes
def test_a_test_of_an_engine_that_was_named_must_not_skip(tmp_path: Path) -> None:
    assert "2 skipped" in outcome(tmp_path, ENGINE).splitlines()[-1]
    text = outcome(tmp_path, ENGINE, COADAPT_ENGINES="ray,kubernetes")
    assert "test_kubernetes was skipped, but COADAPT_ENGINES is set" in text
    assert "1 failed, 1 skipped" in text.splitlines()[-1]


@pytest.mark.processes
def test_of_the_shells_settings_only_what_a_skip_names_reaches_a_test(
    tmp_path: Path,
) -> None:
    settings = {"COADAPT_STATE": "/somewhere", "COADAPT_KUBE_APISERVER": "/a/server"}
    assert "1 passed" in outcome(tmp_path, LEFT, **settings).splitlines()[-1]


@pytest.mark.processes
def test_in_ci_a_race_has_a_second_try_and_its_first_is_told(tmp_path: Path) -> None:
    text = outcome(tmp_path, RACE, CI="1")
    assert "1 passed, 1 rerun" in text.splitlines()[-1]
    assert "first try of test_sample.py::test_race" in text
    assert "the child was quicker" in text
