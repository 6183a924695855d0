"""The death of a Ray cluster's head ends neither the scheduler nor its jobs: with a
real head that asks for a token, and `coadapt up`.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coadapt.executors import prepare_executor
from coadapt.model import InputError
from tests.cli.live_cluster import LiveCluster, run_cli, until
from tests.ports import free_ports

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.engine("ray")]

START_S = 120.0
# Ray's own daemons, and with them the replicas, end a minute after the head.
WITHOUT_HEAD_S = 120.0
TARGET = 3000
SHELLS = ("sh", "bash", "dash")
# Ray itself would try for 20 s.
REFUSED_S = 15.0


class Head:
    """A Ray cluster of one node at a fixed port, which can die and be started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self.token = folder / "token"

    def start(self) -> None:
        options = [
            "--head",
            f"--port={self._port}",
            "--num-cpus=2",
            "--node-name=node-0",
            "--include-dashboard=false",
        ]
        self.token.write_text("0123456789abcdef" * 4)
        envs = {
            "RAY_TMPDIR": str(self._folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
        }
        with (self._folder / "head.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *options],
                env={**os.environ, **envs},
                stdout=log,
                stderr=log,
                check=True,
                timeout=START_S,
            )

    def kill_store(self) -> None:
        """Kill -9 the head's control store, and nothing else."""
        [store] = [pid for pid in self._processes() if _runs(pid, "gcs_server")]
        os.kill(store, signal.SIGKILL)

    def stop(self) -> None:
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> list[int]:
        mark = f"RAY_TMPDIR={self._folder}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
        return found


def _runs(pid: int, name: str) -> bool:
    with suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/exe")).name == name
    return False


def _environs_of_jobs() -> list[bytes]:
    """Return the environments of the shells that run the job of this test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "comm").read_text().strip() in SHELLS:
                found.append((entry / "environ").read_bytes())
    return [each for each in found if f"TARGET={TARGET}".encode() in each]


@contextmanager
def head_of_ray() -> Iterator[tuple[Head, str]]:
    # Ray's sockets want a short path.
    with tempfile.TemporaryDirectory(
        prefix="ray-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        (port,) = free_ports(1)
        head = Head(Path(folder), port)
        try:
            head.start()
            yield head, f"127.0.0.1:{port}"
        finally:
            head.stop()


def test_jobs_go_on_once_the_head_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_of_ray() as (head, address):
        began = time.monotonic()
        with pytest.raises(InputError, match="asks for Ray's token: set RAY_AUTH_MODE"):
            prepare_executor("ray", {"address": address, "slots": 2})
        assert time.monotonic() - began < REFUSED_S
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(head.token))
        options = ("address=" + address, "slots=2")
        engine = (
            "--executor",
            "ray",
            *(f"--executor-option={each}" for each in options),
        )
        cluster = LiveCluster(tmp_path, engine=engine)
        try:
            cluster.up(2)
            job = cluster.submit("a", TARGET=TARGET)
            until(lambda: cluster.count(job) > 10, "the job trains")
            environs = _environs_of_jobs()
            assert environs
            assert not any(b"RAY_AUTH" in environ for environ in environs)
            head.kill_store()
            killed_at = time.monotonic()

            def messages() -> list[str]:
                return [
                    str(each) for each in cluster.client.get("/v1/notices")["notices"]
                ]  # type: ignore[union-attr]

            until(
                lambda: any("nothing answers at" in each for each in messages()),
                "it is told",
            )
            told_s = time.monotonic() - killed_at
            before = cluster.count(job)
            until(lambda: cluster.count(job) > before + 20, "the job trains on")
            assert cluster.job(job)["state"] == "running"
            doctor = run_cli("doctor", state=cluster.state)
            assert "Ray cannot be asked" in doctor.stdout, doctor.stdout
            waiting = cluster.submit("b", TARGET=20)
            cluster.wait_for(job, "pending", within_s=WITHOUT_HEAD_S)
            ended_s = time.monotonic() - killed_at
            until(
                lambda: "Ray's head" in str(cluster.job(waiting)["explanation"]),
                "the job that waits says why",
            )
            head.stop()
            head.start()
            back_at = time.monotonic()
            cluster.wait_for(job, "running")
            until(lambda: len(cluster.trace(job)) > 1, "the job trains again")
            again_s = time.monotonic() - back_at
            assert messages() == []
            # It goes on from where it was, and nothing of it was given up.
            assert int(cluster.trace(job)[1].rpartition(" ")[2]) > before
            cluster.wait_for(waiting, "succeeded")
            cluster.client.post(f"/v1/jobs/{job}/cancel", {})
            cluster.wait_for(job, "cancelled")
        finally:
            cluster.close()
    print(f"reported {told_s:.1f} s, ended {ended_s:.1f} s, again {again_s:.1f} s")
