"""A release: its changelog and version, and what its archives hold."""

import datetime as dt
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tools import release

DAY = dt.date(2026, 12, 1)
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- Added a verb.\n\n## 0.1.0\n\nOld.\n"


def test_the_unreleased_section_becomes_that_of_the_version() -> None:
    text = release.released(CHANGELOG, "0.2.0", DAY)
    assert text == (
        "# Changelog\n\n## [Unreleased]\n\n## 0.2.0 (2026-12-01)\n\n- Added a verb.\n\n"
        "## 0.1.0\n\nOld.\n"
    )


@pytest.mark.parametrize(
    ("changelog", "error"),
    [
        ("# Changelog\n", "no section"),
        ("## [Unreleased]\n\n## 0.1.0\n\n- Old.\n", "is empty"),
        (CHANGELOG + "\n## 0.2.0\n", "has a section 0.2.0 already"),
    ],
)
def test_a_changelog_that_cannot_be_released_is_refused(
    changelog: str, error: str
) -> None:
    with pytest.raises(release.ReleaseError, match=error):
        release.released(changelog, "0.2.0", DAY)


def test_the_version_is_set_and_never_goes_back() -> None:
    init = '"""Text."""\n\n__version__ = "0.2.0"\n'
    assert '__version__ = "0.3.0"' in release.with_version(init, "0.3.0")
    with pytest.raises(release.ReleaseError, match=r"allowed: 0\.2\.0 or later"):
        release.with_version(init, "0.1.9")
    with pytest.raises(release.ReleaseError, match=r"allowed: MAJOR\.MINOR\.PATCH"):
        release.with_version(init, "0.3")


def test_the_chart_gets_the_version_in_both_places() -> None:
    chart = 'name: coadapt\nversion: 0.2.0\nappVersion: "0.2.0"\n'
    assert release.chart_with_version(chart, "0.3.0") == (
        'name: coadapt\nversion: 0.3.0\nappVersion: "0.3.0"\n'
    )
    with pytest.raises(release.ReleaseError, match="0 lines appVersion; allowed: 1"):
        release.chart_with_version("version: 0.2.0\n", "0.3.0")


def test_faults_of_archives_are_named() -> None:
    info = "coadapt-0.2.0.dist-info"
    good = [f"coadapt/{name}" for name in release.NEEDED]
    good.append(f"{info}/licenses/LICENSE")
    assert release.wheel_faults(good, "0.2.0") == []
    assert release.wheel_faults(good[1:], "0.2.0") == ["coadapt/py.typed is missing"]
    assert release.wheel_faults([*good, "tests/conftest.py"], "0.2.0") == [
        "tests/conftest.py does not belong into the wheel"
    ]
    assert release.wheel_faults(good[:-1], "0.2.0") == ["the licence is missing"]
    faults = release.sdist_faults(["coadapt-0.2.0/tests/conftest.py"], "0.2.0")
    assert "tests/conftest.py does not belong into the source archive" in faults
    assert "LICENSE is missing" in faults


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of its own with the files of this checkout, committed or not."""
    tree = tmp_path_factory.mktemp("release") / "coadapt"
    tree.mkdir()
    names = ["pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"]
    for name in names:
        shutil.copy(release.ROOT / name, tree)
    (tree / release.CHART).parent.mkdir(parents=True)
    shutil.copy(release.ROOT / release.CHART, tree / release.CHART)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(release.ROOT / "src", tree / "src", ignore=ignored)
    for command in (
        ["git", "init", "--quiet"],
        ["git", "config", "user.name", "Test"],
        ["git", "config", "user.email", "test@example.org"],
        ["git", "add", "."],
        ["git", "commit", "--quiet", "--message", "Files"],
    ):
        subprocess.run(command, cwd=tree, check=True)
    (tree / ".git" / "info" / "exclude").write_text("dist/\n")
    return tree


@pytest.mark.processes
def test_a_release_is_built_checked_committed_and_tagged(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The index may be out of reach: the build uses what is installed here.
    run = release._run

    def without_isolation(tree: Path, *command: str) -> str:
        extra = ("--no-isolation",) if command[1:3] == ("-m", "build") else ()
        return run(tree, *command, *extra)

    monkeypatch.setattr(release, "_run", without_isolation)
    wheel, sdist = release.release(clone, "9.9.9", DAY)
    assert wheel.stat().st_size < 3e6
    assert sdist.is_file()
    log = subprocess.run(
        ["git", "log", "-1", "--format=%s %D"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    assert log.stdout.startswith("Release 9.9.9")
    assert "tag: v9.9.9" in log.stdout
    assert "version: 9.9.9\n" in (clone / release.CHART).read_text()
    with zipfile.ZipFile(wheel) as archive:
        name = "coadapt-9.9.9.dist-info/METADATA"
        metadata = message_from_string(archive.read(name).decode())
    needs = metadata.get_all("Requires-Dist") or []
    core = sorted(need.split(">")[0] for need in needs if "extra ==" not in need)
    assert core == ["numpy", "rich", "typer"]
    extras = set(metadata.get_all("Provides-Extra") or [])
    assert {"train", "service", "report", "speed", "solvers", "all"} <= extras
    with pytest.raises(release.ReleaseError, match=r"the tag v9\.9\.9 exists already"):
        release.release(clone, "9.9.9", DAY)


@pytest.mark.processes
def test_the_command_says_what_is_wrong_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.release", "1.x"],
        cwd=release.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "error: version: got '1.x'; allowed: MAJOR.MINOR.PATCH\n"
