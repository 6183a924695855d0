"""The port at which replicas meet stays free while they load their libraries."""

import socket
from datetime import timedelta

import pytest

from coadapt.executors.processes.records.generation_dir import ReplicaOrder
from coadapt.executors.processes.replica import reserve_port

# Of Linux 6.3: the ports from which the kernel chooses for this socket. Python has no
# name for it.
IP_LOCAL_PORT_RANGE = 51
HOST = "127.0.0.1"


@pytest.fixture
def reserved() -> socket.socket:
    order = ReplicaOrder(envs={"MASTER_ADDR": HOST}, via=(), log="log")
    return reserve_port([order])


def test_the_kernel_gives_the_port_to_nobody_else(reserved: socket.socket) -> None:
    port: int = reserved.getsockname()[1]
    both = (port << 16 | port).to_bytes(4, "little")
    with socket.socket() as other:
        try:
            other.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, both)
        except OSError:
            pytest.skip("Linux before 6.3")
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, 0))
        reserved.close()
        other.bind((HOST, 0))
        assert other.getsockname()[1] == port


def test_a_replica_listens_at_it(reserved: socket.socket) -> None:
    port: int = reserved.getsockname()[1]
    with socket.socket() as replica:
        replica.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        replica.bind((HOST, port))
        replica.listen()
        with socket.create_connection((HOST, port)) as client:
            assert client.getpeername() == (HOST, port)
    reserved.close()


@pytest.mark.train
@pytest.mark.parametrize("libuv", [False, True])
@pytest.mark.parametrize("address", [HOST, "localhost"])
def test_torchs_stores_listen_at_it(
    reserved: socket.socket, libuv: bool, address: str
) -> None:
    from torch.distributed import TCPStore

    from coadapt.train.group.store_address import keep_store

    port: int = reserved.getsockname()[1]
    store = TCPStore(address, port, 1, True, timedelta(seconds=10), use_libuv=libuv)
    store.set("a", "b")
    assert store.get("a") == b"b"
    del store
    own = keep_store(address, port, timedelta(seconds=10))
    assert own.port == port
    reserved.close()
