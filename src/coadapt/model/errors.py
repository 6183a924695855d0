"""The one error for bad input at an edge: it names the field, the value, and what is
allowed.
"""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.util import find_spec

SHOWN_MAX = 120  # characters of a value in an error's line
WRITTEN_OUT = (
    10**100
)  # larger whole numbers are not; Python refuses from 4,300 digits on


class _Brief(reprlib.Repr):
    """Python's repr, cut short inside lists and mappings too: one that holds itself
    again and again is not written out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 10
        self.maxstring = self.maxother = SHOWN_MAX + 1

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002 - the name and form of the parent's
        return (
            f"about 1e{x.bit_length() * 0.30103:.0f}"
            if abs(x) >= WRITTEN_OUT
            else repr(x)
        )


_BRIEF = _Brief()


class InputError(ValueError):
    """Bad input from a user: a file, a flag, a request. Prints as one line; commands
    exit with 2.

    field: its place (`resources.gpus`, `workload.csv line 7, time`, `--policy`). value:
    the given value. allowed: what would be accepted.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: got {shown(value)}; allowed: {allowed}")

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, object, str]]:
        # Exceptions pickle by their text; this one has to come back whole from another
        # process.
        return InputError, (self.field, self.value, self.allowed)


def suggestion(given: object, names: Iterable[str]) -> str:
    """Return `; did you mean NAME?` for the name that is nearly `given`, else "".

    It comes behind what is allowed.
    """
    near = get_close_matches(str(given), list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def reason_of(error: Exception) -> str:
    """Return what went wrong, of an OSError without its number and the file's name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shown(value: object, limit: int = SHOWN_MAX) -> str:
    """Return a value as an error shows it, at a cost that does not grow with the
    value.
    """
    text = repr(value[: limit + 1]) if isinstance(value, str) else _BRIEF.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class MissingExtraError(ModuleNotFoundError):
    """A feature needs a package that comes with one of Coadapt's extras.

    feature: what the user asked for, as `policy gavel`. module: the package's import
    name. extra: the extra that brings it. Prints as one line; commands exit with 1.
    """

    def __init__(self, feature: str, module: str, extra: str) -> None:
        self.feature = feature
        self.extra = extra
        text = f"{feature} needs {module}: pip install 'coadapt[{extra}]'"
        super().__init__(text, name=module)

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str, str]]:
        # Exceptions pickle by their text; this one comes back whole from a process.
        return MissingExtraError, (self.feature, self.name or "", self.extra)


def require(feature: str, module: str, extra: str) -> None:
    """Raise MissingExtraError where `module`, which `extra` brings, is missing."""
    if find_spec(module) is None:
        raise MissingExtraError(feature, module, extra)


class StoreError(RuntimeError):
    """The journal cannot be read or written; the text says where, why, and what to do,
    in one line.
    """


class StoreAwayError(StoreError):
    """The journal cannot be read or written now, and may be later: nothing was lost,
    nothing was changed.
    """
