"""Machines apart on this one: a network name space, an address, a host name and an
/etc/hosts each, on a bridge.

Needs root and `ip`. What loopback, a shared host name or one file system hides between
processes shows here.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PREFIX4 = "10.83"
PREFIX6 = "fd83"
NEEDED = ("ip", "nsenter", "unshare")
_numbers = itertools.count()


def missing() -> str:
    """Return what machines apart lack here, "" where they can be made."""
    if os.geteuid() != 0:
        return "root"
    if absent := [name for name in NEEDED if shutil.which(name) is None]:
        return " ".join(absent)
    made = subprocess.run(["ip", "netns", "list"], capture_output=True, check=False)
    return "" if made.returncode == 0 else "network name spaces"


class Machines:
    """`count` machines. names: what an /etc/hosts says of the own name: `debian`
    (127.0.1.1) or `unknown`.

    ipv6: addresses are IPv6 only. decoy: each has a first interface that leads nowhere,
    as Docker's bridge.
    """

    def __init__(
        self, count: int, names: str, *, ipv6: bool = False, decoy: bool = False
    ) -> None:
        # The kernel takes away what was in a name space some time after that is gone.
        self._tag = f"cm{os.getpid() % 100000}x{next(_numbers)}"
        self._net = os.getpid() % 250
        self._ipv6 = ipv6
        self._folder = Path(tempfile.mkdtemp(prefix="machines-"))
        self.addresses = [self._address(index + 1) for index in range(count)]
        try:
            self._make(count, names, decoy=decoy)
        except BaseException:
            self.close()
            raise

    def _address(self, index: int) -> str:
        if self._ipv6:
            return f"{PREFIX6}:{self._net:x}::{index:x}"
        return f"{PREFIX4}.{self._net}.{index}"

    def _make(self, count: int, names: str, *, decoy: bool) -> None:
        width = 64 if self._ipv6 else 24
        _ip("link", "add", self._tag, "type", "bridge")
        _ip("link", "set", self._tag, "up")
        for index in range(count):
            space = f"{self._tag}-{index}"
            cable = f"{self._tag}v{index}"
            _ip("netns", "add", space)
            if decoy:
                _ip("-n", space, "link", "add", "adocker0", "type", "bridge")
                _ip("-n", space, "addr", "add", "172.29.0.1/16", "dev", "adocker0")
                _ip("-n", space, "link", "set", "adocker0", "up")
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)  # fmt: skip
            _ip("link", "set", cable, "master", self._tag, "up")
            _ip("-n", space, "link", "set", "lo", "up")
            nodad = ["nodad"] if self._ipv6 else []
            where = f"{self.addresses[index]}/{width}"
            _ip("-n", space, "addr", "add", where, "dev", "eth0", *nodad)
            _ip("-n", space, "link", "set", "eth0", "up")
            lines = ["127.0.0.1 localhost", "::1 localhost"]
            if names == "debian":
                lines.append(f"127.0.1.1 gpu{index}")
            (self._folder / f"hosts{index}").write_text("\n".join(lines) + "\n")

    def start(
        self, index: int, command: Sequence[str], envs: Mapping[str, str]
    ) -> "subprocess.Popen[str]":
        """Start a command on a machine."""
        script = (
            f"mount --bind {self._folder}/hosts{index} /etc/hosts; hostname "
            f"gpu{index}; "
            'exec "$@"'
        )
        inside = ["nsenter", f"--net=/run/netns/{self._tag}-{index}", "unshare", "--uts", "--mount"]  # fmt: skip
        return subprocess.Popen(
            [*inside, "sh", "-c", script, "sh", *command],
            env={**os.environ, **envs},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def cut(self, index: int) -> None:
        """Pull the cable of a machine."""
        _ip("link", "set", f"{self._tag}v{index}", "down")

    def close(self) -> None:
        for index in range(len(self.addresses)):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", f"{self._tag}-{index}")
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._tag)
        shutil.rmtree(self._folder, ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
