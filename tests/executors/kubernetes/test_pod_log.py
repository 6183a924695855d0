"""What a pod prints comes whole, once and in order, whatever closes the connection
between.
"""

import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("kubernetes")

from coadapt.executors.kubernetes.api import ApiError
from coadapt.executors.kubernetes.pod_log import TRIES_AFTER_END, PodLog

PATIENCE_S = 60.0
RETRY_S = 0.01


class LogServer:
    """Answers each request with the whole log so far; a string breaks the answer off
    after it.

    The last answer is repeated.
    """

    def __init__(self, *answers: tuple[bytes, bool]) -> None:
        self.answers = answers
        self.asked = 0
        self.all_asked = threading.Event()

    def stream(self, _path: str, **_query: object) -> Iterator[bytes]:
        self.asked += 1
        text, breaks = self.answers[min(self.asked, len(self.answers)) - 1]
        for place in range(0, len(text), 2):
            yield text[place : place + 2]
        if self.asked >= len(self.answers):
            self.all_asked.set()
        if breaks:
            raise ApiError(0, "the connection broke")


def passed_on(server: LogServer, printed: int = 0) -> int:
    """Pass on all that there is; return how often the server had been asked when the
    container had ended.
    """
    log = PodLog(server, "/pods/a", printed, RETRY_S)  # type: ignore[arg-type]  # a server
    log.start()
    assert server.all_asked.wait(PATIENCE_S)
    asked = server.asked
    log.finish(PATIENCE_S)
    return asked


@pytest.mark.parametrize("breaks", [False, True], ids=["closed", "broken off"])
def test_a_connection_that_ends_while_the_container_runs_is_made_anew(
    breaks: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    passed_on(LogServer((b"one\n", breaks), (b"one\n", breaks), (b"one\ntwo\n", False)))
    assert capfdbinary.readouterr().out == b"one\ntwo\n"


def test_what_was_printed_before_is_passed_over(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    passed_on(LogServer((b"one\ntwo\n", False)), printed=3)
    assert capfdbinary.readouterr().out == b"\ntwo\n"


def test_a_node_that_is_gone_is_asked_a_few_times_only(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    server = LogServer((b"one\n", True))
    asked = passed_on(server)
    assert capfdbinary.readouterr().out == b"one\n"
    assert server.asked - asked <= TRIES_AFTER_END + 2
