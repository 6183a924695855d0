"""The page of a recorded journal: the same page and the same routes, over what the
journal says, read-only.
"""

import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import typer
import uvicorn
from fastapi import FastAPI

from coadapt.cli.cluster.read_back import read_back_into
from coadapt.cli.state_dir import StateDir
from coadapt.cli.up.live import listening
from coadapt.core.state import SchedulerState
from coadapt.executors.processes.records.job_log import read_job_log
from coadapt.model import InputError, JobId, NodeId
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.ports import LogPart
from coadapt.service import errors
from coadapt.service.auth import Credentials
from coadapt.service.guard import Guard
from coadapt.service.page import routes, shell
from coadapt.service.page.decisions import DecisionLog
from coadapt.service.page.questions import Questions

T = TypeVar("T")
HOST = "127.0.0.1"
# An open page keeps a stream of events: it is cut off then.
SHUTDOWN_GRACE_S = 1
JOURNAL_NAME = "journal.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource:
    """What a journal says: see PageSource. state_dir: where the logs of
    its jobs are, if they are kept."""

    state: SchedulerState
    index: JobIndex
    policy: str
    decisions: DecisionLog
    number: int
    state_dir: Path

    @property
    def recorded(self) -> bool:
        return True

    @property
    def questions(self) -> Questions | None:
        # What is asked is kept beside the journal, which is only read here.
        return None

    def now(self) -> float:
        return self.state.at

    def num_events(self) -> int:
        return self.number

    def read(self, question: Callable[[SchedulerState], T]) -> T:
        return question(self.state)

    def notices(self) -> list[str]:
        return []

    def why_no_plan_yet(self) -> str:
        return ""

    def nodes_aside(self) -> Mapping[NodeId, str]:
        return {}

    def read_log(self, job: JobId, rank: int, offset: int) -> LogPart:
        return read_job_log(self.state_dir, job, rank, offset)


def serve_recorded(journal: Path, port: int, ready: Callable[[str, str], None]) -> None:
    """Serve the page of a journal until Ctrl-C. `ready` gets its address and a token
    made for it.
    """
    app, token = recorded_app(journal)
    with listening(HOST, [port]) as tcp:
        ready(f"http://{HOST}:{tcp.getsockname()[1]}", token)
        typer.echo("Ctrl-C ends it", err=True)
        _serve(app, tcp)


def recorded_app(journal: Path) -> tuple[Guard, str]:
    """Return the application that shows a journal, and the token that it asks for.
    Raises InputError.
    """
    path = journal / JOURNAL_NAME if journal.is_dir() else journal
    if not path.is_file():
        raise InputError(
            "journal",
            str(journal),
            "a journal that `coadapt up` wrote, or its directory",
        )
    directory = StateDir(path.absolute().parent)
    index = JobIndex(":memory:")
    decisions = DecisionLog()
    scheduler, number = read_back_into(
        index, path, directory.index, directory.first_config(), decisions
    )
    source = RecordedSource(
        state=scheduler.state,
        index=index,
        policy=(directory.last_run() or {}).get("policy", "recorded"),
        decisions=decisions,
        number=number,
        state_dir=directory.path,
    )
    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    routes.install(app, source)
    app.include_router(shell.router)
    app.include_router(routes.router)
    errors.install(app)
    token = secrets.token_urlsafe()
    return Guard(app, Credentials(token, secrets.token_hex())), token


def _serve(app: Guard, tcp: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[tcp])
