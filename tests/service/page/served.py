"""A page over real HTTP: an application in a thread of its own, and a browser in front
of it.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from coadapt.cli.state_dir import StateDir
from coadapt.cli.up.live import what_if_command
from coadapt.service.page.questions import Questions
from tests.service.in_process import InProcess

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def service_with_questions(folder: Path) -> Iterator[InProcess]:
    """Run a scheduler in this process whose page answers what-if questions."""
    service = InProcess(folder)
    questions = Questions(what_if_command(StateDir(folder)), service.clock.now)
    service.questions = questions
    with service.turning():
        yield service
        questions.close()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an ASGI application; yield its address."""
    with socket.socket() as tcp:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        config = uvicorn.Config(
            app, log_level="error", access_log=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [tcp]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{tcp.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser; skip the test where there is none."""
    api = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=list(FLAGS)
        )
        yield launched
        launched.close()
