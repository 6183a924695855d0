"""The store by which replicas find each other, kept by one of them, at one address of
its machine only.
"""

# torch's own listens at every address of the machine, for any client: it asks
# for no token. Where the executor names an address (127.0.0.1, where a job is on one
# machine; that of a cluster's network), it is to be reached there only. A name is left
# to torch: many machines find their own under 127.0.1.1, and others find another. So is
# an address that is none of this machine's own, as behind a translation of addresses.

import ipaddress
import socket
from datetime import timedelta

import torch
from torch._C._distributed_c10d import TCPStore  # dist.TCPStore, as its stub knows it

BACKLOG = 1024
# The newer of torch's two servers takes no listener that is there already before that.
_NEWER = torch.__version__ >= "2.8"


def keep_store(
    address: str,
    port: int,
    timeout: timedelta = timedelta(minutes=30),
    *,
    world_size: int | None = None,
) -> TCPStore:
    """Return a store that this process keeps at `address`; port 0: any. Raises
    DistNetworkError if taken.

    world_size: waits until so many processes have come, this one included.
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
