"""The documentation site: complete reference pages, navigation, and a clean build."""

import importlib.util
import re
from pathlib import Path

import pytest

from tools import public_surface
from tools.docs import pictures, reference, site
from tools.house_rules import ROOT

HAS_ZENSICAL = importlib.util.find_spec("zensical") is not None
PAGE_OF = {
    "cli": "cli.md",
    "http": "http.md",
    "job-file": "job-file.md",
    "metric": "metrics.md",
    "python": "python.md",
}


@pytest.fixture(scope="module")
def reference_pages() -> dict[str, str]:
    return reference.pages()


def missing_names(lines: list[str], pages: dict[str, str]) -> list[str]:
    """Return the lines of the public surface that no reference page mentions."""
    missing = []
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind not in PAGE_OF:
            continue
        page = pages[PAGE_OF[kind]]
        if not all(name in page for name in shown_names(kind, rest)):
            missing.append(line)
    return missing


def shown_names(kind: str, rest: str) -> list[str]:
    """Return the texts that a reference page shows for a line of the public surface."""
    if kind == "cli":
        command, _, last = rest.rpartition(" ")
        if command == "coadapt" and last.startswith("-"):
            return []  # of the program itself: --version, --install-completion
        return last.split("/") if last.startswith("-") else [last]
    if kind == "http":
        return [rest]
    if kind == "python":
        package, _, name = rest.rpartition(".")
        return [f"### {name}\n"] if package in reference.PACKAGES else []
    return [f"`{rest}"]


@pytest.mark.train
def test_every_public_name_is_on_a_reference_page(
    reference_pages: dict[str, str],
) -> None:
    lines = public_surface.lines()
    assert len(lines) > 500
    # Arguments have a name for the user (metavar) that may differ from the parameter's.
    named = [line for line in lines if not re.search(r" [A-Z_]+$", line)]
    assert missing_names(named, reference_pages) == []


@pytest.mark.train
def test_a_name_without_reference_is_found(reference_pages: dict[str, str]) -> None:
    lines = ["cli coadapt submit --gone", "http GET /v1/gone", "metric coadapt_gone"]
    assert missing_names(lines, reference_pages) == lines


def test_metrics_have_kind_and_labels() -> None:
    page = reference.metrics_page()
    assert "| `coadapt_jobs_pending` | gauge | `reason`, `tenant` |" in page
    assert "| `coadapt_rescales_total` | counter |  |" in page
    assert "| `coadapt_job_gpus` | gauge | `job` |" in page


def test_the_picture_of_states_has_every_state() -> None:
    assert pictures.drawn_states() == pictures.known_states()


def navigation() -> list[str]:
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    return re.findall(r"\"([\w./-]+\.md)\"", text)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {
        str(path.relative_to(site.SOURCE))
        for path in site.SOURCE.rglob("*.md")
        if path.parent.name != "decisions"
    }
    pages |= {f"reference/{name}" for name in PAGE_OF.values()}
    pages |= {*site.EXTRA_PAGES, "decisions/README.md"}
    named = navigation()
    assert sorted(named) == sorted(pages), "each page of docs/: once in zensical.toml"


def test_a_broken_link_of_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a><a href="b.html#gone">2</a>'
        '<a href="c.html">3</a><img src="d.png"><a href="https://x.org/">4</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1><a href="#here">5</a>')
    broken, num_checked, external = site.broken_links(tmp_path)
    assert [str(each) for each in broken] == [
        "a.html: b.html#gone",
        "a.html: c.html",
        "a.html: d.png",
    ]
    assert (num_checked, external) == (5, ["https://x.org/"])


@pytest.mark.long
@pytest.mark.train
@pytest.mark.skipif(not HAS_ZENSICAL, reason="needs zensical: make docs")
def test_the_site_builds_without_warnings_and_links_lead_somewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another folder than that of `make docs`, which may run at the same time.
    config = tmp_path / "zensical.toml"
    config.write_text((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    monkeypatch.setattr(site, "CONFIG", config)
    monkeypatch.setattr(site, "STAGED", tmp_path / "build" / "docs")
    monkeypatch.setattr(site, "SITE", tmp_path / "build" / "site")
    site.stage()
    site.build()
    site.finish()
    broken, num_checked, _ = site.broken_links(site.SITE)
    assert broken == []
    assert num_checked > 5000
    listed = re.findall(r"\]\(([\w./-]+\.md)\)", site.llms_text())
    assert set(navigation()) <= set(listed)
    assert all((site.SITE / path).is_file() for path in listed)
