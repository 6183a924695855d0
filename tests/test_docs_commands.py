"""Every `coadapt` command in the docs exists, and so does each of its options."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from coadapt.cli.jobs.sweep import FileFirst
from coadapt.cli.main import app
from tests.test_docs import snippets
from tools.public_surface import subcommands_of

# Arguments after a script belong to the script.
SCRIPT_VERBS = frozenset({"check"})
ENDS = frozenset({"|", "&&", "||", ";", ">", ">>", "2>&1", "&"})


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words after `coadapt` of each command in a shell snippet."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for at, word in enumerate(words):
            if word.rpartition("/")[2] != "coadapt":
                continue
            if at and words[at - 1] not in (*ENDS, "run", "nohup", "nice"):
                continue
            rest = words[at + 1 :]
            end = next((n for n, each in enumerate(rest) if each in ENDS), len(rest))
            yield rest[:end]


def wrong_words(root: Any, words: list[str]) -> list[str]:
    """Return the verbs and options among `words` that do not exist."""
    command = root
    rest = list(words)
    while rest and not rest[0].startswith("-"):
        below = dict(subcommands_of(command))
        if not below:
            break
        if rest[0] not in below and isinstance(command, FileFirst):
            rest.insert(0, "submit")
        if rest[0] not in below:
            return [rest[0]]
        command = below[rest.pop(0)]
    known = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    known |= {"--help", "-h"}
    if command is root:
        known |= {"--install-completion", "--show-completion"}
    wrong = []
    for word in rest:
        if not word.startswith("-") and words[0] in SCRIPT_VERBS:
            break
        option = word.partition("=")[0]
        if re.match(r"-[-a-z]", option) and option not in known:
            wrong.append(option)
    return wrong


@pytest.fixture(scope="module")
def root() -> Any:
    return typer.main.get_command(app)


def test_commands_in_the_docs_parse(root: Any) -> None:
    num_commands = 0
    for place, text in snippets("sh", "bash"):
        for words in commands_of(text):
            num_commands += 1
            assert not wrong_words(root, words), f"{place}: coadapt {shlex.join(words)}"
    assert num_commands > 80


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("coadapt ls --all  # the jobs", []),
        ("pipx run coadapt demo --out x", []),
        ("coadapt sweep search.yaml --dry-run", []),
        ("coadapt sweep search.yaml --dry", ["--dry"]),
        ("coadapt lls", ["lls"]),
        ("coadapt ls --al", ["--al"]),
        ("coadapt nodes take-back n1 --now | cat", ["--now"]),
        ("coadapt check train.py --epochs 2", []),
        ("coadapt check --epochs 2 train.py", ["--epochs"]),
    ],
)
def test_a_wrong_word_is_found(root: Any, line: str, wrong: list[str]) -> None:
    [words] = commands_of(line)
    assert wrong_words(root, words) == wrong
