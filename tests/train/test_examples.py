"""The examples reach what they promise; they stop, resume and run under torchrun like
any user's script.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coadapt.model.contract_env import EXIT_STOPPED

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"


def final(output: str) -> float:
    """Return the number in the last line, `final ...`."""
    found = re.search(r"^final .* ([\d.]+)$", output, re.MULTILINE)
    assert found, output
    return float(found[1])


def run_here(
    name: str,
    arguments: str,
    capsys: pytest.CaptureFixture[str],
    patch: pytest.MonkeyPatch,
) -> float:
    """Run an example in this process; return its result."""
    patch.setattr(sys, "argv", [name, *arguments.split()])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return final(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "arguments", "low", "high"),
    [
        ("classify", "--samples 3000 --epochs 5", 0.80, 1.0),
        ("factorise", "--epochs 9", 0.25, 0.50),
        ("tiny_gpt", "--samples 2000 --epochs 3", 0.26, 0.60),
    ],
)
def test_they_learn(
    name: str,
    arguments: str,
    low: float,
    high: float,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Shorter than by default; the scripts say what they reach then."""
    assert low <= run_here(name, arguments, capsys, monkeypatch) <= high


def start(arguments: list[str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "COADAPT_CHECKPOINT_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.processes
def test_a_script_that_is_stopped_and_started_again_ends_as_if_nothing_had_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "--samples 600 --epochs 6"
    script = [str(EXAMPLES / "classify.py"), *arguments.split()]
    stopped = start(script, tmp_path)
    assert stopped.stdout is not None
    assert stopped.stdout.readline().startswith("epoch 0")
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(timeout=60) == EXIT_STOPPED
    rest, _ = start(script, tmp_path).communicate(timeout=120)
    assert not rest.startswith("epoch 0")
    assert final(rest) == run_here("classify", arguments, capsys, monkeypatch)


@pytest.mark.processes
def test_under_torchrun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "--samples 3000 --epochs 2"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = start(
        [*torchrun, str(EXAMPLES / "factorise.py"), *arguments.split()], tmp_path
    )
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert output.count("final error") == 1
    assert final(output) == pytest.approx(
        run_here("factorise", arguments, capsys, monkeypatch), abs=2e-4
    )
