"""The server that HTTP comes in by: connections that stay, bodies in parts, heads
without an end.
"""

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from coadapt.cli.up.live import listening
from coadapt.core.events import TrainingReported
from coadapt.runtime.memory_store import MemoryStore
from coadapt.service import bounded_http
from coadapt.service.server import http_server
from tests.service.in_process import TOKEN, InProcess, until
from tests.service.reports.test_reading import JOB

PATIENCE_S = 60.0
REPORT = b'{"generation":1,"report":{"progress":%d}}'


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[InProcess, socket.socket]]:
    service = InProcess(tmp_path_factory.mktemp("served"), MemoryStore())
    with service.turning(), listening("127.0.0.1", [0]) as tcp:
        server = http_server(service.service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [tcp]})
        thread.start()
        until(lambda: server.started)
        yield service, tcp
        server.should_exit = True
        thread.join()


def talk(tcp: socket.socket, *parts: bytes) -> bytes:
    """Send parts over one connection; return all that comes until it is closed."""
    with socket.create_connection(tcp.getsockname(), PATIENCE_S) as connection:
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            while data := connection.recv(65_536):
                answer += data
        except ConnectionError:  # it was closed before all was sent
            pass
    return answer


def head(job: str, *headers: str) -> bytes:
    lines = [
        f"POST /v1/jobs/{job}/reports HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {TOKEN}",
    ]
    return "\r\n".join(
        [*lines, "Content-Type: application/json", *headers, "", ""]
    ).encode()


def test_reports_come_one_after_the_other_and_in_parts_over_one_connection(
    served: tuple[InProcess, socket.socket],
) -> None:
    service, tcp = served
    job = service.client().post("/v1/jobs", json=JOB).json()["id"]
    bodies = [REPORT % progress for progress in (1, 2, 3)]
    whole, halved, chunked = (
        head(job, f"Content-Length: {len(body)}") for body in bodies
    )
    chunked = head(job, "Transfer-Encoding: chunked", "Connection: close")
    answer = talk(
        tcp,
        whole + bodies[0] + halved + bodies[1][:9],
        bodies[1][9:] + chunked,
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(bodies[2]), bodies[2]),
    )
    assert answer.count(b"HTTP/1.1 202 ") == 3, answer
    assert answer.count(b'{"id":"%s"}' % job.encode()) == 3
    reported = [
        event for event in service.store.events() if isinstance(event, TrainingReported)
    ]
    assert [event.report.progress for event in reported] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "line",
    [b"X: %s\r\n" % (b"y" * 200), b"y" * 1_000],
    ids=["many headers", "one header without an end"],
)
def test_a_head_without_an_end_is_refused(
    served: tuple[InProcess, socket.socket], line: bytes
) -> None:
    answer = talk(served[1], b"GET / HTTP/1.1\r\nX: ", *[line] * 2_000)
    assert (
        answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    )  # reset, as more was on its way


@pytest.mark.processes
@pytest.mark.parametrize(
    "part", ["nothing", "half a head", "half a body", "the second one's half"]
)
def test_a_request_that_does_not_come_to_its_end_is_cut_off(
    served: tuple[InProcess, socket.socket], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened connections and said no more, byte by byte or at all, could take
    all that there are.
    """
    monkeypatch.setattr(
        bounded_http, "REQUEST_S", 1.0
    )  # 0.2 is too short for a busy machine
    whole = b"GET /v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    sent = {
        "nothing": b"",
        "half a head": whole[:-2],
        "half a body": head("a", "Content-Length: 100") + b"{",
        "the second one's half": whole + whole[:-2],
    }[part]
    answer = talk(served[1], sent)
    assert answer.count(b"HTTP/1.1 200 ") == (part == "the second one's half")
    assert answer.endswith(b"a request must be here whole within 1 s"), answer


def test_a_body_of_no_parts_is_answered(
    served: tuple[InProcess, socket.socket],
) -> None:
    """It waited for a body that had come to its end, until the client went away."""
    empty = head("a", "Transfer-Encoding: chunked", "Connection: close") + b"0\r\n\r\n"
    assert talk(served[1], empty).startswith(b"HTTP/1.1 422 ")


def test_of_two_lengths_there_is_one_request(
    served: tuple[InProcess, socket.socket],
) -> None:
    """Another could be smuggled inside of it past a proxy that counts differently."""
    inside = b"GET /v1/healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    lengths = (
        f"Content-Length: {5 + len(inside)}",
        "Transfer-Encoding: chunked",
        "Connection: close",
    )
    answer = talk(served[1], head("a", *lengths) + b"0\r\n\r\n" + inside)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 422 "))
    assert answer.count(b"HTTP/1.1 ") == 1


def test_whoever_opens_more_connections_than_there_is_room_for_keeps_nobody_out(
    served: tuple[InProcess, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the usual limit of 1,024 files, as many connections of anybody ended the
    scheduler.
    """
    monkeypatch.setattr(bounded_http, "connections_max", lambda: 20)
    whole = b"GET /v1/healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    crowd = [
        socket.create_connection(served[1].getsockname(), PATIENCE_S)
        for _ in range(100)
    ]
    try:
        for _ in range(30):
            assert b"HTTP/1.1 200 " in talk(served[1], whole)
        cut_off = 0
        for connection in crowd:
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                cut_off += connection.recv(1) == b""
        assert cut_off >= 80
    finally:
        for connection in crowd:
            connection.close()


def test_half_of_the_files_are_left_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, connections in (
        (1_024, 512),
        (10**6, 4_000),
        (resource.RLIM_INFINITY, 4_000),
    ):
        monkeypatch.setattr(
            resource, "getrlimit", lambda _, files=files: (files, files)
        )
        assert bounded_http.connections_max() == connections


@pytest.mark.processes
def test_requests_without_an_end_on_one_connection_are_cut_off(
    served: tuple[InProcess, socket.socket],
) -> None:
    """They waited in memory, some 10,000 on each connection."""
    answer = talk(served[1], b"GET /v1/jobs HTTP/1.1\r\n\r\n" * 10_000)
    assert answer.count(b"HTTP/1.1 401 ") <= bounded_http.PIPELINED_MAX + 1
    assert (
        b"HTTP/1.1 401 "
        in talk(served[1], b"GET /v1/jobs HTTP/1.1\r\n\r\n" * 50 + head("a"))[:100]
    )
