"""Floor 2: scheduling policies. One paper, one file, one row in POLICIES; nothing heavy is imported here.

Third parties register theirs under the entry point group `coadapt.policies`, or name it `module:Class`.
"""

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from coadapt.model import InputError
from coadapt.policies.base import Policy

POLICIES: dict[str, str] = {
    "fifo": "coadapt.policies.fifo:Fifo",
    "srtf": "coadapt.policies.srtf:Srtf",
    "tiresias": "coadapt.policies.tiresias:Tiresias",
    "optimus": "coadapt.policies.optimus:Optimus",
    "pollux": "coadapt.policies.pollux:Pollux",
    "pollux-genetic": "coadapt.policies.pollux_genetic:PolluxGenetic",
}
ENTRY_POINT_GROUP = "coadapt.policies"

__all__ = ["ENTRY_POINT_GROUP", "POLICIES", "Policy", "create_policy", "policy_names", "policy_options"]


def policy_names() -> tuple[str, ...]:
    """Return the names that `create_policy` knows: our own in the order of the table, then installed ones."""
    installed = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return (*POLICIES, *sorted(installed - set(POLICIES)))


def policy_options(name: str) -> dict[str, object]:
    """Return the keyword options of policy `name` with their defaults. Raises InputError as create_policy."""
    parameters = inspect.signature(_find(name)).parameters.values()
    return {option.name: option.default for option in parameters}


def create_policy(name: str, **options: object) -> Policy:
    """Return a new policy. `name` is a registered name or a reference `module:Class`.

    Raises InputError where the name, an option's name or an option's value is not allowed.
    """
    factory = _find(name)
    known = policy_options(name)
    for option, value in options.items():
        if option not in known:
            allowed = ", ".join(f"{key}={default!r}" for key, default in known.items()) or "no options"
            raise InputError(f"policy {name}, option {option}", value, allowed)
    try:
        return factory(**options)
    except ValueError as error:
        raise InputError(f"policy {name}", options, str(error)) from error


def _find(name: str) -> Callable[..., Policy]:
    reference = name if ":" in name else POLICIES.get(name) or _installed(name) or name
    module_name, colon, class_name = reference.partition(":")
    if not (colon and module_name and class_name):
        raise InputError("policy", name, f"{', '.join(policy_names())}, or module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InputError("policy", name, f"a class that can be imported ({error})") from error
    if not callable(getattr(found, "allocate", None)):
        raise InputError("policy", name, "a class with a method allocate(view) -> Plan")
    factory: Callable[..., Policy] = found
    return factory


def _installed(name: str) -> str | None:
    return next((entry.value for entry in entry_points(group=ENTRY_POINT_GROUP, name=name)), None)
