"""How an uncaught exception ends a replica: the first to fail tells it, the others say
one line or nothing.

Without this, every replica prints its own traceback: of the same mistake, or of the
connection that broke.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from coadapt.model import InputError
from coadapt.model.contract_env import EXIT_PEER_LOST
from coadapt.train.exits.stop import EXIT_GRACE_S, StopSignal, end_now, exit_after
from coadapt.train.session import Session

# What gloo and NCCL say when the other end of a connection is gone.
LOST_CONTACT = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
    "remote process exited",
    "NCCL communicator was aborted",
)
# A mistake that all replicas make alike is best reported by the first of them: the
# others let it go ahead.
PRECEDENCE_S = 0.5
# The one that failed is to end first, so that any launcher takes it for the cause; it
# needs 0.3-2 s.
PEER_WAIT_S = 3.0
POLL_S = 0.05
STORE_TIMEOUT_S = 2.0
EXIT_FAILED = 1
TEXT_MAX = 200
LEFT = "left run.epochs before its end (sys.exit, break, return)"


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a replica. kind: of the exception, empty if the script left its
    epochs. where: file and line of the script.
    """

    rank: int
    kind: str
    where: str
    text: str

    def same_mistake(self, other: "Failure") -> bool:
        """Return whether both were raised by the same line; texts may name a rank or a
        device.
        """
        return (self.kind, self.where) == (other.kind, other.where)

    def __str__(self) -> str:
        if not self.kind:
            return f"replica {self.rank} {self.text}: all must leave it together"
        error = f"{self.kind}: {self.text}" if self.text else self.kind
        return f"replica {self.rank} failed first: {error}"


class FailureReporter:
    """Hears of the exception that ends this process. `exit_code` is None as long as
    there was none.
    """

    def __init__(self, session: Session, stop: StopSignal) -> None:
        self.exit_code: int | None = None
        # Returns a line to print in place of the traceback, None for errors that it
        # does not know.
        self.explain: Callable[[Exception], str | None] = lambda _: None
        self._session = session
        self._stop = stop
        self._otherwise = sys.excepthook
        self._limit: threading.Timer | None = None
        self._process = os.getpid()
        self._left_reported = False

    @property
    def forked(self) -> bool:
        """Return whether this process is a child that the script forked: the run is its
        parent's.
        """
        return os.getpid() != self._process

    def install(self) -> None:
        """Hear of uncaught exceptions from now on; what heard of them before still
        prints tracebacks.
        """
        self._otherwise = sys.excepthook
        sys.excepthook = self._on_exception

    def uninstall(self) -> None:
        """Remove the exception hook, unless the script has put its own in front of
        it.
        """
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._otherwise

    def leave(self, *, unfinished: bool) -> None:
        """End this process if another one failed first, but after that one.

        `unfinished`: training goes on elsewhere, so the others get the reason why this
        replica is gone.
        """
        if unfinished:
            self.tell_left()
        if self.exit_code is None or not self._session.group.distributed:
            return
        first = self.exit_code == EXIT_FAILED
        if first and self._session.group.rank:
            return
        # The first replica may be the one that keeps the store in which the others read
        # which replica failed first.
        deadline = time.monotonic() + (2 * PRECEDENCE_S if first else PEER_WAIT_S)
        while time.monotonic() < deadline and not self._stop.requested:
            time.sleep(POLL_S)
        if not first:
            end_now(EXIT_PEER_LOST)

    def tell_left(self) -> None:
        """Tell the others that the script left its epochs before their end, once."""
        if self.exit_code is not None or self._left_reported:
            return
        self._left_reported = True
        own = Failure(rank=self._session.group.rank, kind="", where="", text=LEFT)
        if self._first_failure(own) == own:
            self._write(f"the script {LEFT}: fine if all do")

    def release(self) -> None:
        """Remove the time limit of this process's end: no replica waits for it."""
        if self._limit is not None:
            self._limit.cancel()

    def _on_exception(
        self,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        # The interpreter sets it before it calls the hook. A script may call the hook
        # too, to print an error that it got over or that ended one of its threads:
        # training goes on.
        ends = getattr(sys, "last_value", None) is error
        if self.forked or not ends or not isinstance(error, Exception):
            self._otherwise(kind, error, trace)
            return
        lost = is_lost_contact(error)
        explained = self.explain(error)
        group = self._session.group
        if group.rank and not lost:
            time.sleep(PRECEDENCE_S)
        failure = _failure(group.rank, error, trace)
        first = self._first_failure(failure)
        failed_elsewhere = first is not None and first != failure
        self.exit_code = EXIT_PEER_LOST if lost or failed_elsewhere else EXIT_FAILED
        self._stop.failed()
        if group.distributed:
            # The interpreter may wait for threads of the script, and the other replicas
            # for this process.
            self._limit = exit_after(PEER_WAIT_S + EXIT_GRACE_S, self.exit_code)
        if (
            first is not None
            and failed_elsewhere
            and (lost or failure.same_mistake(first))
        ):
            # Where all print to one terminal, a line from each would bury the first
            # one's.
            if group.rank == 0 and not failure.same_mistake(first):
                self._write(str(first))
        elif lost:
            self._write(
                "lost contact with another replica, which gave no reason: killed, or "
                "left its epochs early"
            )
        elif explained is not None:
            sys.stderr.write(f"{explained}\n")
        elif isinstance(error, InputError):
            sys.stderr.write(f"error: {error} ({failure.where})\n")
        else:
            self._otherwise(kind, error, trace)

    def _first_failure(self, own: Failure) -> Failure | None:
        """Return the first failure of this generation, `own` if it is; None if that
        cannot be found out.
        """
        if not self._session.group.distributed:
            return own
        message = json.dumps(asdict(own))
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))
            first = store.compare_set("coadapt/failed", "", message).decode()
        except (RuntimeError, ValueError, OSError):
            return None  # it went with the process that kept it, or with the group
        return Failure(**json.loads(first))

    def _write(self, text: str) -> None:
        rank = self._session.group.rank
        step = self._session.progress.step
        sys.stderr.write(f"replica {rank} ends at step {step}: {text}\n")


def tell_input_errors() -> None:
    """Let an InputError that ends this process print one line, before there is a run
    that could.
    """
    otherwise = sys.excepthook

    def tell(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InputError):
            sys.stderr.write(f"error: {error} ({_failure(0, error, trace).where})\n")
        else:
            otherwise(kind, error, trace)

    sys.excepthook = tell


def is_lost_contact(error: BaseException) -> bool:
    """Return whether `error` only says that another replica is gone."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in LOST_CONTACT
    )


def _failure(rank: int, error: Exception, trace: TracebackType | None) -> Failure:
    own = str(Path(__file__).parents[2])
    frames = traceback.extract_tb(trace)
    frame = next(
        (item for item in reversed(frames) if not item.filename.startswith(own)), None
    )
    where = "" if frame is None else f"{Path(frame.filename).name}, line {frame.lineno}"
    text = str(error).strip().split("\n", 1)[0]
    return Failure(
        rank=rank, kind=type(error).__name__, where=where, text=text[:TEXT_MAX]
    )
