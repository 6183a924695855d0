"""Where the store of a group listens: at the address that was named, where that can
be.
"""

from pathlib import Path

import pytest

from coadapt.train.group.store_address import keep_store

pytestmark = pytest.mark.train

LISTENS = "0A"


def listens_at(port: int) -> set[str]:
    """Return the addresses, as the kernel writes them, at which somebody listens at
    `port`.
    """
    text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    rows = [line.split() for line in text.splitlines()]
    ends = [row[1].split(":") for row in rows if row[3] == LISTENS]
    return {address for address, number in ends if number == f"{port:04X}"}


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "0100007F"),
        (
            "localhost",
            "0" * 32,
        ),  # a name: it may mean another address elsewhere, so all of them
    ],
)
def test_a_store_listens_at_the_address_that_was_named(host: str, address: str) -> None:
    store = keep_store(host, 0)
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert listens_at(store.port) == {address}
