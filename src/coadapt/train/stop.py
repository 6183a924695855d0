"""SIGTERM becomes a flag that the step loop looks at; a second one, or too long a wait, ends the process."""

import logging
import os
import signal
import socket
import sys
import threading
from types import FrameType

logger = logging.getLogger(__name__)

# What a shell reports for a process that SIGTERM ended: nothing was saved.
EXIT_UNSAVED = 128 + signal.SIGTERM


class StopSignal:
    """Asked to stop or not. `exit_code` is what a forced end reports: set it once the state is saved."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: from the first signal to the forced end."""
        self.exit_code = EXIT_UNSAVED
        self._timeout_s = timeout_s
        self._requested = threading.Event()

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    def install(self) -> None:
        """Catch SIGTERM from now on, if this is the main thread: elsewhere Python allows no handlers.

        The watching thread reads the wake-up descriptor, so it hears of the signal even while the main thread
        waits inside a collective for a peer that is gone.
        """
        if threading.current_thread() is not threading.main_thread():
            logger.warning("not in the main thread: SIGTERM will end this process without a checkpoint")
            return
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        earlier = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if earlier != -1:
            signal.set_wakeup_fd(earlier)
        signal.signal(signal.SIGTERM, self._on_signal)
        os.register_at_fork(after_in_child=_forget_handlers)
        watch = threading.Thread(target=self._watch, args=(reader, writer), name="coadapt-stop", daemon=True)
        watch.start()

    def request(self) -> None:
        self._requested.set()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.request()

    def _watch(self, reader: socket.socket, _writer: socket.socket) -> None:
        """Wait for SIGTERM, then for a second one until the time is over. `_writer` is only kept open."""
        while signal.SIGTERM not in reader.recv(16):
            pass
        self.request()
        reader.settimeout(self._timeout_s)
        try:
            while signal.SIGTERM not in reader.recv(16):
                pass
        except TimeoutError:
            logger.error("no step boundary within %g s of SIGTERM: ending at once", self._timeout_s)
        os._exit(self.exit_code)


def exit_after(seconds: float, code: int) -> threading.Timer:
    """End the process with `code` if it still lives then, unless what is returned is cancelled before."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


def end_now(code: int) -> None:
    """End the process without the interpreter's clean-up: with torch 2 s on a busy machine (measured)."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _forget_handlers() -> None:
    """A forked child (a loader's, the user's own) that is terminated must not stop its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
