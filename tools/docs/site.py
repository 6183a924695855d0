"""Builds the documentation site into build/site: `python -m tools.docs.site`.

It copies docs/ to build/docs, adds the reference pages, and makes links to files
outside of docs/ point to copies. Zensical builds the pages in strict mode. Then each
page gets its Markdown beside it, and every link of the site is checked.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.docs import reference
from tools.house_rules import ROOT

SOURCE = ROOT / "docs"
STAGED = ROOT / "build" / "docs"
SITE = ROOT / "build" / "site"
CONFIG = ROOT / "zensical.toml"
# Pages beside docs/, by their name in the site.
EXTRA_PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
# Copies of files that pages link to.
FILES = "files"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```.*?^```\n?", re.M | re.S)
MERMAID = re.compile(r"```mermaid\n.*?```", re.S)
STATES = "![The states of a job](pictures/job-states.svg)"
# Zensical loads this from another server; the copy works without a network.
SHIM_URL = "https://unpkg.com/iframe-worker/shim"
SHIM = "assets/iframe-worker.js"
HIDDEN = frozenset({"__pycache__", ".ruff_cache", ".mypy_cache"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLink:
    """A link of the site that leads nowhere."""

    page: str
    target: str

    def __str__(self) -> str:
        return f"{self.page}: {self.target}"


def stage() -> None:
    """Write the Markdown that Zensical reads into build/docs."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(SOURCE, STAGED)
    reference.write(STAGED / "reference")
    origins = {path: SOURCE / path.relative_to(STAGED) for path in _pages(STAGED)}
    for name, source in EXTRA_PAGES.items():
        shutil.copy(ROOT / source, STAGED / name)
        origins[STAGED / name] = ROOT / source
    for staged, origin in origins.items():
        text = staged.read_text(encoding="utf-8")
        text = MERMAID.sub(STATES, text)
        staged.write_text(_with_local_links(text, staged, origin), encoding="utf-8")


def _pages(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.md"))


def _with_local_links(text: str, staged: Path, origin: Path) -> str:
    """Return a page whose links to files outside of docs/ lead to copies of them."""

    def replaced(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return match.group(0)
        file = (origin.parent / path).resolve()
        place = _staged_place(file)
        relative = os.path.relpath(place, staged.parent)
        return f"{before}{relative}{hash_sign}{anchor}{after}"

    parts = re.split(f"({FENCE.pattern})", text, flags=re.M | re.S)
    return "".join(
        part if part.startswith("```") else LINK.sub(replaced, part) for part in parts
    )


def _staged_place(file: Path) -> Path:
    """Return where `file` is in build/docs; a file outside of docs/ is copied there."""
    if file.is_relative_to(SOURCE):
        return STAGED / file.relative_to(SOURCE)
    for name, origin in EXTRA_PAGES.items():
        if file == ROOT / origin:
            return STAGED / name
    path = file.relative_to(ROOT)
    if str(path) == "README.md":
        return STAGED / "index.md"
    place = STAGED / FILES / path
    if file.is_dir():
        return _listing(file, place)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        shutil.copy(file, place)
    return place


def _listing(folder: Path, place: Path) -> Path:
    """Return a page that lists the files of `folder`, each copied."""
    page = place / "index.md"
    if page.exists():
        return page
    place.mkdir(parents=True, exist_ok=True)
    names = []
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.name not in HIDDEN:
            name = f"{file.name}.txt" if file.suffix == ".md" else file.name
            shutil.copy(file, place / name)
            names.append(name)
    title = folder.relative_to(ROOT)
    rows = "".join(f"- [{name}]({name})\n" for name in names)
    page.write_text(f"# {title}\n\nFiles of the repository:\n\n{rows}", "utf-8")
    return page


def build() -> None:
    """Run Zensical in strict mode. Raises CalledProcessError on a warning."""
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=CONFIG.parent,
        check=True,
    )


def finish() -> None:
    """Put Markdown beside each page, write llms.txt, and make all scripts local."""
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if SHIM_URL in text:
            local = os.path.relpath(SITE / SHIM, page.parent)
            page.write_text(text.replace(SHIM_URL, local), encoding="utf-8")
    for staged in _pages(STAGED):
        place = SITE / staged.relative_to(STAGED)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(staged, place)
    shutil.copy(ROOT / "SKILL.md", SITE / "SKILL.md")
    (SITE / "llms.txt").write_text(llms_text(), encoding="utf-8")


def llms_text() -> str:
    """Return llms.txt: what the project is, and a line for each page."""
    project = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]
    lines = [
        f"# {project['site_name']}",
        "",
        f"> {project['site_description']}",
        "",
        (
            "Each page is Markdown. [SKILL.md](SKILL.md) says how to operate Coadapt from "
            "a shell; every command prints JSON with `--json`."
        ),
    ]
    for door in project["nav"]:
        [(title, pages)] = door.items()
        lines += ["", f"## {title}", ""]
        lines += [_llms_row(page) for page in _paths(pages)]
    return "\n".join(lines) + "\n"


def _paths(entry: object) -> list[str]:
    """Return the pages of a part of the navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        return [path for value in entry.values() for path in _paths(value)]
    if isinstance(entry, list):
        return [path for value in entry for path in _paths(value)]
    raise TypeError(f"an entry of nav is a page, a list or a table, got {entry!r}")


def _llms_row(path: str) -> str:
    text = (STAGED / path).read_text(encoding="utf-8")
    title = text.partition("\n")[0].removeprefix("# ")
    prose = FENCE.sub("", text.partition("\n")[2])
    paragraphs = [block.strip() for block in prose.split("\n\n") if block.strip()]
    plain = [block for block in paragraphs if re.match(r"[A-Z`*\w]", block)]
    first = " ".join(plain[0].split()) if plain else ""
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first)
    sentence = re.split(r"(?<=[.:]) ", first)[0].rstrip(":")
    return f"- [{title}]({path}): {sentence}"


class _Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in ("id", "name"):
            if given.get(name):
                self.anchors.add(str(given[name]))
        for name in ("href", "src"):
            if given.get(name) and tag != "base":
                self.links.append(str(given[name]))


def broken_links(site: Path) -> tuple[list[BrokenLink], int, list[str]]:
    """Return broken links, how many were checked, and the links to other sites."""
    pages: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path] = page
    broken: list[BrokenLink] = []
    external: set[str] = set()
    num_checked = 0
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                external.add(link)
                continue
            num_checked += 1
            target = (path.parent / unquote(parts.path)).resolve()
            if not parts.path:
                target = path
            if target.is_dir():
                target /= "index.html"
            lost = not target.exists()
            if not lost and parts.fragment and target in pages:
                lost = unquote(parts.fragment) not in pages[target].anchors
            if lost:
                where = str(path.relative_to(site))
                broken.append(BrokenLink(page=where, target=link))
    return broken, num_checked, sorted(external)


def main() -> None:
    """Build the site and check its links; exit with 1 if one is broken."""
    stage()
    build()
    finish()
    broken, num_checked, external = broken_links(SITE)
    num_pages = len(list(SITE.rglob("*.html")))
    print(
        f"{num_pages} pages in {SITE.relative_to(ROOT)}, {num_checked} links checked, "
        f"{len(broken)} broken, {len(external)} to other sites (not checked)"
    )
    for each in broken:
        print(each)
    if broken:
        sys.exit(1)


if __name__ == "__main__":
    main()
