"""Which network interface replicas on other machines reach this one by: gloo and NCCL
have to be given its name.
"""

# Why they need the name.
#
# Without a name gloo listens at the address that the machine's host name stands for.
# Debian and Ubuntu write `127.0.1.1 NAME` into /etc/hosts, so gloo listens on loopback
# and the other machines cannot reach it. Where the name stands for nothing, gloo fails.
# NCCL takes whatever interface comes first, which may be a bridge of Docker.
#
# The engine knows an address of each node by which the others reach it: the interface
# that has this address is the right one. Without such an address (plain torchrun) it is
# the interface of the route towards MASTER_ADDR, and on the machine that has
# MASTER_ADDR itself the interface that has it. If that is loopback while replicas are
# on several machines, MASTER_ADDR is a name that means something else here, so the
# default route decides.

import ctypes
import ipaddress
import socket
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
NCCL_VARIABLE = "NCCL_SOCKET_IFNAME"

# Nothing is sent there: the kernel is asked for a route. Both are set apart for
# documentation (RFC 5737, 3849).
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
_ANY_PORT = 9
_NUM_ADDRESS_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}
_ADDRESS_OFFSET = {socket.AF_INET: 4, socket.AF_INET6: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface, one address of it, and why it was chosen, in words."""

    name: str
    address: str
    why: str

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


class _SocketAddress(ctypes.Structure):
    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Entry(ctypes.Structure):
    """`struct ifaddrs` of getifaddrs(3), as far as it is read here."""


_Entry._fields_ = (
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
)


def addresses() -> list[tuple[str, str]]:
    """Return (interface, address) of this machine, IPv4 and IPv6, in the kernel's
    order; [] if not Linux.
    """
    if not sys.platform.startswith("linux"):
        return []
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Entry)()
    if libc.getifaddrs(ctypes.byref(first)):
        return []
    found: list[tuple[str, str]] = []
    try:
        entry = first
        while entry:  # type: ignore[truthy-bool]  # a null pointer is false
            here = entry.contents
            if here.address and (text := _address(here.address.contents)):
                found.append((here.name.decode(), text))
            entry = here.next
    finally:
        libc.freeifaddrs(first)
    return found


def choose_interface(
    node_address: str, master_address: str, *, several_machines: bool
) -> Interface | None:
    """Return the interface for talking to the other replicas, None if it is
    unknown.

    node_address: that of this machine as the others reach it, "" if unknown.
    master_address: MASTER_ADDR.
    """
    known = addresses()
    if node_address:
        found = _having(
            known, node_address, f"it has this node's address {node_address}"
        )
        if found is not None and not (found.is_loopback and several_machines):
            return found
    if master_address:
        found = _on_route(known, master_address, f"the route to {master_address}")
        if found is not None and not (found.is_loopback and several_machines):
            return found
    if not several_machines:
        return None
    return default_interface(known)


def default_interface(known: list[tuple[str, str]] | None = None) -> Interface | None:
    """Return the interface of the default route, or the only one besides loopback; None
    if there is none.
    """
    known = addresses() if known is None else known
    for target in _ELSEWHERE:
        found = _on_route(known, target, "the default route")
        if found is not None and not found.is_loopback:
            return found
    others = {
        name: address for name, address in reversed(known) if not _is_local(address)
    }
    if len(others) != 1:
        return None
    ((name, address),) = others.items()
    return Interface(name=name, address=address, why="the only one besides loopback")


def set_interfaces(
    envs: MutableMapping[str, str], node_address: str
) -> Interface | None:
    """Set gloo's and NCCL's variables in a replica's environment unless they are set;
    return what was chosen.

    envs: has torchrun's variables (WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR).
    node_address: "" if unknown.
    """
    if GLOO_VARIABLE in envs and NCCL_VARIABLE in envs:
        return None
    chosen = choose_interface(
        node_address,
        envs.get("MASTER_ADDR", ""),
        several_machines=on_several_machines(envs),
    )
    if chosen is None:
        return None
    envs.setdefault(GLOO_VARIABLE, chosen.name)
    if not chosen.is_loopback:
        # `=`: this very name, not each that begins with it. On one machine NCCL needs
        # none.
        envs.setdefault(NCCL_VARIABLE, f"={chosen.name}")
    return chosen


def on_several_machines(envs: Mapping[str, str]) -> bool:
    """Return whether the replicas of this environment are on more than one machine."""
    world = envs.get("WORLD_SIZE", "1")
    local = envs.get("LOCAL_WORLD_SIZE", world)
    return world != local


def own_name_means() -> str:
    """Return what this machine's host name stands for, in words."""
    name = socket.gethostname()
    try:
        target = socket.getaddrinfo(name, _ANY_PORT, type=socket.SOCK_DGRAM)[0][4]
    except OSError:
        return f"the name {name} stands for no address here"
    return f"the name {name} stands for {target[0]}"


def _address(found: _SocketAddress) -> str:
    family = found.family
    if family not in _NUM_ADDRESS_BYTES:
        return ""
    # sockaddr_in: port (2), address; sockaddr_in6: port (2), flow (4), address; after
    # the family (2).
    start = _ADDRESS_OFFSET[family] - 2
    raw = bytes(found.data[start : start + _NUM_ADDRESS_BYTES[family]])
    return socket.inet_ntop(family, raw)


def _having(known: list[tuple[str, str]], address: str, why: str) -> Interface | None:
    try:
        sought = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None  # a name, which may stand for anything
    for name, each in known:
        if ipaddress.ip_address(each) == sought:
            return Interface(name=name, address=each, why=why)
    return None


def _on_route(known: list[tuple[str, str]], target: str, why: str) -> Interface | None:
    try:
        infos = socket.getaddrinfo(target, _ANY_PORT, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, _, _, _, where in infos:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)
                source = str(probe.getsockname()[0])
        except OSError:
            continue
        if (found := _having(known, source, why)) is not None:
            return found
    return None


def _is_local(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_link_local
