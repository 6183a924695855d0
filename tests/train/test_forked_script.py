"""A script that is a fork ends, fails, and is stopped as `python SCRIPT` is."""

import signal
import time
from pathlib import Path

import pytest

from tests.train.forked_script import ForkedScript

pytestmark = [pytest.mark.train, pytest.mark.processes]

ENV = {"GREETING": "hello"}


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("import os, sys; print(os.environ['GREETING'], *sys.argv[1:])", 0, "hello a\n"),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no such thing')", 1, "no such thing\n"),
        ("raise ValueError('boom')", 1, "ValueError: boom\n"),
        ("import atexit; atexit.register(print, 'bye'); print('hi')", 0, "hi\nbye\n"),
        ("import beside; print(beside.__name__, __name__)", 0, "beside __main__\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; print(len(os.environ), os.getpgid(0) == os.getpid())", 0, "1 True\n"),
    ],
)  # fmt: skip
def test_it_ends_as_a_script_does(
    script: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").touch()
    path = tmp_path / "script.py"
    path.write_text(script)
    with (tmp_path / "log").open("ab") as log:
        assert ForkedScript([str(path), "a"], ENV, log).wait(60) == code
    assert (tmp_path / "log").read_text().endswith(said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import time; open('up', 'w'); time.sleep(600)")
    with (tmp_path / "log").open("ab") as log:
        script = ForkedScript([str(path)], ENV, log, cwd=str(tmp_path))
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    assert script.poll() is None
    script.send_signal(number)
    assert script.wait(60) == -number


def test_two_of_them_draw_other_numbers(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import random, numpy; print(random.random(), numpy.random.rand(), sep='\\n')"
    )
    for _ in range(2):
        with (tmp_path / "log").open("ab") as log:
            assert ForkedScript([str(path)], ENV, log).wait(60) == 0
    assert len({*(tmp_path / "log").read_text().split()}) == 4
