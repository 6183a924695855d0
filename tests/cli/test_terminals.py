"""Terminals that are not UTF-8: what they lack is shown as `?`, and no verb ends in a
traceback.
"""

import io
import sys
from collections.abc import Callable

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
