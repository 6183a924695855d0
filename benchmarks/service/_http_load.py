"""Requests to a live scheduler, and how long the answers took: the client's side of
control_plane.py.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

PATIENCE_S = 120.0
JsonObject = dict[str, object]
Request = tuple[str, str, object]
"""Method, path, body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A scheduler that answers."""

    url: str
    token: str
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU time that its process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def live_service(folder: Path) -> Iterator[tuple["Service", float]]:
    """Serve the state directory `folder`; give the service, and how long it took to
    answer (s).
    """
    begun = time.perf_counter()
    (folder / "connection.json").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.service._live_service", str(folder)]
    )
    try:
        url = _address(folder, process)
        asyncio.run(_answers(url))
        token = (folder / "token").read_text().strip()
        yield (
            Service(url=url, token=token, pid=process.pid),
            time.perf_counter() - begun,
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def _address(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        try:
            return str(json.loads((folder / "connection.json").read_text())["url"])
        except (FileNotFoundError, ValueError):
            time.sleep(0.01)
    raise RuntimeError("the service did not come up")


async def _answers(url: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            connection = await Connection.to(url, "")
        except OSError:
            await asyncio.sleep(0.01)
            continue
        status = await connection.ask(("GET", "/v1/healthz", None))
        connection.close()
        assert status == 200, status
        return


class Connection:
    """One kept-alive connection, which asks one thing after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"

    @classmethod
    async def to(cls, url: str, token: str) -> "Connection":
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port), token)

    async def ask(self, request: Request) -> int:
        """Return the status of the answer, once all of it is here."""
        method, path, body = request
        content = b"" if body is None else json.dumps(body).encode()
        kind = (
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
            if content
            else ""
        )
        self._writer.write(f"{method} {path} {self._head}{kind}\r\n".encode() + content)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(
            int(line.partition(b":")[2])
            for line in lines
            if line.startswith(b"content-length")
        )
        await self._reader.readexactly(length)
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self._writer.close()


async def _ask_all(
    url: str, token: str, requests: Sequence[Request], num_connections: int
) -> list[float]:
    waiting = iter(requests)
    taken_s = list[float]()

    async def one_after_the_other(connection: Connection) -> None:
        for request in waiting:
            begun = time.perf_counter()
            status = await connection.ask(request)
            taken_s.append(time.perf_counter() - begun)
            assert status < 300, (request, status)

    connections = [await Connection.to(url, token) for _ in range(num_connections)]
    await asyncio.gather(*(one_after_the_other(each) for each in connections))
    for connection in connections:
        connection.close()
    return taken_s


def measure(
    service: Service, requests: Sequence[Request], num_connections: int = 1
) -> JsonObject:
    """Return how long the answers took (ms), and how many came per second over all
    connections.

    cpu_ms: of the scheduler's process per answer, its rounds of that time included;
    client_cpu_ms: of this one, which shares the cores. On a machine that others use
    they tell more than the wall time does.
    """
    begun = time.perf_counter()
    cpu_s = service.cpu_s()
    own_cpu_s = time.process_time()
    taken_s = sorted(
        asyncio.run(_ask_all(service.url, service.token, requests, num_connections))
    )
    cpu_s = service.cpu_s() - cpu_s
    own_cpu_s = time.process_time() - own_cpu_s
    wall_s = time.perf_counter() - begun
    return {
        "num_requests": len(taken_s),
        "num_connections": num_connections,
        "cpu_ms": 1e3 * cpu_s / len(taken_s),
        "client_cpu_ms": 1e3 * own_cpu_s / len(taken_s),
        "p50_ms": 1e3 * median(taken_s),
        "p99_ms": 1e3 * taken_s[min(int(0.99 * len(taken_s)), len(taken_s) - 1)],
        "max_ms": 1e3 * taken_s[-1],
        "per_s": len(taken_s) / wall_s,
    }


def verb(folder: Path, *arguments: str, times: int = 5) -> JsonObject:
    """Return how long a verb takes as a process of its own, Python's start included
    (ms).
    """
    taken_s = []
    environ = {**os.environ, "COADAPT_STATE": str(folder)}
    for _ in range(times):
        command = [
            sys.executable,
            "-c",
            "from coadapt.cli.main import main; main()",
            *arguments,
        ]
        begun = time.perf_counter()
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        taken_s.append(time.perf_counter() - begun)
    return {
        "num_requests": times,
        "p50_ms": 1e3 * median(taken_s),
        "max_ms": 1e3 * max(taken_s),
    }
