"""Sizers: how many nodes the cluster has. One rule, one file, one row in SIZERS.

Third parties register theirs under the entry point group `coadapt.sizers`, or name it
`module:Class`.
"""

import importlib
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points

from coadapt.model import InputError
from coadapt.model.errors import suggestion
from coadapt.policies.choice import fit_options, parse_choice
from coadapt.policies.option_texts import option_texts
from coadapt.policies.sizers.base import Sizer, SizerCard

SIZERS: dict[str, str] = {
    "fixed": "coadapt.policies.sizers.fixed:Fixed",
    "demand": "coadapt.policies.sizers.demand:Demand",
    "throughput": "coadapt.policies.sizers.throughput:Throughput",
    "pollux-job": "coadapt.policies.sizers.pollux_job:PolluxJob",
    "pollux-utility": "coadapt.policies.sizers.pollux_utility:PolluxUtility",
    "uniform-progress": "coadapt.policies.sizers.uniform_progress:UniformProgress",
    "castor": "coadapt.policies.sizers.castor:CastorSizer",
}
ENTRY_POINT_GROUP = "coadapt.sizers"

__all__ = [
    "ENTRY_POINT_GROUP",
    "SIZERS",
    "Sizer",
    "SizerCard",
    "create_sizer",
    "sizer_card",
    "sizer_names",
    "sizer_option_texts",
    "sizer_options",
]


def sizer_names() -> tuple[str, ...]:
    """Return the names that `create_sizer` accepts: built-in ones, then
    installed ones.
    """
    installed = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
    return (*SIZERS, *sorted(installed - set(SIZERS)))


def sizer_card(name: str) -> SizerCard:
    """Return the card of sizer `name`. Raises InputError as create_sizer."""
    found = _find(parse_choice(name)[0])
    return getattr(found, "card", SizerCard(source="", decides=""))


def sizer_options(name: str) -> dict[str, object]:
    """Return the options of sizer `name`: the values that `name` sets, else the
    defaults.

    Raises InputError as create_sizer.
    """
    name, options = parse_choice(name)
    parameters = inspect.signature(_find(name)).parameters.values()
    defaults = {option.name: option.default for option in parameters}
    return {**defaults, **fit_options(name, options, defaults)}


def sizer_option_texts(name: str) -> dict[str, str]:
    """Return the description of each option of sizer `name`. Raises InputError as
    create_sizer.
    """
    return option_texts(_find(parse_choice(name)[0]), sizer_options(name))


def create_sizer(name: str, **options: object) -> Sizer:
    """Return a new sizer.

    name: a registered name or `module:Class`, with options in brackets,
    `castor(value_of_time=2)`; `options` replace those. Raises InputError where the
    name, an option's name or an option's value is not allowed.
    """
    name, named = parse_choice(name)
    factory = _find(name)
    options = fit_options(name, {**named, **options}, sizer_options(name))
    try:
        return factory(**options)
    except ValueError as error:
        raise InputError(f"sizer {name}", options, str(error)) from error


def _find(name: str) -> Callable[..., Sizer]:
    reference = name if ":" in name else SIZERS.get(name) or _installed(name) or name
    module_name, colon, class_name = reference.partition(":")
    if not (colon and module_name and class_name):
        names = sizer_names()
        allowed = f"{', '.join(names)}, or module:Class{suggestion(name, names)}"
        raise InputError("sizer", name, allowed)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        allowed = f"a class that can be imported ({error})"
        raise InputError("sizer", name, allowed) from error
    if not callable(getattr(found, "size", None)):
        raise InputError("sizer", name, "a class with a method size(view) -> Sizing")
    factory: Callable[..., Sizer] = found
    return factory


def _installed(name: str) -> str | None:
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    return next((entry.value for entry in found), None)
