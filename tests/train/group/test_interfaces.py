"""By which interface replicas on other machines reach this one: chosen from addresses
and routes of our own.
"""

import pytest

from coadapt import interfaces
from coadapt.interfaces import (
    Interface,
    addresses,
    choose_interface,
    default_interface,
    on_several_machines,
    set_interfaces,
)

KNOWN = [
    ("lo", "127.0.0.1"),
    ("docker0", "172.17.0.1"),
    ("eth0", "10.0.0.5"),
    ("ib0", "192.168.7.5"),
    ("lo", "::1"),
    ("eth0", "fd00::5"),
    ("eth0", "fe80::1"),
]
# What the kernel would answer: the source address of a packet to there.
ROUTES = {
    "10.0.0.9": "10.0.0.5",
    "192.168.7.9": "192.168.7.5",
    "gpu1": "127.0.0.1",
    "127.0.0.1": "127.0.0.1",
    "192.0.2.1": "10.0.0.5",
    "fd00::9": "fd00::5",
}
SEVERAL = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "addresses", lambda: list(KNOWN))

    def on_route(known: list, target: str, why: str) -> Interface | None:
        source = ROUTES.get(target)
        return None if source is None else interfaces._having(known, source, why)

    monkeypatch.setattr(interfaces, "_on_route", on_route)


@pytest.mark.parametrize(
    ("node_address", "master", "several", "name"),
    [
        ("10.0.0.5", "10.0.0.9", True, "eth0"),
        ("192.168.7.5", "192.168.7.9", True, "ib0"),
        ("fd00::5", "fd00::9", True, "eth0"),
        ("fe80::1%eth0", "fd00::9", True, "eth0"),
        ("172.17.0.1", "10.0.0.9", True, "docker0"),  # the engine knows best
        ("", "10.0.0.9", True, "eth0"),
        ("", "192.168.7.9", True, "ib0"),
        ("203.0.113.7", "10.0.0.9", True, "eth0"),  # behind a translation of addresses
        ("gpu1", "10.0.0.9", True, "eth0"),  # a name that Debian gives 127.0.1.1
        ("", "gpu1", True, "eth0"),  # likewise, on the machine of rank 0
        ("127.0.0.1", "127.0.0.1", True, "eth0"),
        ("", "nowhere", True, "eth0"),
        ("127.0.0.1", "127.0.0.1", False, "lo"),
        ("", "127.0.0.1", False, "lo"),
        ("", "", False, None),
    ],
)
def test_the_interface_is_that_by_which_others_reach_this_machine(
    node_address: str, master: str, several: bool, name: str | None
) -> None:
    chosen = choose_interface(node_address, master, several_machines=several)
    assert (None if chosen is None else chosen.name) == name


def test_without_routes_the_only_interface_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ROUTES, "192.0.2.1", "198.51.100.1")
    assert default_interface() is None  # docker0, eth0, ib0: who knows
    only = default_interface([("lo", "127.0.0.1"), ("eth1", "10.1.0.5")])
    assert only is not None
    assert only.name == "eth1"


def test_what_was_set_stays() -> None:
    envs = {**SEVERAL, "MASTER_ADDR": "10.0.0.9", "GLOO_SOCKET_IFNAME": "ib0"}
    set_interfaces(envs, "10.0.0.5")
    assert envs["GLOO_SOCKET_IFNAME"] == "ib0"
    assert envs["NCCL_SOCKET_IFNAME"] == "=eth0"
    both = {**envs, "NCCL_SOCKET_IFNAME": "^docker"}
    assert set_interfaces(dict(both), "10.0.0.5") is None


def test_on_one_machine_nccl_is_left_alone() -> None:
    envs = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    chosen = set_interfaces(envs, "127.0.0.1")
    assert chosen is not None
    assert envs["GLOO_SOCKET_IFNAME"] == "lo"
    assert "NCCL_SOCKET_IFNAME" not in envs
    assert not on_several_machines(envs)
    assert on_several_machines(SEVERAL)


def test_this_machines_addresses_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert ("lo", "127.0.0.1") in addresses()
