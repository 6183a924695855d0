"""The socket in the state directory, over which the verbs of the same user talk to the
scheduler.
"""

# A port belongs to the process that takes it first: while no scheduler runs, any user
# of the machine may listen there, and would be sent the operator's token. In a
# directory that only its owner may write, only the owner can make a socket. The kernel
# also names the user at the other end, and a client checks it before it sends anything.
#
# The kernel takes 107 bytes for the path of a socket, and state directories are longer
# at times. So both sides go through a handle of the directory: `/proc/self/fd/N/socket`
# is always short.

import http.client
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LISTEN_BACKLOG = 128
PRIVATE_FILE = 0o600
PEER = struct.Struct("3i")  # pid, uid and gid, as SO_PEERCRED gives them


class LocalConnection(http.client.HTTPConnection):
    """HTTP over the socket at `path`. Raises PermissionError if another user's process
    listens there.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with _short(self._path) as address:
            self.sock.connect(address)
        peer = PEER.unpack(
            self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        )
        if peer[1] != os.geteuid():
            self.close()
            raise PermissionError(f"user {peer[1]} listens there")


@contextmanager
def listening_here(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket at `path`, in place of what an earlier scheduler left, until
    the block ends.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server_socket:
        path.unlink(missing_ok=True)
        with _short(path) as address:
            server_socket.bind(address)
        # The directory may be open for others to look into; this is the operator's
        # alone.
        path.chmod(PRIVATE_FILE)
        server_socket.listen(LISTEN_BACKLOG)
        made = path.stat().st_ino
        try:
            yield server_socket
        finally:
            with suppress(OSError):
                if stat.S_ISSOCK(path.stat().st_mode) and path.stat().st_ino == made:
                    path.unlink()


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give an address of `path` that the kernel takes."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)
