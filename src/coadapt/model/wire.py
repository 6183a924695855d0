"""Frozen dataclasses to JSON and back, by their type hints: one generic codec for
journal, HTTP and files.

A union of dataclasses is tagged with `"type"`. Keys with a default may be missing (an
older writer): the value is then what the class has under that name in WIRE_MISSING,
else the default. Keys of an older name are read by WIRE_RENAMED of the class (old name
to new). An unknown key, a wrong type or an illegal value raises InputError with the
path to it.
"""

# Why it is written so.
#
# A journal of 1,000,000 events is read back in half a minute, and a snapshot of 10,000
# jobs in less than two seconds, so what is done per value is little. A decoder and an
# encoder are made once per type. A value that is right as it stands (a float where a
# float is due) is not looked at one by one: which values of an object are is remembered
# by its shape, its keys and the types of their values. And the path to a value is put
# together on the way out of an error, from its end: the path to a valid value is not
# needed.
#
# The encoder of Python's library is one call into C, which lets no other thread run:
# for the state of 10,000 jobs it made readers wait for 0.4 s. Such large values are
# written in pieces.

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache, lru_cache, partial
from typing import TypeVar

from coadapt.model.errors import InputError, suggestion

WIRE_VERSION = 1

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")
_Decode = Callable[[typing.Any], object]
_Encode = Callable[[typing.Any], Json]

# Of each type: which fields are there, and which of them are null. A journal knows a
# handful.
SHAPES_MAX = 256

# Entries of a mapping that are written in one go: half a millisecond's work where they
# are jobs.
ENTRIES_BETWEEN = 10

# One line: keys in order of their fields, nothing between. Text outside ASCII is
# escaped.
_READER = json.JSONDecoder()
_WRITER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class _MisfitError(Exception):
    """A value that does not fit. steps: where it stands, from the inside out (`.grad`,
    `[3]`).
    """

    def __init__(self, value: object, allowed: str, *steps: str) -> None:
        super().__init__()
        self.value = value
        self.allowed = allowed
        self.steps = list(steps)


class _Decoder(typing.NamedTuple):
    """How a type is read: values of the types `plain` stand for themselves, others go
    through `decode`.
    """

    decode: _Decode
    plain: frozenset[type] = frozenset()


def to_json(value: object) -> Json:
    """Return `value` (dataclass, enum, mapping, sequence or scalar) as plain JSON
    data.
    """
    return _ENCODE[type(value)](value)


def from_json(kind: type[T], data: object, path: str = "") -> T:
    """Return the `kind` that `data` describes. Raises InputError (path, value, what is
    allowed).
    """
    decoder = _decoder(typing.cast("Hashable", kind))
    try:
        return typing.cast(T, decoder.decode(data))
    except _MisfitError as misfit:
        where = (path or kind.__name__) + "".join(reversed(misfit.steps))
        raise InputError(where, misfit.value, misfit.allowed) from None


def dumps(value: object) -> str:
    """Return one line of versioned, tagged JSON for a dataclass value."""
    return _WRITER.encode(
        {"wire": WIRE_VERSION, "type": type(value).__name__, "data": to_json(value)}
    )


def dumps_in_pieces(value: object, between: Callable[[], None] = lambda: None) -> str:
    """Return what `dumps` does, entry by entry of each mapping, so that other threads
    run meanwhile.

    between: called now and then.
    """
    kind = _WRITER.encode(type(value).__name__)
    return (
        f'{{"wire":{WIRE_VERSION},"type":{kind},"data":{_in_pieces(value, between)}}}'
    )


def _in_pieces(value: object, between: Callable[[], None]) -> str:
    encode = _WRITER.encode
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        parts = [
            f'"{name}":{_in_pieces(getattr(value, name), between)}' for name in names
        ]
    elif isinstance(value, Mapping):
        parts = []
        for key, item in value.items():
            parts.append(f"{encode(str(key))}:{encode(to_json(item))}")
            if not len(parts) % ENTRIES_BETWEEN:
                between()
    else:
        return encode(to_json(value))
    return f"{{{','.join(parts)}}}"


def loads(kinds: Mapping[str, type[T]], text: str) -> T:
    """Return the value that `dumps` wrote; `kinds` maps the type names that are allowed
    here.

    Raises InputError for anything else, a newer wire version included.
    """
    try:
        text = text.strip(" \t\r\n")
        envelope, end = _READER.raw_decode(text)
        if end != len(text):
            envelope = json.loads(text)  # which says what is one too many
    except json.JSONDecodeError as error:
        raise InputError(
            "wire", text, f"JSON ({error.msg} at character {error.pos})"
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of thousands of digits, thousands of levels
        raise InputError("wire", text, f"JSON ({error})") from None
    if not isinstance(envelope, dict) or not isinstance(
        version := envelope.get("wire"), int
    ):
        raise InputError("wire", text, "an object with wire, type and data")
    if version > WIRE_VERSION:
        raise InputError(
            "wire",
            version,
            f"a version up to {WIRE_VERSION}; upgrade coadapt to read this",
        )
    name = str(envelope.get("type"))
    if name not in kinds:
        raise InputError("type", name, ", ".join(sorted(kinds)))
    return from_json(kinds[name], envelope.get("data"))


def _encoder(kind: type) -> _Encode:
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind) if field.init)
        return lambda value: {
            name: _ENCODE[type(item := getattr(value, name))](item) for name in names
        }
    if issubclass(kind, enum.Enum):
        return lambda value: to_json(value.value)
    if issubclass(kind, float):
        return lambda value: value if math.isfinite(value) else repr(value)
    if issubclass(kind, bool | int | str | types.NoneType):
        return lambda value: value
    if issubclass(kind, Mapping):
        return lambda value: {
            str(key): _ENCODE[type(item)](item) for key, item in value.items()
        }
    if issubclass(kind, list | tuple):
        return lambda value: [_ENCODE[type(item)](item) for item in value]
    raise TypeError(f"{kind.__name__} has no wire form")


class _Encoders(dict[type, _Encode]):
    """The encoders of the types that came by so far."""

    def __missing__(self, kind: type) -> _Encode:
        self[kind] = _encoder(kind)
        return self[kind]


_ENCODE = _Encoders()


@cache
def _decoder(kind: Hashable) -> _Decoder:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _union_decoder(arguments)
    if origin is tuple:
        return _Decoder(_tuple_decode(arguments))
    if origin is list:
        items = _tuple_decode((arguments[0], ...))
        return _Decoder(
            lambda data: list(typing.cast("tuple[object, ...]", items(data)))
        )
    if origin is not None and issubclass(origin, Mapping):
        return _Decoder(partial(_decode_mapping, _decoder(arguments[1])))
    if isinstance(kind, type):
        if dataclasses.is_dataclass(kind):
            return _Decoder(_dataclass_decode(kind))
        if issubclass(kind, enum.Enum):
            return _Decoder(_enum_decode(kind))
        if kind in _SCALARS:
            return _Decoder(_SCALARS[kind], frozenset({kind}))
    raise TypeError(f"{kind} has no wire form")


def _decode_float(data: object) -> float:
    if isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise _MisfitError(data, "a number")
    try:
        return float(data)
    except OverflowError:
        raise _MisfitError(data, "a number that a float can hold") from None


def _decode_int(data: object) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        raise _MisfitError(data, "a whole number")
    return data


def _decode_str(data: object) -> str:
    if not isinstance(data, str):
        raise _MisfitError(data, "text")
    return data


def _decode_bool(data: object) -> bool:
    if not isinstance(data, bool):
        raise _MisfitError(data, "true or false")
    return data


def _decode_none(data: object) -> None:
    if data is not None:
        raise _MisfitError(data, "null")


_SCALARS: dict[type, _Decode] = {
    float: _decode_float,
    int: _decode_int,
    str: _decode_str,
    bool: _decode_bool,
    type(None): _decode_none,
}


def _union_decoder(members: tuple[object, ...]) -> _Decoder:
    some = [member for member in members if member is not type(None)]
    if len(some) != 1:
        raise TypeError(
            f"only `X | None` has a wire form inside a dataclass, not {members}"
        )
    inner = _decoder(some[0])
    decode = inner.decode
    return _Decoder(
        lambda data: None if data is None else decode(data), inner.plain | {type(None)}
    )


def _tuple_decode(arguments: tuple[object, ...]) -> _Decode:
    if len(arguments) == 2 and arguments[1] is ...:
        return partial(_decode_many, _decoder(arguments[0]))
    return partial(_decode_fixed, tuple(_decoder(argument) for argument in arguments))


def _decode_many(inner: _Decoder, data: object) -> tuple[object, ...]:
    if not isinstance(data, list | tuple):
        raise _MisfitError(data, "a list")
    if not data:
        return ()
    return _decode_items((inner,) * len(data), data)


def _decode_fixed(inners: tuple[_Decoder, ...], data: object) -> tuple[object, ...]:
    if not isinstance(data, list | tuple) or len(data) != len(inners):
        raise _MisfitError(data, f"a list of {len(inners)}")
    return _decode_items(inners, data)


def _decode_items(
    inners: tuple[_Decoder, ...], data: "list[object] | tuple[object, ...]"
) -> tuple[object, ...]:
    found: list[object] = []
    try:
        for inner, item in zip(inners, data, strict=True):
            found.append(item if type(item) in inner.plain else inner.decode(item))
    except _MisfitError as misfit:
        misfit.steps.append(f"[{len(found)}]")
        raise
    return tuple(found)


def _decode_mapping(inner: _Decoder, data: object) -> dict[str, object]:
    if not isinstance(data, Mapping):
        raise _MisfitError(data, "an object")
    found: dict[str, object] = {}
    key: object = ""
    try:
        for key, item in data.items():
            found[str(key)] = item if type(item) in inner.plain else inner.decode(item)
    except _MisfitError as misfit:
        misfit.steps.append(f".{key}")
        raise
    return found


def _enum_decode(kind: type[enum.Enum]) -> _Decode:
    def decode(data: object) -> enum.Enum:
        try:
            return kind(data)
        except ValueError:
            raise _MisfitError(
                data, ", ".join(str(member.value) for member in kind)
            ) from None

    return decode


def _dataclass_decode(kind: type) -> _Decode:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    inners = {name: _decoder(hints[name]) for name in fields}
    of_older: Mapping[str, object] = getattr(kind, "WIRE_MISSING", {})
    renamed: Mapping[str, str] = getattr(kind, "WIRE_RENAMED", {})
    required = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    }

    @lru_cache(maxsize=SHAPES_MAX)
    def to_decode(
        keys: tuple[str, ...], kinds: tuple[type, ...]
    ) -> tuple[str, ...] | None:
        # Which values of these types do not stand for themselves; None if these are not
        # all the keys.
        if not required <= set(keys) <= fields.keys():
            return None
        return tuple(
            name
            for name, each in zip(keys, kinds, strict=True)
            if each not in inners[name].plain
        )

    def decode(data: object) -> object:
        if not isinstance(data, dict):
            data = _checked_keys(data, list(fields), required)
        if not renamed.keys().isdisjoint(data):
            data = {renamed.get(name, name): value for name, value in data.items()}
        names = to_decode(tuple(data), tuple(map(type, data.values())))
        if names is None:
            names = tuple(_checked_keys(data, list(fields), required))
        values = data
        if names or of_older:
            values = {**of_older, **data}
            name = ""
            try:
                for name in names:
                    values[name] = inners[name].decode(data[name])
            except _MisfitError as misfit:
                misfit.steps.append(f".{name}")
                raise
        try:
            return kind(**values)
        except InputError:
            raise
        except ValueError as error:
            raise _MisfitError(data, str(error)) from None

    return decode


def _checked_keys(
    data: object, fields: list[str], required: set[str]
) -> Mapping[str, object]:
    """Return `data` if it is an object of these fields, and with all that are
    required.
    """
    if not isinstance(data, Mapping):
        raise _MisfitError(data, f"an object with {', '.join(fields)}")
    for key in data:
        if key not in fields:
            allowed = f"only the keys {', '.join(fields)}{suggestion(key, fields)}"
            raise _MisfitError(data[key], allowed, f".{key}")
    for name in sorted(required):
        if name not in data:
            raise _MisfitError(None, "a value; the key is missing", f".{name}")
    return data
