"""Nothing but results is written to stdout."""

import os

import pytest

from coadapt.cli.research.playing import stdout_kept


def test_what_a_library_writes_to_stdout_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with stdout_kept():
        os.write(1, b"a solver's line\n")
    os.write(1, b"{}\n")
    assert capfd.readouterr() == ("{}\n", "a solver's line\n")
