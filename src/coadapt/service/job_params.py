"""Parameters of a job: how they reach its command and its environment."""

import json
import re
import shlex
from collections.abc import Mapping

from coadapt.model import InputError
from coadapt.model.bounds import check_scalar
from coadapt.model.contract_env import ENV_PARAMS, PARAM_PREFIX

Param = bool | int | float | str

NAMES_ALLOWED = "names of letters, digits and _, not beginning with a digit"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# `${name}` is the shell's.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_params(params: Mapping[str, Param], field: str = "params") -> None:
    """Raise InputError for a name that cannot be part of a variable's name, and for a
    value that no environment can hold.
    """
    for name, value in params.items():
        if not _NAME.fullmatch(name):
            raise InputError(field, name, NAMES_ALLOWED)
        check_scalar(value, f"{field}.{name}")


def param_envs(params: Mapping[str, Param]) -> dict[str, str]:
    """Return the environment variables with a job's parameters."""
    if not params:
        return {}
    envs = {ENV_PARAMS: json.dumps(dict(params), sort_keys=True)}
    for name, value in params.items():
        envs[PARAM_PREFIX + name] = _text(value)
    return envs


def filled(command: str, params: Mapping[str, Param]) -> str:
    """Return `command` with each `{name}` of a parameter replaced by its value, quoted
    for the shell; other braces stay.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        return shlex.quote(_text(params[name])) if name in params else match[0]

    return _PLACEHOLDER.sub(value_of, command)


def _text(value: Param) -> str:
    return value if isinstance(value, str) else json.dumps(value)
