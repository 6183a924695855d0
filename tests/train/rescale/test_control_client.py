"""The control channel in both its forms, and who may not use that over the network."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coadapt.executors.processes.control_server import (
    BODY_MAX,
    STRANGERS_MAX,
    ControlServer,
)
from coadapt.model.contract_env import ENV_CONTROL_TOKEN, ENV_CONTROL_URL
from coadapt.model.rescale import (
    CAPABLE_FILE,
    CONTROL_PATH,
    ORDER_FILE,
    RescaleOrder,
    begun_file,
    decided_file,
    done_file,
    ready_file,
)
from coadapt.model.wire import to_json
from coadapt.train.rescale.control_channel import ControlChannel
from coadapt.train.rescale.control_client import ControlClient
from coadapt.train.rescale.control_dir import ControlDir

pytestmark = pytest.mark.train

PATIENCE_S = 10.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def give(folder: Path, generation: int, *members: str) -> RescaleOrder:
    order = RescaleOrder(
        generation=generation, members=members, placement=(len(members),)
    )
    beside = folder / "order.new"
    beside.write_text(json.dumps(to_json(order)))
    beside.replace(folder / ORDER_FILE)
    return order


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ControlServer]:
    server = ControlServer(tmp_path, "127.0.0.1")
    yield server
    server.close()


@pytest.fixture(params=["by files", "over the network"])
def channel(
    request: pytest.FixtureRequest, tmp_path: Path, server: ControlServer
) -> ControlChannel:
    if request.param == "by files":
        return ControlDir(tmp_path)
    return ControlClient(server.envs[ENV_CONTROL_URL], server.envs[ENV_CONTROL_TOKEN])


def test_an_order_is_heard_of_replaced_and_taken_back(
    channel: ControlChannel, tmp_path: Path
) -> None:
    assert channel.order() is None
    for generation in (2, 3):
        order = give(tmp_path, generation, "1-0", f"{generation}-1")
        until(lambda order=order: channel.order() == order)  # type: ignore[misc]
    (tmp_path / ORDER_FILE).unlink()
    until(lambda: channel.order() is None)


def test_what_is_asked_for_now_is_never_late(
    channel: ControlChannel, tmp_path: Path
) -> None:
    for generation in range(2, 30):
        order = give(tmp_path, generation, "1-0")
        assert channel.order(now=True) == order
        channel.publish_store(generation, "10.0.0.7", 4711)
        assert channel.store_address(generation, now=True) == ("10.0.0.7", 4711)
    assert channel.store_address(99, now=True) is None


def test_what_replicas_say_is_where_the_launcher_looks(
    channel: ControlChannel, tmp_path: Path
) -> None:
    channel.announce()
    channel.mark_ready("2-1")
    channel.mark_begun(2)
    channel.mark_done(2)
    said = {CAPABLE_FILE, ready_file("2-1"), begun_file(2), done_file(2)}
    assert {path.name for path in tmp_path.iterdir()} == said
    until(lambda: channel.ready("2-1"))
    assert not channel.ready("2-2")


def test_whoever_claims_first_has_decided(
    channel: ControlChannel, tmp_path: Path
) -> None:
    (tmp_path / decided_file(2)).touch()  # by the launcher
    assert (channel.claim(2), channel.claim(3), channel.claim(3)) == (
        False,
        True,
        False,
    )


def test_a_look_at_the_order_asks_nobody(tmp_path: Path, server: ControlServer) -> None:
    order = give(tmp_path, 2, "1-0")
    client = ControlClient(server.envs[ENV_CONTROL_URL], server.envs[ENV_CONTROL_TOKEN])
    server.close()
    assert client.order() == order
    with pytest.raises(OSError, match="refused"):
        client.order(now=True)
    server.close = lambda: None  # type: ignore[method-assign]  # it is


def ask(
    server: ControlServer,
    method: str,
    path: str,
    body: bytes | None = b"",
    token: str = "",
) -> int:
    """Return the status of one request."""
    headers = {"Authorization": f"Bearer {token or server.envs[ENV_CONTROL_TOKEN]}"}
    url = server.envs[ENV_CONTROL_URL] + path
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers, method=method)
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_another_job_s_token_opens_nothing(
    tmp_path: Path, server: ControlServer, method: str
) -> None:
    other = ControlServer(tmp_path / "other", "127.0.0.1")
    path = (
        f"{CONTROL_PATH}/{ORDER_FILE}" if method != "GET" else f"{CONTROL_PATH}?after=0"
    )
    for token in (other.envs[ENV_CONTROL_TOKEN], "x", "\u00fc"):
        assert (
            ask(server, method, path, None if method == "GET" else b"{}", token=token)
            == 401
        )
    other.close()
    assert not (tmp_path / ORDER_FILE).exists()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", f"{CONTROL_PATH}/..%2Fstart", b"", 404),
        ("PUT", f"{CONTROL_PATH}/../start", b"", 404),
        ("PUT", f"{CONTROL_PATH}/a/b", b"", 404),
        ("PUT", f"{CONTROL_PATH}/.hidden", b"", 404),
        ("PUT", f"{CONTROL_PATH}/{'x' * 65}", b"", 404),
        ("PUT", "/etc/passwd", b"", 404),
        ("POST", f"{CONTROL_PATH}/", b"", 404),
        ("GET", f"{CONTROL_PATH}?after=-1", None, 404),
        ("GET", f"{CONTROL_PATH}?after={'9' * 400}", None, 404),
        ("GET", "/", None, 404),
        ("PUT", f"{CONTROL_PATH}/note", b"x" * (BODY_MAX + 1), 413),
        ("PUT", f"{CONTROL_PATH}/note", b"\xff\xfe", 400),
        ("DELETE", f"{CONTROL_PATH}/note", b"", 501),
        ("PUT", f"{CONTROL_PATH}/note", b"x" * BODY_MAX, 204),
    ],
)
def test_what_is_no_note_is_refused(
    tmp_path: Path,
    server: ControlServer,
    method: str,
    path: str,
    body: bytes | None,
    status: int,
) -> None:
    assert ask(server, method, path, body) == status
    found = [path.name for path in tmp_path.iterdir()]
    assert found == (["note"] if status == 204 else [])


def test_silent_strangers_give_way_to_who_has_the_token(
    tmp_path: Path, server: ControlServer
) -> None:
    """Whoever reaches the port could have as many threads and files of the launcher as
    it liked.
    """
    client = ControlClient(server.envs[ENV_CONTROL_URL], server.envs[ENV_CONTROL_TOKEN])
    assert client.order(now=True) is None
    before = threading.active_count()
    strangers = [
        socket.create_connection(("127.0.0.1", server.port))
        for _ in range(2 * STRANGERS_MAX)
    ]
    try:
        for stranger in strangers[:STRANGERS_MAX]:
            stranger.settimeout(PATIENCE_S)
            assert stranger.recv(1) == b""
        until(lambda: threading.active_count() <= before + STRANGERS_MAX)
        order = give(tmp_path, 2, "1-0")
        until(lambda: client.order(now=True) == order)
    finally:
        for stranger in strangers:
            stranger.close()
