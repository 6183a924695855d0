"""The docs hold: links lead somewhere, snippets parse or run, and what they name
exists.
"""

import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coadapt.cli.verbs import VERBS
from coadapt.executors import EXECUTORS, executor_options
from coadapt.service.jobfile import read_job_file
from coadapt.service.studies.search_file import read_search_file
from tools.house_rules import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
# Of options: name, meaning, default.
OPTIONS = re.compile(r"^\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", re.M)
# Of decision records: how many still bind, and how long one may be.
DECISIONS_MAX = 40
WORDS_MAX = 300
SNIPPET = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.S | re.M)


def anchors(page: Path) -> set[str]:
    """Return the anchors of `page`'s headings, as code hosts make them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(
        re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    ):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def snippets(*languages: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, (language, text) in enumerate(
            SNIPPET.findall(page.read_text(encoding="utf-8")), start=1
        ):
            if language in languages:
                found.append((f"{page.relative_to(ROOT)}#{number}", text))
    return found


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in broken_links(page)
    ]
    if broken:
        pytest.fail("links that lead nowhere:\n" + "\n".join(broken), pytrace=False)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing\n[a](page.md#one-thing) [b](#one-thing) [c](gone.md) [d](#gone) "
        "[e](https://x.org)\n"
    )
    assert broken_links(page) == ["gone.md", "#gone"]


def test_links_to_other_sites_are_well_formed() -> None:
    """No test has a network, so whether these sites answer is not checked."""
    num_links = 0
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            parts = urlsplit(target)
            if parts.scheme and parts.scheme != "mailto":
                num_links += 1
                assert parts.scheme == "https", f"{page}: {target}"
                assert parts.hostname, f"{page}: {target}"
                assert "." in parts.hostname, f"{page}: {target}"
    assert num_links > 10


def test_python_snippets_run() -> None:
    """Those of training scripts compile here; tests/train/test_doc_snippets.py runs
    them.
    """
    found = snippets("python")
    assert found
    for place, text in found:
        code = compile(text, place, "exec")  # the place is in a failure's traceback
        if "torch" not in text and "train" not in text:
            exec(code, {"__name__": "snippet"})


def test_shell_snippets_parse() -> None:
    found = snippets("sh", "bash")
    assert found
    for place, text in found:
        run = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert (run.returncode, run.stderr) == (0, ""), place


def test_job_files_in_the_docs_are_lawful(tmp_path: Path) -> None:
    files = [(place, text) for place, text in snippets("yaml") if "run:" in text]
    assert files
    for place, text in files:
        (tmp_path / "job.yaml").write_text(text)
        if "search:" in text:
            assert read_search_file(tmp_path / "job.yaml").job.run, place
        else:
            assert read_job_file(tmp_path / "job.yaml").run, place


def test_make_targets_in_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"\bmake ([a-z-]+)\b", code_of(page))
    }
    assert named <= targets
    assert {"demo", "test"} <= named
    assert set(re.findall(r"^\.PHONY: (.*)$", makefile, re.M)[0].split()) == targets


def test_commands_in_the_docs_exist() -> None:
    verbs = set(VERBS)
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?:^|\W)coadapt ([a-z][a-z-]*)\b", code_of(page))
    }
    assert named <= verbs


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_options_of_an_executor_are_in_one_table_with_their_defaults(
    executor: str,
) -> None:
    page = (ROOT / "docs" / "engines" / f"{executor}.md").read_text(encoding="utf-8")
    [table] = OPTIONS.findall(page)
    rows = [line.strip("|").split("|") for line in table.splitlines()]
    documented = {row[0].split("`")[1]: row[-1].strip() for row in rows}
    options = executor_options(executor)
    assert documented.keys() == options.keys()
    known = {
        name: f"{each:g}"
        for name, each in options.items()
        if type(each) in (int, float)
    }
    assert {name: documented[name].partition(":")[0] for name in known} == known
    assert set(re.findall(r"--executor-option[= ]([a-z_]+)=", page)) <= options.keys()


def code_of(page: Path) -> str:
    """Return what stands in code spans and shell blocks of `page`."""
    text = page.read_text(encoding="utf-8")
    blocks = [
        body for language, body in SNIPPET.findall(text) if language in ("sh", "bash")
    ]
    return "\n".join([*re.findall(r"`([^`\n]+)`", text), *blocks])


def test_decisions_are_few_short_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    assert [int(name[:4]) for name in pages] == list(range(1, len(pages) + 1))
    assert len(pages) <= DECISIONS_MAX
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\((\d{4}-[^)]*)\)", index) == pages
    for number, name in enumerate(pages, start=1):
        text = (folder / name).read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix(f"# {number}. ")
        assert not title.startswith("#"), name
        assert ": " in title, f"{name}: a title is a topic and the choice"
        assert f"[{title}]({name})" in index
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.M)
        assert parts == ["Context", "Decision", "Consequences", "Alternatives"], name
        assert len(text.split()) <= WORDS_MAX, name


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    assert project["dynamic"] == ["version"]


NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
# An entry of a list: its name in bold, its text, and the tests that show it.
ENTRY = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- |^#|^\S|\Z)", re.M | re.S)


def entries_without_tests(page: str) -> list[str]:
    """Return the entries of the lists of `page` that name no test, or one that is not
    there.
    """
    bad = []
    for name, text in ENTRY.findall(page):
        _, _, shown = text.partition(" Tests:")
        tests = NAMED_TEST.findall(shown)
        all_exist = all(is_test(*test) for test in tests)
        rest = NAMED_TEST.sub("", shown).strip(" ,\n")
        if not tests or not all_exist or rest:
            bad.append(name)
    return bad


def is_test(path: str, name: str) -> bool:
    file = ROOT / path
    return file.is_file() and f"def {name}(" in file.read_text()


def test_every_entry_of_the_security_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    attackers = page.partition("## What is not protected")[0]
    assert len(ENTRY.findall(attackers)) >= 18
    assert attackers.count("::test_") > 30
    assert entries_without_tests(attackers) == []


def test_every_claim_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "testing-claims.md").read_text()
    claims = page.partition("## Figures")[0]
    names = [name.partition(".")[0] for name, _ in ENTRY.findall(claims)]
    numbered = [
        *(f"D{number}" for number in range(1, 20)),
        *(f"{number}" for number in range(1, 19)),
        *(f"E{number}" for number in range(1, 15)),
    ]
    assert names[: len(numbered)] == numbered
    assert entries_without_tests(claims) == []


@pytest.mark.parametrize(
    "shown",
    [
        "",
        "Tests:",
        "Tests: it is plain",
        "Tests: `tests/test_docs.py::test_of_nobody`",
        "Tests: `tests/gone.py::test_a`",
    ],
)
def test_an_entry_without_a_test_is_found(shown: str) -> None:
    good = "Tests: `tests/test_docs.py::test_links_lead_somewhere`"
    page = f"# A\n\n- **One** can. {good}\n- **Two** cannot. {shown}\n\nMore.\n"
    assert entries_without_tests(page) == ["Two"]
