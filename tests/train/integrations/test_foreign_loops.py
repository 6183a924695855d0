"""Where another library owns the loop: stopped in mid-epoch, a run goes on as if
nothing had been.
"""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from coadapt.model.contract_env import EXIT_STOPPED
from tests.train.replicas import free_port

pytestmark = [pytest.mark.train, pytest.mark.processes]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "integrations"


def run(
    name: str, folder: Path, num_replicas: int, stop_at: int = 0, *options: str
) -> list[int]:
    """Run an example on so many replicas; the last gets SIGTERM after step `stop_at`.
    Return exit codes.
    """
    port = str(free_port())
    processes = []
    for rank in range(num_replicas):
        environ = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_replicas),
            "LOCAL_WORLD_SIZE": str(num_replicas),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "COADAPT_CHECKPOINT_DIR": str(folder / "checkpoints"),
        }
        alarm = stop_at if rank == num_replicas - 1 else 0
        stopper = [str(Path(__file__).parent / "stop_at.py"), str(alarm)]
        with (folder / f"output-{rank}.txt").open("a") as output:
            processes.append(
                subprocess.Popen(
                    [sys.executable, *stopper, str(EXAMPLES / f"{name}.py"), *options],
                    env=environ,
                    cwd=folder,
                    stdout=output,
                    stderr=output,
                )
            )
    codes = [process.wait(timeout=120) for process in processes]
    print(*(path.read_text() for path in sorted(folder.glob("output-*.txt"))))
    return codes


@pytest.mark.parametrize(
    ("name", "library", "numbers"),
    [
        pytest.param(
            "lightning_regression", "lightning", (2, 1), marks=pytest.mark.slow
        ),
        ("transformers_trainer", "transformers", (2, 1)),
    ],
)
def test_a_run_that_changes_its_replicas_in_an_epoch_ends_the_same(
    name: str, library: str, numbers: tuple[int, ...], tmp_path: Path
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    alone = tmp_path / "alone"
    changing = tmp_path / "changing"
    alone.mkdir()
    changing.mkdir()
    assert run(name, alone, 1, 0, "--save", "final.pt", "--epochs", "2") == [0]
    for number in numbers[:-1]:
        assert (
            run(name, changing, number, 7, "--epochs", "2") == [EXIT_STOPPED] * number
        )
    assert (
        run(name, changing, numbers[-1], 0, "--save", "final.pt", "--epochs", "2")
        == [0] * numbers[-1]
    )
    expected, got = (
        torch.load(folder / "final.pt", weights_only=True)
        for folder in (alone, changing)
    )
    assert expected.keys() == got.keys()
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-6)


class Inbox(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.bodies.append(
            json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        )
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the base class's
        """Say nothing."""


def test_progress_is_reported_from_a_foreign_loop_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Inbox)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("COADAPT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("COADAPT_JOB", "job")
    assert run("lightning_regression", tmp_path, 1) == [0]
    server.shutdown()
    *_, last = (body["report"] for body in Inbox.bodies if "report" in body)
    assert (last["progress"], last["progress_target"], last["samples"]) == (
        4800.0,
        4800.0,
        4800.0,
    )
    assert last["batch"] == {"total": 24, "atomic": 24, "accumulation": 0}
    assert last["step_time_s"] > 0.0
    # Without a profile no policy would ever give it a second replica.
    assert [each["num_replicas_profiled"] for each in last["by_type"].values()] == [1]
    assert list(last["by_type"]) == ["cpu"]
