"""What nothing from outside may be, whichever door it comes through: limits of numbers,
texts and nesting.
"""

# The rules, and why they hold.
#
# A number that is lawful as JSON may still be one that no code behind the door can use:
# 10**400 has no float, 10**21 no C integer, infinity no sum. So a door first calls
# `check_outside`, which knows no fields and refuses numbers that no code can use. The
# limits of each field come after it, and say more. Bounds of the types alone (1.8e308,
# 2**63) let sums and products overflow behind the door; a bound per field alone is
# forgotten with the next field.
#
# Whole numbers below 1e15 are exact as a float, in JSON, and in C. Fractions may be
# larger: the squared norm of a gradient in single precision reaches 1e89 (1e12
# parameters of 3e38 each) before it is infinite.
#
# A text with a NUL cannot be an argument of a process, half of a surrogate pair cannot
# be encoded, and control characters forge lines of a log and drive terminals. Line ends
# and tabs belong to scripts.

from collections.abc import Mapping

from coadapt.model.errors import InputError

WHOLE_MAX = 10**15
FRACTION_MAX = 1e100
TEXT_MAX = 1_000_000  # characters: as many as a whole request may have
KEY_MAX = 200  # characters
NESTING_MAX = 20  # levels; a job file has 3, a report 4
VALUES_MAX = (
    100_000  # in one document, aliases of YAML counted as often as they are used
)

LINE_ENDS = frozenset("\t\n\r")
# Marks that turn the direction of writing, and so what a reader takes a name for.
TURNS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
LINE_BREAKS = frozenset("\x85\u2028\u2029")

NUMBER_ALLOWED = "a number below 1e15 in size, neither infinite nor NaN"
TEXT_ALLOWED = "text without control characters or halves of surrogate pairs"
LABEL_ALLOWED = "text in one line, without control characters"


def check_outside(value: object, field: str = "") -> None:
    """Raise InputError if plain data (of JSON or YAML) holds what no field may hold.

    The error's field is the place inside `field`, as in `batch.initial`.
    """
    left = VALUES_MAX
    waiting: list[tuple[object, str, int]] = [(value, field, 0)]
    while waiting:
        item, path, level = waiting.pop()
        left -= 1
        if level > NESTING_MAX or left < 0:
            allowed = f"at most {VALUES_MAX} values in at most {NESTING_MAX} levels"
            raise InputError(path[:100] or "body", "…", allowed)
        if isinstance(item, Mapping):
            for key, inner in item.items():
                _check_key(key, path)
                waiting.append(
                    (inner, f"{path}.{key}" if path else str(key), level + 1)
                )
        elif isinstance(item, list | tuple):
            waiting.extend(
                (inner, f"{path}[{index}]", level + 1)
                for index, inner in enumerate(item)
            )
        else:
            check_scalar(item, path or "body")


def _check_key(key: object, path: str) -> None:
    field = f"{path}, a key" if path else "a key"
    if not isinstance(key, str) or len(key) > KEY_MAX or not is_label(key):
        raise InputError(
            field, key, f"{LABEL_ALLOWED}, of at most {KEY_MAX} characters"
        )


def check_scalar(value: object, field: str) -> None:
    """Raise InputError for a number or text that no field may hold."""
    if isinstance(value, str):
        if len(value) > TEXT_MAX or not is_clean(value):
            raise InputError(field, value, TEXT_ALLOWED)
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        if abs(value) >= WHOLE_MAX:
            raise InputError(field, value, NUMBER_ALLOWED)
    elif isinstance(value, float) and not abs(value) < FRACTION_MAX:
        raise InputError(field, value, NUMBER_ALLOWED)


def is_clean(text: str) -> bool:
    """Return whether a text of several lines holds nothing but what is meant to be
    read.
    """
    return text.isprintable() or not any(_is_control(character) for character in text)


def is_label(text: str) -> bool:
    """Return whether a text may stand in a line among others, such as a job's name."""
    if text.isascii() and text.isprintable():  # as nearly all are
        return True
    return is_clean(text) and not any(
        character in LINE_ENDS or character in TURNS for character in text
    )


def printable(text: str) -> str:
    """Return `text` with its control characters written out, as `\\x1b`: so it cannot
    drive a terminal.

    Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(_written_out(character) for character in text)


def _written_out(character: str) -> str:
    if character in "\t\n" or not (
        _is_control(character) or character in TURNS or character == "\r"
    ):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _is_control(character: str) -> bool:
    code = ord(character)
    if code < 0x20:
        return character not in LINE_ENDS
    return 0x7F <= code <= 0x9F or 0xD800 <= code <= 0xDFFF or character in LINE_BREAKS
