"""Shared by all tests: hypothesis settings, a clean environment, public traces, papers
that must not skip.
"""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# folder of the public traces; tests marked `papers` skip without it
TRACES = "COADAPT_TRACES"
# set by `make engines-test`: the engines of which no test may skip
ENGINES = "COADAPT_ENGINES"
REQUIRE_PAPERS = (
    "COADAPT_REQUIRE_PAPERS"  # set in CI: a skipped `papers` test fails there
)
# a kube-apiserver, where `make engines-test` is not to build one
APISERVER = "COADAPT_KUBE_APISERVER"
KEPT = (TRACES, ENGINES, REQUIRE_PAPERS, APISERVER)
SAID = {"passed": "reproduced", "failed": "failed", "skipped": "skipped"}

# Shared machines stall for seconds: pytest-timeout guards against hangs, not
# hypothesis' deadline.
settings.register_profile(
    "coadapt", deadline=None, derandomize="CI" in os.environ, print_blob=True
)
settings.register_profile(
    "quick", parent=settings.get_profile("coadapt"), max_examples=20
)
settings.load_profile("coadapt")


def pytest_configure() -> None:
    """Let no setting of the developer's shell reach a test; one BLAS thread per test
    process.
    """
    for name in list(os.environ):
        if name.startswith("COADAPT_") and name not in KEPT:
            del os.environ[name]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Without a name server torch warns, in each replica, that it cannot tell the host's
    # name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Otherwise Ray's heads ask for the token that an earlier `ray.init` left in the
    # developer's home.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    gc.disable()  # until all is collected: a third of that time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get(TRACES):
        for item in items:
            if item.get_closest_marker("papers"):
                item.add_marker(pytest.mark.skip(reason=f"{TRACES} is not set"))
    # Real processes meet every stall of a shared machine, and of thousands of tests one
    # will race. What fails twice is broken. Where a developer sits there is no second
    # try, so that a race is seen and mended.
    if "CI" in os.environ:
        for item in items:
            if item.get_closest_marker("processes"):
                item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """Take what was collected out of the garbage collector: a million objects, 0.6 s of
    a later test.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a papers test, or of an engine's, into a failure where it is
    required.
    """
    report = yield
    if report.skipped and (setting := _required_by(item)):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} was skipped, but {setting} is set: {report.longrepr}"
        )
    return report


def _required_by(item: pytest.Item) -> str | None:
    """Return the setting by which a test must not skip, None if it may."""
    if os.environ.get(REQUIRE_PAPERS) and item.get_closest_marker("papers"):
        return REQUIRE_PAPERS
    engine = item.get_closest_marker("engine")
    return ENGINES if engine and engine.args[0] in os.environ.get(ENGINES, "") else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many published figures were checked, so that a run without traces does
    not look complete.

    And why a test had to be tried again: each is a race to be mended.
    """
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    counts = {
        outcome: sum(
            "papers" in getattr(report, "keywords", ())
            for report in terminalreporter.stats.get(outcome, ())
        )
        for outcome in SAID
    }
    if any(counts.values()):
        how = f" (set {TRACES} to run them)" if counts["skipped"] else ""
        parts = (f"{counts[outcome]} {word}" for outcome, word in SAID.items())
        terminalreporter.write_line(f"papers: {', '.join(parts)}{how}")


@pytest.fixture(autouse=True)
def no_gpu_below(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hide the machine's GPUs from the processes that a test starts, unless it is about
    them.
    """
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of public traces; a test that asks for it carries the marker
    `papers`.
    """
    folder = os.environ.get(TRACES)
    if not folder:
        pytest.skip(f"{TRACES} is not set")
    return Path(folder)
