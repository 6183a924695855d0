"""What a user writes to choose policies: `gavel(objective=ftf)`, several of them with
commas between.
"""

import ast
import math
from collections.abc import Mapping
from enum import Enum

from coadapt.model import InputError
from coadapt.model.errors import suggestion

WORDS = {"true": True, "false": False, "none": None}
ALLOWED = "NAME or NAME(option=value, ...), such as tiresias(promote_knob=8)"


def split_choices(text: str) -> list[str]:
    """Return the policies of a list with commas; those inside of brackets separate
    options.

    Raises InputError for brackets that do not close, an empty list and a policy that
    appears twice.
    """
    choices = [""]
    depth = 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            choices.append("")
        else:
            choices[-1] += letter
    choices = [choice.strip() for choice in choices if choice.strip()]
    if depth or not choices or len(set(choices)) < len(choices):
        raise InputError(
            "--policy",
            text,
            f"policies, each once, separated by commas; each {ALLOWED}",
        )
    return choices


def parse_choice(text: str) -> tuple[str, dict[str, object]]:
    """Return the name and the options of `NAME(option=value, ...)`; the options' names
    are not looked at.

    A value is a number, true, false, none, a list of them in brackets, or a word.
    Raises InputError.
    """
    name, bracket, inside = text.partition("(")
    if not bracket:
        return text, {}
    try:
        call = ast.parse(f"_({inside}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise InputError("policy", text, ALLOWED) from None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Name)
        or call.args
    ):
        raise InputError("policy", text, ALLOWED)
    options: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in options:
            raise InputError("policy", text, ALLOWED)
        options[keyword.arg] = _value(f"_({inside}", keyword)
    return name.strip(), options


def _value(source: str, keyword: ast.keyword) -> object:
    """Return a literal as it is; any other text, such as `max-min`, as the word that it
    is.
    """
    try:
        return ast.literal_eval(keyword.value)
    except ValueError:
        word = (ast.get_source_segment(source, keyword.value) or "").strip()
    if not all(letter.isalnum() or letter in "._-+" for letter in word):
        raise InputError(
            f"policy, option {keyword.arg}",
            word,
            "a number, a word, or several in brackets",
        )
    return WORDS.get(word.lower(), word)


def fit_options(
    policy: str, options: Mapping[str, object], defaults: Mapping[str, object]
) -> dict[str, object]:
    """Return `options`, each of the kind of its default: a word becomes a member of an
    enumeration, a list a tuple; a whole number stands for a fraction too. An option
    whose default is None takes any value.

    Raises InputError for an option that `defaults` does not name, and for a value of
    another kind.
    """
    fitted = {}
    for option, value in options.items():
        field = f"policy {policy}, option {option}"
        if option not in defaults:
            known = (
                ", ".join(f"{key}={default!r}" for key, default in defaults.items())
                or "no options"
            )
            raise InputError(field, value, known + suggestion(option, defaults))
        fitted[option] = _fit(field, value, defaults[option])
    return fitted


def _fit(field: str, value: object, default: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(field, value, "a finite number")
    if isinstance(default, Enum):
        members = type(default)
        if value not in {member.value for member in members}:
            raise InputError(
                field, value, ", ".join(str(member.value) for member in members)
            )
        return members(value)
    if isinstance(value, list):
        value = tuple(value)
    whole_for_float = type(default) is float and type(value) is int
    if default is None or type(value) is type(default) or whole_for_float:
        return value
    raise InputError(field, value, f"a value such as {default!r}")
