"""The environment and the directory that `setup` leaves for `run`: those in which its
shell ended.

So `source venv/bin/activate`, `export X=1` and `cd src` in `setup` count for `run`.
Standard library only.
"""

# A trap on EXIT makes the shell write its final state into an unnamed file that the
# launcher created. This also works for a setup that calls `exit` or starts other
# shells. A setup that replaces its shell (`exec`), or sets its own trap on EXIT, leaves
# nothing.

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coadapt.executors.processes.records.own_files import path_is_dir
from coadapt.model.contract_env import is_reserved_env

# Variables that the shell itself sets.
OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASHOPTS", "SHELLOPTS"})
LEFT_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupLeft:
    """The changes made by `setup`. envs: variables that are new or have other values.
    unset: variables that are gone. workdir: the new directory, "" if it is the same.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    workdir: str = ""

    def applied(self, envs: Mapping[str, str]) -> dict[str, str]:
        """Return the environment `envs` with the changes made by `setup`."""
        kept = {name: value for name, value in envs.items() if name not in self.unset}
        return {**kept, **self.envs}


def noting_its_end(setup: str, file: int) -> str:
    """Return a script that runs `setup`, and writes the shell's final state into the
    open file if `setup` succeeds.
    """
    note = f"{{ printf '%s\\0' \"$PWD\"; env -0; }} >/proc/self/fd/{file}"
    trap = f'code=$?; if [ "$code" = 0 ]; then {note}; fi; exit "$code"'
    quoted = trap.replace("'", "'\\''")
    return f"trap '{quoted}' EXIT\n{setup}"


def read_left(file: int, before: Mapping[str, str], workdir: str) -> SetupLeft:
    """Return the changes that a shell wrote into the open file. It began with the
    environment `before` in `workdir`.
    """
    os.lseek(file, 0, os.SEEK_SET)
    with open(os.dup(file), "rb") as noted:
        parts = noted.read(LEFT_BYTES_MAX + 1).split(b"\0")
    if len(parts) < 2 or parts[-1]:
        return SetupLeft()  # nothing, or more than is allowed
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
