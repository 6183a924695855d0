"""The connection between a proxy and the runner of its replica: how it is set up, and
its messages.

The runner connects, with a token from its environment. The proxy may then send STOP,
once. The runner's last message is how the replica ended. If the connection breaks, each
side knows that the other is gone.
"""

import hmac
import os
import secrets
import socket

ENV_LINE = "COADAPT_SLURM_LINE"  # host:port token
ENV_DEVICES = (
    "COADAPT_SLURM_DEVICES"  # numbers of the GPUs to see, of those that the step has
)

# The directory in which the replica runs. If it is missing, Slurm would begin the step
# in /tmp.
ENV_WORKDIR = "COADAPT_SLURM_WORKDIR"

STOP = b"T"
TOKEN_BYTES = 16
CALL_S = 10.0
# A machine that disappears is noticed after IDLE_S + PROBES * PROBE_S seconds without
# an answer.
IDLE_S = 6
PROBE_S = 2
PROBES = 3


class Exchange:
    """The socket at `address` on which the proxy waits for its runner's connection."""

    def __init__(self, address: str) -> None:
        """Raises OSError if this process cannot listen at `address`."""
        self._token = secrets.token_hex(TOKEN_BYTES)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.server = socket.create_server((address, 0), family=family)

    @property
    def envs(self) -> dict[str, str]:
        host, port = self.server.getsockname()[:2]
        return {ENV_LINE: f"{host}:{port} {self._token}"}

    def answer(self) -> socket.socket | None:
        """Wait for a connection and return it, None if it is not from the runner."""
        line, _ = self.server.accept()
        line.settimeout(CALL_S)
        expected = self._token.encode()
        try:
            given = _read(line, len(expected))
        except OSError:
            given = b""
        if not hmac.compare_digest(given, expected):
            line.close()
            return None
        _keep_alive(line)
        return line


def call(where: str | None = None) -> socket.socket:
    """Connect to the proxy. An address that is not given is taken from the environment,
    and removed there. Raises OSError, KeyError.
    """
    address, _, token = (where or os.environ.pop(ENV_LINE)).partition(" ")
    host, _, port = address.rpartition(":")
    line = socket.create_connection((host, int(port)), CALL_S)
    line.sendall(token.encode())
    _keep_alive(line)
    return line


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := line.recv(size - len(data))):
        data += more
    return data


def _keep_alive(line: socket.socket) -> None:
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    line.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (IDLE_S + PROBES * PROBE_S)
    )
