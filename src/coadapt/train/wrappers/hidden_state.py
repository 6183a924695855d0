"""The whole state of an optimiser: also what its `state_dict` leaves out."""

# An optimiser may hold another one (SAM, Lookahead, a warm-up around Adam), whose
# momentum its own `state_dict` forgets, or tensors and counts in attributes (a
# hand-written one). Such a script trains alone, and on several replicas from the start;
# a replica that joins, or a restart, would begin with another state.
#
# What `step` can use is what can be reached from the object. So the object is looked
# through:
#
# - Optimisers within it. Whether `state_dict` has their state is tried, not guessed: a
#   mark is put into their state, and looked for in what `state_dict` returns. One that
#   is left out is kept beside.
# - Tensors, and numbers that have changed since `prepare`, in attributes, lists,
#   mappings and plain objects. Numbers that have not are settings of the script, which
#   a restart may change.
# - Parameters, as keys (`{p: momentum}`) or values, are written as their places in the
#   parameter groups.
#
# torch's own optimisers keep all they have in `state` and `param_groups`: nothing is
# looked at there. What lies in the closure of a function cannot be written back: such
# an optimiser is refused.

import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coadapt.model import InputError
from coadapt.train.nested import leaves

KEY = "coadapt"
PARAMETER = "coadapt.parameter"
PAIRS = "coadapt.pairs"
# Of a torch optimiser: in its state_dict, or no state.
KNOWN = frozenset({"state", "param_groups", "defaults"})
SCALARS = (bool, int, float, complex, str, type(None))
PROBE = "coadapt.probe"
PROBE_VALUE = 0.7071234817504883
DEPTH_MAX = 6


class WholeState:
    """What one optimiser has, its own `state_dict` first. `inner`: the optimisers
    within it, by path.
    """

    def __init__(self, optimizer: Any) -> None:
        """Raises InputError where state cannot be reached."""
        self._optimizer = optimizer
        self.inner: dict[str, WholeState] = {}
        self._left_out: set[str] = set()
        self._shared: dict[str, tuple[bool, bool]] = {}
        self._settings: dict[str, object] = {}
        self._own_state_left_out = False
        self.plain = type(optimizer).__module__.startswith("torch.optim.")
        if self.plain:
            return
        for path, item in _optimizers_within(optimizer):
            self.inner[path] = WholeState(item)
            self._shared[path] = _shares(optimizer, item)
            if not _is_in_state_dict(optimizer, item):
                self._left_out.add(path)
        is_torch = isinstance(optimizer, torch.optim.Optimizer)
        self._own_state_left_out = is_torch and not _is_in_state_dict(
            optimizer, optimizer
        )
        _check_closures(optimizer, self._places())
        self._settings = self._attributes()

    def every(self) -> Iterator[object]:
        """Yield this optimiser and all within it."""
        yield self._optimizer
        for item in self.inner.values():
            yield from item.every()

    def take(self) -> dict[str, object]:
        """Return the state, in plain data and tensors that are in use."""
        state = self._optimizer.state_dict() if self._has_state_dict else {}
        if self.plain:
            return state
        own = _encoded(state, self._places())
        assert isinstance(own, dict)
        hidden = self._hidden()
        return {**own, KEY: hidden} if hidden else own

    def give(self, state: Mapping[str, object]) -> None:
        """Take over what `take` returned."""
        if self.plain:
            self._optimizer.load_state_dict(state)
            return
        parameters = _parameters(self._optimizer)
        own = {name: value for name, value in state.items() if name != KEY}
        if self._has_state_dict:
            self._optimizer.load_state_dict(_decoded(own, parameters, None))
        hidden = state.get(KEY, {})
        assert isinstance(hidden, Mapping)
        self._give_hidden(hidden)

    @property
    def _has_state_dict(self) -> bool:
        return hasattr(self._optimizer, "state_dict")

    def _places(self) -> dict[Tensor, int]:
        return {item: place for place, item in enumerate(_parameters(self._optimizer))}

    def _hidden(self) -> dict[str, object]:
        """Return what `state_dict` leaves out of this optimiser and those within it."""
        if self.plain:
            return {}
        found: dict[str, object] = {}
        attributes = {
            name: value
            for name, value in self._attributes().items()
            if _has_tensor(value) or not _alike(value, self._settings.get(name))
        }
        if attributes:
            found["attributes"] = attributes
        inner = {
            path: item.take() if path in self._left_out else item._hidden()
            for path, item in self.inner.items()
        }
        inner = {path: value for path, value in inner.items() if value}
        if inner:
            found["inner"] = inner
        return found

    def _give_hidden(self, hidden: Mapping[str, Any]) -> None:
        parameters = _parameters(self._optimizer)
        for name, value in hidden.get("attributes", {}).items():
            existing = getattr(self._optimizer, name, None)
            setattr(self._optimizer, name, _decoded(value, parameters, existing))
        for path, value in hidden.get("inner", {}).items():
            item = self.inner.get(path)
            if item is None:
                allowed = (
                    f"the optimizer that the checkpoint was made with: it had one at "
                    f".{path}"
                )
                raise InputError(
                    "prepare(optimizer)", type(self._optimizer).__name__, allowed
                )
            if path in self._left_out:
                item.give(value)
            else:
                item._give_hidden(value)
        for path, item in self.inner.items():
            _share(self._optimizer, item._optimizer, *self._shared[path])

    def _attributes(self) -> dict[str, object]:
        """Return the attributes that may be state, in plain data."""
        places = self._places()
        found = {}
        for name, value in _attributes_of(self._optimizer):
            if name in KNOWN and not (name == "state" and self._own_state_left_out):
                if isinstance(self._optimizer, torch.optim.Optimizer):
                    continue
                if name != "state":
                    continue
            encoded = _encoded(value, places)
            if encoded is not _UNKNOWN:
                found[name] = encoded
        return found


class _Unknown:
    """Stands for a value that is neither state nor holds any."""


_UNKNOWN = _Unknown()


def _parameters(optimizer: Any) -> list[Tensor]:
    return [item for group in optimizer.param_groups for item in group["params"]]


def _attributes_of(item: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object, those in slots as well, but no hooks."""
    found = dict(getattr(item, "__dict__", {}))
    for kind in type(item).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name != "__dict__" and hasattr(item, name):
                found.setdefault(name, getattr(item, name))
    return [
        (name, value)
        for name, value in found.items()
        if "_hooks" not in name and not name.startswith("__")
    ]


def _is_optimizer(value: object) -> bool:
    wanted = ("step", "state_dict", "param_groups")
    return isinstance(value, torch.optim.Optimizer) or (
        not isinstance(value, type | nn.Module)
        and all(hasattr(value, name) for name in wanted)
    )


def _is_plain_object(value: object) -> bool:
    """Return whether `value` is an object of a class that only the optimiser
    defines.
    """
    kind = type(value)
    foreign = kind.__module__.split(".")[0] in ("builtins", "torch", "types", "weakref")
    return not (foreign or callable(value) or isinstance(value, nn.Module | type))


def _optimizers_within(optimizer: Any) -> list[tuple[str, Any]]:
    """Return (path, optimiser) for the outermost ones that `optimizer` holds."""
    found: list[tuple[str, Any]] = []
    seen = {id(optimizer)}

    def look(value: object, path: str, depth: int) -> None:
        if id(value) in seen or depth > DEPTH_MAX or isinstance(value, Tensor):
            return
        seen.add(id(value))
        if _is_optimizer(value):
            found.append((path, value))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                if not isinstance(key, Tensor):
                    look(item, f"{path}.{key}", depth + 1)
        elif isinstance(value, list | tuple | deque):
            for index, item in enumerate(value):
                look(item, f"{path}.{index}", depth + 1)
        elif isinstance(value, types.MethodType):
            look(value.__self__, path, depth + 1)
        elif not isinstance(value, SCALARS) and _is_plain_object(value):
            for name, item in _attributes_of(value):
                look(item, f"{path}.{name}", depth + 1)

    for name, value in _attributes_of(optimizer):
        if name not in KNOWN:
            look(value, name, 1)
    return found


def _is_in_state_dict(outer: Any, inner: Any) -> bool:
    """Return whether the `state_dict` of `outer` has the state of `inner`: tried with a
    mark in it.
    """
    state = getattr(inner, "state", None)
    parameters = _parameters(inner)
    if not (isinstance(state, dict) and parameters and hasattr(outer, "state_dict")):
        return False
    key = parameters[0]
    had = key in state
    before = state.get(key)
    mark = torch.tensor(PROBE_VALUE, dtype=torch.float64)
    state[key] = {**(before if isinstance(before, dict) else {}), PROBE: mark}
    try:
        state_dict = outer.state_dict()
        return any(
            isinstance(leaf, Tensor) and leaf.dim() == 0 and leaf.item() == PROBE_VALUE
            for _, leaf in leaves(state_dict)
        )
    except Exception:  # noqa: BLE001  # a foreign state_dict may refuse the mark
        return False
    finally:
        if had:
            state[key] = before
        else:
            state.pop(key, None)


def _check_closures(optimizer: Any, places: Mapping[Tensor, int]) -> None:
    """Raise InputError where a function among the attributes holds a tensor or an
    optimiser.
    """
    for name, value in _attributes_of(optimizer):
        function = getattr(value, "__func__", value)
        for cell in getattr(function, "__closure__", None) or ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue  # not filled yet
            encoded = _encoded(held, places)
            known = held is optimizer or isinstance(held, nn.Module)
            if not known and (_has_tensor(encoded) or _is_optimizer(held)):
                allowed = (
                    "one that keeps its state in attributes, or in `state`: what a "
                    "function holds cannot go "
                    "over to a replica that joins, nor into a checkpoint"
                )
                kind = type(optimizer).__name__
                raise InputError(
                    "prepare(optimizer)",
                    f"{kind}, whose {name} keeps state in its closure",
                    allowed,
                )


def _encoded(value: Any, places: Mapping[Tensor, int], depth: int = 0) -> Any:
    """Return `value` in plain data, parameters by their places; _UNKNOWN where it holds
    no state.
    """
    if isinstance(value, Tensor):
        return {PARAMETER: places[value]} if value in places else value
    if isinstance(value, SCALARS):
        return value
    if depth > DEPTH_MAX or _is_optimizer(value):
        return _UNKNOWN
    if isinstance(value, Mapping):
        items = [
            (_encoded(key, places, depth + 1), _encoded(item, places, depth + 1))
            for key, item in value.items()
        ]
        items = [(key, item) for key, item in items if item is not _UNKNOWN]
        if any(isinstance(key, dict | tuple) for key, _ in items):
            return {PAIRS: [list(pair) for pair in items]}
        return {key: item for key, item in items if key is not _UNKNOWN}
    if isinstance(value, list | tuple | deque | set):
        encoded = [_encoded(item, places, depth + 1) for item in value]
        if encoded and all(item is _UNKNOWN for item in encoded):
            return _UNKNOWN
        encoded = [None if item is _UNKNOWN else item for item in encoded]
        return tuple(encoded) if isinstance(value, tuple) else encoded
    if _is_plain_object(value):
        found = {
            name: _encoded(item, places, depth + 1)
            for name, item in _attributes_of(value)
        }
        return {name: item for name, item in found.items() if item is not _UNKNOWN}
    return _UNKNOWN


def _decoded(plain: Any, parameters: list[Tensor], existing: Any) -> Any:
    """Return what `_encoded` wrote; of `existing`, containers, objects and tensors stay
    the same ones.
    """
    if isinstance(plain, Tensor):
        return _decoded_tensor(plain, parameters, existing)
    if isinstance(plain, Mapping):
        return _decoded_mapping(plain, parameters, existing)
    if isinstance(plain, list | tuple):
        olds = list(existing) if isinstance(existing, list | tuple | deque) else []
        olds += [None] * (len(plain) - len(olds))
        items = [
            _decoded(item, parameters, old)
            for item, old in zip(plain, olds, strict=False)
        ]
        if isinstance(existing, list):
            existing[:] = items
            return existing
        if isinstance(existing, deque):
            existing.clear()
            existing.extend(items)
            return existing
        if isinstance(existing, set):
            return set(items)
        return tuple(items) if isinstance(plain, tuple) else items
    return plain


def _decoded_tensor(plain: Tensor, parameters: list[Tensor], existing: Any) -> Tensor:
    own = {id(item) for item in parameters}
    fits = isinstance(existing, Tensor) and (existing.shape, existing.dtype) == (
        plain.shape,
        plain.dtype,
    )
    if fits and id(existing) not in own:
        with torch.no_grad():
            existing.copy_(plain)
        return existing  # type: ignore[no-any-return]  # a tensor, as was asked
    if plain.dim() == 0 or not parameters:
        return plain.detach().clone()
    return plain.detach().to(parameters[0].device, copy=True)


def _decoded_mapping(
    plain: Mapping[Any, Any], parameters: list[Tensor], existing: Any
) -> Any:
    if set(plain) == {PARAMETER}:
        return parameters[plain[PARAMETER]]
    pairs = plain[PAIRS] if set(plain) == {PAIRS} else plain.items()
    is_object = existing is not None and not isinstance(existing, Mapping)
    if is_object and _is_plain_object(existing):
        for name, item in pairs:
            old = getattr(existing, name, None)
            setattr(existing, name, _decoded(item, parameters, old))
        return existing
    olds = existing if isinstance(existing, dict) else {}
    items = {}
    for key, item in pairs:
        own_key = _decoded(key, parameters, None)
        items[own_key] = _decoded(item, parameters, olds.get(own_key))
    if isinstance(existing, dict):
        existing.clear()
        existing.update(items)
        return existing
    return items


def _has_tensor(plain: object) -> bool:
    return any(isinstance(leaf, Tensor) for _, leaf in leaves(plain))


def _alike(one: object, other: object) -> bool:
    """Return whether two encoded attributes without tensors are the same."""
    return repr(one) == repr(other)


def _shares(outer: Any, inner: Any) -> tuple[bool, bool]:
    """Return whether both have the same parameter groups, and the same state."""
    groups = list(zip(outer.param_groups, inner.param_groups, strict=False))
    same_groups = bool(groups) and all(one is other for one, other in groups)
    state = getattr(outer, "state", None)
    return same_groups, state is not None and state is getattr(inner, "state", None)


def _share(outer: Any, inner: Any, groups: bool, state: bool) -> None:
    """Let both have the same groups and state again, which loading has parted."""
    if groups and not all(
        one is other
        for one, other in zip(outer.param_groups, inner.param_groups, strict=True)
    ):
        inner.param_groups[:] = outer.param_groups
    if state and inner.state is not outer.state:
        inner.state = outer.state
