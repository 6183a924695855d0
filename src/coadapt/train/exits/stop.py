"""SIGTERM becomes a flag that the step loop looks at; a second one, or too long a wait,
ends the process.
"""

import atexit
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from coadapt.durable import write_whole
from coadapt.model.contract_env import (
    EXIT_STOPPED,
    LISTENER_ENDED,
    LISTENER_FAILED,
    LISTENER_TRAINS,
)

logger = logging.getLogger(__name__)

# What a shell reports for a process that SIGTERM ended: nothing was saved.
EXIT_UNSAVED = 128 + signal.SIGTERM
# `timeout` signals its child, and then the group that the child is in; shells and
# launchers pass signals on that their children got already. Within this time it is
# still the first one.
REPEAT_S = 2.0
# Interpreter and process group have been seen to hang at the end of a replica; its
# state is safe by then.
EXIT_GRACE_S = 5.0


class StopSignal:
    """Asked to stop or not. `exit_code` is what a forced end reports: set it once the
    state is saved.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        repeat_s: float = REPEAT_S,
        listeners_dir: Path | None = None,
        member: str = "",
    ) -> None:
        """`timeout_s`: from the first signal to the forced end. `repeat_s`: a second
        one is the first's echo.

        listeners_dir: where this process says that it listens, that it trains, and how
        that ended; member:
        the replica that it is (model/rescale.py).
        """
        self.exit_code = EXIT_UNSAVED
        self._timeout_s = timeout_s
        self._repeat_s = repeat_s
        self._notice = (
            None if listeners_dir is None else listeners_dir / str(os.getpid())
        )
        self._member = member
        self._requested = threading.Event()
        self._installed = False

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def install(self) -> None:
        """Catch SIGTERM from now on, if this is the main thread: elsewhere Python
        allows no handlers.

        The watching thread reads the wake-up descriptor, so it hears of the signal even
        while the main thread waits inside a collective for a peer that is gone.
        """
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "not in the main thread: SIGTERM will end this process without a "
                "checkpoint"
            )
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        earlier = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if earlier != -1:
            signal.set_wakeup_fd(earlier)
        signal.signal(signal.SIGTERM, self._on_signal)
        self._installed = True
        _keep_from_children()
        watch = threading.Thread(
            target=self._watch, args=(reader, writer), name="coadapt-stop", daemon=True
        )
        watch.start()
        self.trains()

    def take_back(self) -> None:
        """Be asked again, where another library has put a handler of its own in the
        place of this one.
        """
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)

    def saved(self) -> None:
        """The state is on disk: this process ends, and may be ended."""
        self.exit_code = EXIT_STOPPED
        self._say(str(EXIT_STOPPED))

    def trains(self) -> None:
        """Training goes on, or on again after it was over."""
        if self._installed:
            self._say(f"{LISTENER_TRAINS} {self._member}")

    def ended(self) -> None:
        """Training is over for this process: its exit with code 0 is a success."""
        if self._installed and self.exit_code != EXIT_STOPPED:
            self._say(f"{LISTENER_ENDED} {self._member}")

    def failed(self) -> None:
        """An exception ends this process, whatever the commands above it report."""
        if self._installed and self.exit_code != EXIT_STOPPED:
            self._say(f"{LISTENER_FAILED} {self._member}")

    def dismiss(self) -> None:
        """The others train on without this process: it ends with code 0."""
        self.exit_code = 0
        self.ended()

    def _say(self, word: str) -> None:
        """Write a word for the launcher, in one instant. Where it cannot be written
        training goes on.
        """
        if self._notice is None:
            return
        try:
            write_whole(self._notice, word, durable=False)
        except OSError as error:
            logger.warning(
                "the launcher could not be notified that this replica is %s: %s",
                word,
                error,
            )

    def request(self) -> None:
        self._requested.set()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.request()

    def _watch(self, reader: socket.socket, _writer: socket.socket) -> None:
        """Wait for SIGTERM, then for a second one until the time is over. `_writer` is
        only kept open.
        """
        while signal.SIGTERM not in reader.recv(16):
            pass
        self.request()
        began = time.monotonic()
        again = False
        try:
            while not again:
                reader.settimeout(
                    max(began + self._timeout_s - time.monotonic(), 0.001)
                )
                again = (
                    signal.SIGTERM in reader.recv(16)
                    and time.monotonic() > began + self._repeat_s
                )
        except TimeoutError:
            logger.error(
                "no step boundary within %g s of SIGTERM: ending at once",
                self._timeout_s,
            )
        os._exit(self.exit_code)


def exit_after(seconds: float, code: int) -> threading.Timer:
    """End the process with `code` if it still lives then, unless what is returned is
    cancelled before.
    """
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


def end_soon(code: int) -> None:
    """Called by an exit handler: end the process with `code` once the script's own exit
    handlers have run, EXIT_GRACE_S from now at the latest.
    """
    _requested_codes.append(code)
    exit_after(EXIT_GRACE_S, code)


def register_end() -> None:
    """Register the exit handler that carries out `end_soon`. Exit handlers run last in,
    first out: those that a script registers after its import of coadapt.train run
    before this one. torch's clean-up, which was registered before, is left out.
    """
    atexit.register(_end_if_asked)


def _end_if_asked() -> None:
    if _requested_codes:
        end_now(_requested_codes[-1])


_requested_codes: list[int] = []
register_end()


def end_now(code: int) -> None:
    """End the process without the interpreter's clean-up: with torch 2 s on a busy
    machine (measured).
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@functools.cache
def _keep_from_children() -> None:
    """From now on a forked child (a loader's, the user's own) that is terminated does
    not stop its parent.

    It shares the parent's wake-up descriptor until it has let go of it, and may be
    terminated before.
    """
    forking = threading.local()

    def hold() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=forget)
