"""What `setup` leaves for `run`: the environment and the directory in which its shell
ended.

So `source venv/bin/activate`, `export X=1` and `cd src` in `setup` count for `run`.
Standard library only.
"""

# The shell writes down its own end, by a trap on EXIT, into a file without a name that
# the launcher made: a setup that exits by itself, or goes on to other shells, needs
# nothing else. A setup that replaces its shell (`exec`), or sets a trap on EXIT of its
# own, leaves nothing.

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.executors.processes.records.own_files import path_is_dir
from coadapt.model.contract_env import is_reserved_env

# Of a shell's own making.
OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS"})
LEFT_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupLeft:
    """envs: variables that are new or have other values. unset: those that are gone.
    workdir: "": as it was.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    workdir: str = ""

    def applied(self, envs: Mapping[str, str]) -> dict[str, str]:
        """Return the environment `envs` as `setup` changed it."""
        kept = {name: value for name, value in envs.items() if name not in self.unset}
        return {**kept, **self.envs}


def noting_its_end(setup: str, file: int) -> str:
    """Return `setup` as a shell runs it that writes into the open file how it ended, if
    it ended well.
    """
    note = f"{{ printf '%s\\0' \"$PWD\"; env -0; }} >/proc/self/fd/{file}"
    trap = f'code=$?; if [ "$code" = 0 ]; then {note}; fi; exit "$code"'
    quoted = trap.replace("'", "'\\''")
    return f"trap '{quoted}' EXIT\n{setup}"


def read_left(file: int, before: Mapping[str, str], workdir: str) -> SetupLeft:
    """Return what a shell that began with `before` in `workdir` wrote into the open
    file.
    """
    os.lseek(file, 0, os.SEEK_SET)
    with open(os.dup(file), "rb") as noted:
        parts = noted.read(LEFT_BYTES_MAX + 1).split(b"\0")
    if len(parts) < 2 or parts[-1]:
        return SetupLeft()  # nothing, or more than is kept
    after = {}
    for part in parts[1:-1]:
        name, sign, value = part.decode(errors="surrogateescape").partition("=")
        if sign:
            after[name] = value
    at = parts[0].decode(errors="surrogateescape")
    moved = path_is_dir(Path(at)) and not _same(at, workdir)
    return SetupLeft(
        envs={
            name: value
            for name, value in after.items()
            if before.get(name) != value and _passes(name, value)
        },
        unset=tuple(
            sorted(name for name in before if name not in after and _passes(name, ""))
        ),
        workdir=at if moved else "",
    )


def _passes(name: str, value: str) -> bool:
    """Return whether `setup` may change a variable, and its value can be written
    down.
    """
    if name in OF_THE_SHELL or is_reserved_env(name):
        return False
    try:
        (name + value).encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8
        return False
    return True


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
