"""The loop's own variables, kept as the run's other state is: `Run.state`."""

from collections.abc import Mapping

from torch import Tensor

from coadapt.model import InputError

ALLOWED = "numbers, text, booleans, None, tensors, and lists, tuples and dicts of them"


class LoopState:
    """Attributes that come back after a stop, and that a replica that joins takes over.

    Only names that were given to `Run.state` may be set: AttributeError for others.
    InputError for a value that a checkpoint could not hold.
    """

    _values: dict[str, object]

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {})

    def __getattr__(self, name: str) -> object:
        values: dict[str, object] = object.__getattribute__(self, "_values")
        if name.startswith("__"):  # copy and pickle ask for what no object has
            raise AttributeError(name)
        try:
            return values[name]
        except KeyError:
            raise AttributeError(
                f"the loop's state has {_names(values)}, no {name}"
            ) from None

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._values:
            raise AttributeError(
                f"the loop's state has {_names(self._values)}, no {name}"
            )
        check_plain(name, value)
        self._values[name] = value

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"LoopState({values})"

    def begin(self, values: Mapping[str, object]) -> None:
        """Keep further variables, with the values that they begin with. InputError if a
        name is taken.
        """
        for name, value in values.items():
            if (
                name in self._values
                or name.startswith("_")
                or hasattr(type(self), name)
            ):
                raise InputError("state(name)", name, "a name that is not taken")
            check_plain(name, value)
        self._values.update(values)

    def state_dict(self) -> dict[str, object]:
        return dict(self._values)

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        self._values.update(state_dict)


def check_plain(name: str, value: object) -> None:
    """Raise InputError unless a checkpoint can hold `value` without running code when
    it is loaded.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes | Tensor):
        return
    if type(value) in (list, tuple, dict):
        assert isinstance(value, list | tuple | dict)
        for item in (
            (*value.keys(), *value.values()) if isinstance(value, dict) else value
        ):
            check_plain(name, item)
        return
    raise InputError(f"state({name})", type(value).__name__, ALLOWED)


def _names(values: Mapping[str, object]) -> str:
    return ", ".join(values) or "no names"
