"""The store by which replicas find each other. One replica keeps it, at a single
address of its machine.
"""

# torch's own store listens at every address of the machine, for any client, because it
# needs no token. If the executor names an address, the store must be reachable only
# there. This is 127.0.0.1 for a job on one machine, or an address of the cluster's
# network. If the executor gives a name instead, torch's own store is used: many
# machines resolve their own name to 127.0.1.1, and other machines resolve it to another
# address. The same holds for an address that this machine does not have, as with
# address translation.

import ipaddress
import socket
from datetime import timedelta

import torch
from torch._C._distributed_c10d import TCPStore  # dist.TCPStore, as its stub knows it

BACKLOG = 1024
# Before that version, the newer of torch's two servers accepts no existing listener.
_NEWER = torch.__version__ >= "2.8"


def keep_store(
    address: str,
    port: int,
    timeout: timedelta = timedelta(minutes=30),
    *,
    world_size: int | None = None,
) -> TCPStore:
    """Return a store that this process keeps at `address`. Port 0 means any port.
    Raises DistNetworkError if the port is taken.

    world_size: the number of processes, with this one, for which the call waits.
    """
    listener = _listen(address, port)
    return TCPStore(
        address,
        port if listener is None else listener.getsockname()[1],
        world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=world_size is not None,
        master_listen_fd=None if listener is None else listener.detach(),
        use_libuv=_NEWER or listener is None,
    )


def _listen(address: str, port: int) -> socket.socket | None:
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return None
    listener = socket.socket(
        socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_STREAM
    )
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        return None
    return listener
