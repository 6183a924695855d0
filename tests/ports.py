"""Ports for servers that have to be told theirs before they start."""

import random
import socket

# Below those that the kernel gives to connections and to whoever asks for any port, or
# one of them could be taken between here and the server's start; above those that Ray's
# workers look through.
LEAST = 20_000
MOST = 32_000


def free_ports(count: int) -> list[int]:
    """Return ports of loopback on which nobody listens."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(LEAST, MOST), MOST - LEAST):
        if len(found) == count:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
    return found
