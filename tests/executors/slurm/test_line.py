"""The line between a proxy and its runner: who gets through, and that its end is
heard.
"""

import socket
import threading

import pytest

from coadapt.executors.processes.line import ENV_LINE, STOP, Exchange, call


def test_the_runner_gets_through_and_its_address_is_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange = Exchange("127.0.0.1")
    monkeypatch.setenv(ENV_LINE, exchange.envs[ENV_LINE])
    called: list[socket.socket] = []
    caller = threading.Thread(target=lambda: called.append(call()))
    caller.start()
    line = exchange.answer()
    caller.join()
    assert line is not None
    with pytest.raises(KeyError):
        call()  # a replica finds nothing in its environment any more
    line.sendall(STOP)
    assert called[0].recv(1) == STOP
    line.close()
    assert called[0].recv(1) == b""


@pytest.mark.parametrize("said", [b"", b"x" * 32, b"x" * 1000])
def test_whoever_has_not_the_token_is_sent_away(said: bytes) -> None:
    exchange = Exchange("127.0.0.1")
    stranger = socket.create_connection(exchange.server.getsockname()[:2])
    stranger.sendall(said)
    stranger.shutdown(socket.SHUT_WR)
    assert exchange.answer() is None


def test_a_token_is_used_once_per_replica() -> None:
    first = Exchange("127.0.0.1")
    second = Exchange("127.0.0.1")
    assert first.envs[ENV_LINE].split()[1] != second.envs[ENV_LINE].split()[1]
