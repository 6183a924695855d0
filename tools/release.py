"""Makes a release: changelog, version, build, checks, commit and tag. Uploads nothing.

`python -m tools.release 0.3.0 [--dry-run]`; docs/stability.md has the steps after it.
"""

import argparse
import datetime as dt
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHANGELOG = "CHANGELOG.md"
INIT = "src/coadapt/__init__.py"
CHART = "deploy/helm/coadapt/Chart.yaml"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
UNRELEASED = "## [Unreleased]\n"

# Files that have to be in both archives.
NEEDED = ("py.typed", "cli/main.py", "train/__init__.py")
# Folders of the repository that are no part of the wheel.
NOT_IN_WHEEL = ("tests/", "benchmarks/", "tools/", "docs/", "demo/", "examples/")


class ReleaseError(RuntimeError):
    """The release cannot go on; the text says why and what to do."""


def numbers(version: str) -> tuple[int, ...]:
    """Return `0.3.0` as (0, 3, 0). Raises ReleaseError for any other form."""
    if not (found := VERSION.fullmatch(version)):
        raise ReleaseError(f"version: got {version!r}; allowed: MAJOR.MINOR.PATCH")
    return tuple(int(each) for each in found.groups())


def released(changelog: str, version: str, day: dt.date) -> str:
    """Return the changelog with its unreleased section under `version`.

    Raises ReleaseError where that section is missing or empty, or has the version.
    """
    if f"\n## {version}" in changelog:
        raise ReleaseError(f"{CHANGELOG} has a section {version} already")
    before, found, after = changelog.partition(UNRELEASED)
    if not found:
        raise ReleaseError(f"{CHANGELOG} has no section {UNRELEASED.strip()!r}")
    section = after.split("\n## ", 1)[0]
    if not re.search(r"^- ", section, re.M):
        raise ReleaseError(f"{CHANGELOG}: the section {UNRELEASED.strip()!r} is empty")
    return f"{before}{UNRELEASED}\n## {version} ({day.isoformat()})\n{after}"


def with_version(init: str, version: str) -> str:
    """Return the package's `__init__` with `version`, which must be later or equal.

    The first release has the version that the code has already.
    """
    found = re.search(r'^__version__ = "(.*)"$', init, re.M)
    if not found:
        raise ReleaseError(f"{INIT} has no line __version__")
    if numbers(version) < numbers(found.group(1)):
        raise ReleaseError(
            f"version: got {version}; allowed: {found.group(1)} or later"
        )
    return init.replace(found.group(0), f'__version__ = "{version}"')


def chart_with_version(chart: str, version: str) -> str:
    """Return the Chart.yaml of the Helm chart with `version` in both of its places.

    Raises ReleaseError where it has not one line of each.
    """
    for key, line in (
        ("version", f"version: {version}"),
        ("appVersion", f'appVersion: "{version}"'),
    ):
        chart, places = re.subn(rf"^{key}: .*$", line, chart, flags=re.M)
        if places != 1:
            raise ReleaseError(f"{CHART} has {places} lines {key}; allowed: 1")
    return chart


def wheel_faults(names: Iterable[str], version: str) -> list[str]:
    """Return what is wrong with the list of files of a wheel."""
    names = list(names)
    faults = [
        f"coadapt/{needed} is missing"
        for needed in NEEDED
        if f"coadapt/{needed}" not in names
    ]
    info = f"coadapt-{version}.dist-info/"
    faults += [
        f"{name} does not belong into the wheel"
        for name in names
        if not name.startswith(("coadapt/", info)) or name.endswith(".pyc")
    ]
    if f"{info}licenses/LICENSE" not in names:
        faults.append("the licence is missing")
    return faults


def sdist_faults(names: Iterable[str], version: str) -> list[str]:
    """Return what is wrong with the list of files of a source archive."""
    top = f"coadapt-{version}/"
    have = {name.removeprefix(top) for name in names}
    wanted = [f"src/coadapt/{needed}" for needed in NEEDED]
    wanted += ["LICENSE", "README.md", "pyproject.toml", CHANGELOG]
    faults = [f"{each} is missing" for each in wanted if each not in have]
    faults += [
        f"{name} does not belong into the source archive"
        for name in sorted(have)
        if name.startswith(NOT_IN_WHEEL) or name.endswith(".pyc")
    ]
    return faults


def build(tree: Path, version: str) -> list[Path]:
    """Build wheel and source archive of `tree` into its `dist/` and check both.

    Raises ReleaseError for a build or a check that fails.
    """
    dist = tree / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run(tree, sys.executable, "-m", "build", "--outdir", str(dist))
    wheel = dist / f"coadapt-{version}-py3-none-any.whl"
    sdist = dist / f"coadapt-{version}.tar.gz"
    with zipfile.ZipFile(wheel) as archive:
        faults = wheel_faults(archive.namelist(), version)
    with tarfile.open(sdist) as source:
        faults += sdist_faults(source.getnames(), version)
    if faults:
        raise ReleaseError("; ".join(faults))
    _run(
        tree, sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)
    )
    return [wheel, sdist]


def release(tree: Path, version: str, day: dt.date) -> list[Path]:
    """Release `tree`: write, build, check, commit and tag; return the archives.

    Raises ReleaseError; what it wrote before that is left for a look, uncommitted.
    """
    tag = f"v{version}"
    if _run(tree, "git", "tag", "--list", tag):
        raise ReleaseError(f"the tag {tag} exists already")
    changelog = tree / CHANGELOG
    init = tree / INIT
    chart = tree / CHART
    new_changelog = released(changelog.read_text(), version, day)
    new_init = with_version(init.read_text(), version)
    new_chart = chart_with_version(chart.read_text(), version)
    changelog.write_text(new_changelog)
    init.write_text(new_init)
    chart.write_text(new_chart)
    archives = build(tree, version)
    _run(tree, "git", "add", CHANGELOG, INIT, CHART)
    _run(tree, "git", "commit", "--quiet", "--message", f"Release {version}")
    _run(tree, "git", "tag", "--annotate", tag, "--message", f"Coadapt {version}")
    return archives


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("version", help="MAJOR.MINOR.PATCH")
    parser.add_argument(
        "--dry-run", action="store_true", help="do it in a copy; leave the tree alone"
    )
    arguments = parser.parse_args()
    today = dt.datetime.now(tz=dt.UTC).date()
    try:
        numbers(arguments.version)
        if _run(ROOT, "git", "status", "--porcelain"):
            raise ReleaseError("the tree has changes: commit them first")
        if not arguments.dry_run:
            archives = release(ROOT, arguments.version, today)
            _tell(archives)
            print(f"next: git push && git push origin v{arguments.version}; then")
            print("upload dist/ with twine,")
            print("build and push the image (deploy/kubernetes/Dockerfile),")
            print("and publish the chart: helm package deploy/helm/coadapt")
            return 0
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "coadapt"
            _run(
                ROOT, "git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(copy)
            )
            _tell(release(copy, arguments.version, today))
        print("dry run: nothing was changed")
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _tell(archives: Iterable[Path]) -> None:
    for archive in archives:
        print(f"{archive.name}  {archive.stat().st_size / 1e6:.2f} MB, checked")


def _run(tree: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-800:]
        raise ReleaseError(f"{' '.join(command[:4])} failed: {said}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
