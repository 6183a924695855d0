"""A quicker `__init__`, `replace` and pickle for the frozen dataclasses of which a run makes thousands."""

# Why this is here.
#
# The `__init__` of a frozen dataclass sets each field by `object.__setattr__`, which looks its name up in the
# class, and checks it, each time. A sixth of all CPU time of a simulation was spent in there. The descriptor
# of a slot sets the field as well, without a look-up: half the time (3.0 µs against 1.6 µs for a Usage).
# A pickle asks each object for its state; the dataclass looks its fields up anew each time, half of what it
# took to pickle a view. All else stays as the dataclass made it: frozen, equality, hash, `replace`, and the
# arguments with their defaults.

from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

T = TypeVar("T")


def quick_init(kind: type[T]) -> type[T]:
    """Return the frozen, slotted dataclass `kind` with an `__init__` that does the same as before, faster."""
    every = fields(kind)  # type: ignore[arg-type]  # any dataclass
    names: dict[str, Any] = {"_MISSING": MISSING}
    arguments, lines = [], []
    for index, each in enumerate(every):
        names[f"_set{index}"] = getattr(kind, each.name).__set__
        names[f"_make{index}"], names[f"_default{index}"] = each.default_factory, each.default
        made = each.default_factory is not MISSING
        default = "_MISSING" if made else f"_default{index}"
        if each.init:
            arguments.append(f"{each.name}={default}" if made or each.default is not MISSING else each.name)
            value = f"_make{index}() if {each.name} is _MISSING else {each.name}" if made else each.name
        elif made or each.default is not MISSING:
            value = f"_make{index}()" if made else default
        else:
            continue  # __post_init__ sets it
        lines.append(f"    _set{index}(self, {value})")
    if hasattr(kind, "__post_init__"):
        lines.append("    self.__post_init__()")
    only_by_name = all(each.kw_only for each in every)
    head = ", ".join(["self", *["*"] * (only_by_name and bool(arguments)), *arguments])
    exec("\n".join([f"def __init__({head}):", *(lines or ["    pass"])]), names)  # as dataclasses do
    names["_kind"] = kind
    changed = [each.name for each in every if each.init]
    takes = ", ".join(f"{name}=_MISSING" for name in changed)
    gives = ", ".join(f"{name}=self.{name} if {name} is _MISSING else {name}" for name in changed)
    exec(f"def __replace__(self, *, {takes}):\n    return _kind({gives})", names)
    told = "".join(f"self.{each.name}, " for each in every)
    exec(f"def __getstate__(self):\n    return ({told})", names)
    setting = [f"    _set{index}(self, state[{index}])" for index in range(len(every))]
    exec("\n".join(["def __setstate__(self, state):", *setting]), names)
    for name in ("__init__", "__replace__", "__getstate__", "__setstate__"):
        names[name].__qualname__, names[name].__module__ = f"{kind.__qualname__}.{name}", kind.__module__
        setattr(kind, name, names[name])
    return kind


def replace(value: T, **changes: object) -> T:
    """Return `value` with some fields changed, as `dataclasses.replace` does; `value` is of a quick class."""
    return cast("T", value.__replace__(**changes))  # type: ignore[attr-defined]  # see `quick_init`
