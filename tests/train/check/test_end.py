"""Whoever ends `coadapt check` ends the replicas that it started, and leaves no
files.
"""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.train.check.replicas import ScriptRun
from coadapt.train.wrappers.recorder import Plan
from tests.contracts.executor_contract import until

pytestmark = [pytest.mark.train, pytest.mark.processes]

WAITS = """
import os, time
from pathlib import Path
Path({mark!r}, str(os.getpid())).touch()
time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_its_replicas_and_files_go_with_it(
    tmp_path: Path, ending: signal.Signals
) -> None:
    mark = tmp_path / "mark"
    kept = tmp_path / "kept"
    script = tmp_path / "waits.py"
    mark.mkdir()
    kept.mkdir()
    script.write_text(WAITS.format(mark=str(mark)))
    verb = [
        sys.executable,
        "-c",
        "from coadapt.cli.main import main; main()",
        "check",
        str(script),
    ]
    check = subprocess.Popen(
        verb, env={**os.environ, "TMPDIR": str(kept)}, stderr=subprocess.DEVNULL
    )
    try:
        until(
            lambda: len(list(mark.iterdir())) == 2
        )  # alone, and alone but for rounding
        check.send_signal(ending)
        assert check.wait(20) != 0
        replicas = [int(path.name) for path in mark.iterdir()]
        until(
            lambda: (
                not any(Path("/proc", str(replica)).exists() for replica in replicas)
            )
        )
        assert list(kept.iterdir()) == []
    finally:
        check.kill()


def test_the_port_of_a_run_is_reserved_until_its_end(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text("import time; time.sleep(600)")
    run = ScriptRun((str(script),), tmp_path / "run", Plan(num_steps=1), 1e9, {})
    run.start(1)
    assert run._rendezvous is not None
    place = run._rendezvous.getsockname()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(place)
    run.close()
    with socket.socket() as other:
        other.bind(place)
