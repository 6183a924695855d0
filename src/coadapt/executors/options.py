"""Options of executors: from the text of a command line, or a settings file's value, to
what is annotated.
"""

import types
from collections.abc import Callable
from typing import Union, get_args, get_origin

from coadapt.model import InputError

# What `key=value` and YAML give; a list stands for several values.
OptionText = str | int | float | bool | list[object] | None

WORDS_OF = {
    True: frozenset({"true", "yes", "on", "1"}),
    False: frozenset({"false", "no", "off", "0"}),
}


def parse_option(field: str, given: OptionText, kind: object) -> object:
    """Return `given` as `kind`: str, int, float, bool, tuple[str, ...], or one of these
    or None.

    Raises InputError that names `field` and what is allowed.
    """
    optional = get_origin(kind) in (Union, types.UnionType)
    kinds = (
        [each for each in get_args(kind) if each is not types.NoneType]
        if optional
        else [kind]
    )
    if given is None and optional:
        return None
    parse, allowed = _PARSERS[kinds[0]]
    try:
        return parse(given)
    except ValueError:
        raise InputError(field, given, allowed) from None


def _text(given: OptionText) -> str:
    if isinstance(given, list | bool) or given is None:
        raise ValueError
    return str(given)


def _whole(given: OptionText) -> int:
    return int(_text(given))


def _number(given: OptionText) -> float:
    return float(_text(given))


def _truth(given: OptionText) -> bool:
    for truth, words in WORDS_OF.items():
        if str(given).lower() in words:
            return truth
    raise ValueError


def _names(given: OptionText) -> tuple[str, ...]:
    parts = given if isinstance(given, list) else _text(given).split(",")
    return tuple(text for part in parts if (text := str(part).strip()))


_PARSERS: dict[object, tuple[Callable[[OptionText], object], str]] = {
    str: (_text, "a text"),
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    bool: (_truth, "true or false"),
    tuple[str, ...]: (_names, "names, separated by commas"),
}
