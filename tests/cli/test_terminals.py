"""Terminals that are not UTF-8: what they lack is shown as `?`, and no verb ends in a
traceback.
"""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from coadapt.cli import main as cli


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("write", [print, typer.echo])
def test_a_terminal_shows_what_it_can(
    encoding: str, write: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "1 – 2 ü"
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(cli, "app", lambda **_: write(text))
    with pytest.raises(SystemExit):
        cli.main()
    terminal.flush()
    shown = text.encode(encoding, errors="replace")
    # To a terminal that says ASCII, typer writes UTF-8: nearly all of those understand
    # it.
    assert written.getvalue().strip() in (shown, text.encode())


@pytest.mark.processes
def test_a_path_with_an_umlaut_works_where_python_takes_names_for_ascii(
    tmp_path: Path,
) -> None:
    """The verb ended with `'ascii' codec can't encode character`."""
    folder = tmp_path / "Prüfung"
    folder.mkdir()
    job = folder / "jöb.yaml"
    job.write_text("name: a\nbatch: {initial: 8}\nrun: sleep 1\n")
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("coadapt")),
            "submit",
            str(job),
            "--state",
            str(tmp_path / "no"),
        ],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert b"/no does not exist" in ended.stderr
