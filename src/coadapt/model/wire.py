"""Frozen dataclasses to JSON and back, by their type hints: one generic codec for journal, HTTP and files.

A union of dataclasses is tagged with `"type"`. Keys with a default may be missing (an older writer); an
unknown key, a wrong type or an illegal value raises InputError with the path to it.
"""

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import TypeVar

from coadapt.model.errors import InputError

WIRE_VERSION = 1

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
T = TypeVar("T")
_Decoder = Callable[[object, str], object]


def to_json(value: object) -> Json:
    """Return `value` (dataclass, enum, mapping, sequence or scalar) as plain JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _init_fields(type(value))}
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no wire form")


def from_json(kind: type[T], data: object, path: str = "") -> T:
    """Return the `kind` that `data` describes. Raises InputError (path, value, what is allowed)."""
    decode = _decoder(typing.cast("Hashable", kind))
    return typing.cast(T, decode(data, path or kind.__name__))


def dumps(value: object) -> str:
    """Return one line of versioned, tagged JSON for a dataclass value."""
    return json.dumps(
        {"wire": WIRE_VERSION, "type": type(value).__name__, "data": to_json(value)},
        separators=(",", ":"),
        allow_nan=False,
    )


def loads(kinds: Mapping[str, type[T]], text: str) -> T:
    """Return the value that `dumps` wrote; `kinds` maps the type names that are allowed here.

    Raises InputError for anything else, a newer wire version included.
    """
    try:
        envelope = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError("wire", text, f"JSON ({error.msg} at character {error.pos})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of levels
        raise InputError("wire", text, f"JSON ({error})") from None
    if not isinstance(envelope, dict) or not isinstance(version := envelope.get("wire"), int):
        raise InputError("wire", text, "an object with wire, type and data")
    if version > WIRE_VERSION:
        raise InputError("wire", version, f"a version up to {WIRE_VERSION}; upgrade coadapt to read this")
    name = str(envelope.get("type"))
    if name not in kinds:
        raise InputError("type", name, ", ".join(sorted(kinds)))
    return from_json(kinds[name], envelope.get("data"))


@cache
def _init_fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


@cache
def _decoder(kind: Hashable) -> _Decoder:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _union_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is list:
        items = _tuple_decoder((arguments[0], ...))
        return lambda data, path: list(typing.cast("tuple[object, ...]", items(data, path)))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_decoder(arguments[1])
    if isinstance(kind, type):
        if dataclasses.is_dataclass(kind):
            return _dataclass_decoder(kind)
        if issubclass(kind, enum.Enum):
            return _enum_decoder(kind)
        if kind in _SCALARS:
            return _SCALARS[kind]
    raise TypeError(f"{kind} has no wire form")


def _decode_float(data: object, path: str) -> float:
    if isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    if isinstance(data, bool) or not isinstance(data, int | float):
        raise InputError(path, data, "a number")
    try:
        return float(data)
    except OverflowError:
        raise InputError(path, data, "a number that a float can hold") from None


def _decode_int(data: object, path: str) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        raise InputError(path, data, "a whole number")
    return data


def _decode_str(data: object, path: str) -> str:
    if not isinstance(data, str):
        raise InputError(path, data, "text")
    return data


def _decode_bool(data: object, path: str) -> bool:
    if not isinstance(data, bool):
        raise InputError(path, data, "true or false")
    return data


def _decode_none(data: object, path: str) -> None:
    if data is not None:
        raise InputError(path, data, "null")


_SCALARS: dict[type, _Decoder] = {
    float: _decode_float,
    int: _decode_int,
    str: _decode_str,
    bool: _decode_bool,
    type(None): _decode_none,
}


def _union_decoder(members: tuple[object, ...]) -> _Decoder:
    some = [member for member in members if member is not type(None)]
    if len(some) != 1:
        raise TypeError(f"only `X | None` has a wire form inside a dataclass, not {members}")
    inner = _decoder(some[0])
    return lambda data, path: None if data is None else inner(data, path)


def _tuple_decoder(arguments: tuple[object, ...]) -> _Decoder:
    if len(arguments) == 2 and arguments[1] is ...:
        inner = _decoder(arguments[0])

        def decode_many(data: object, path: str) -> tuple[object, ...]:
            if not isinstance(data, list | tuple):
                raise InputError(path, data, "a list")
            return tuple(inner(item, f"{path}[{index}]") for index, item in enumerate(data))

        return decode_many
    inners = [_decoder(argument) for argument in arguments]

    def decode_fixed(data: object, path: str) -> tuple[object, ...]:
        if not isinstance(data, list | tuple) or len(data) != len(inners):
            raise InputError(path, data, f"a list of {len(inners)}")
        pairs = zip(inners, data, strict=True)
        return tuple(inner(item, f"{path}[{index}]") for index, (inner, item) in enumerate(pairs))

    return decode_fixed


def _mapping_decoder(value_kind: object) -> _Decoder:
    inner = _decoder(value_kind)

    def decode(data: object, path: str) -> dict[str, object]:
        if not isinstance(data, Mapping):
            raise InputError(path, data, "an object")
        return {str(key): inner(item, f"{path}.{key}") for key, item in data.items()}

    return decode


def _enum_decoder(kind: type[enum.Enum]) -> _Decoder:
    def decode(data: object, path: str) -> enum.Enum:
        try:
            return kind(data)
        except ValueError:
            raise InputError(path, data, ", ".join(str(member.value) for member in kind)) from None

    return decode


def _dataclass_decoder(kind: type) -> _Decoder:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    required = {
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    inners = {name: _decoder(hints[name]) for name in fields}

    def decode(data: object, path: str) -> object:
        if not isinstance(data, Mapping):
            raise InputError(path, data, f"an object with {', '.join(fields)}")
        for key in data:
            if key not in fields:
                raise InputError(f"{path}.{key}", data[key], f"only the keys {', '.join(fields)}")
        for name in sorted(required):
            if name not in data:
                raise InputError(f"{path}.{name}", None, "a value; the key is missing")
        values = {name: inners[name](data[name], f"{path}.{name}") for name in data}
        try:
            return kind(**values)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(path, data, str(error)) from None

    return decode
