"""Floor 4: executors, which turn orders into processes. One folder or file, one row in
EXECUTORS, one page.

Third parties register theirs under the entry point group `coadapt.executors`, or name
it `module:function`.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence

from coadapt.executors.host import Connect, Host
from coadapt.executors.options import OptionText, parse_option
from coadapt.model import InputError
from coadapt.model.errors import suggestion
from coadapt.model.offer import Offer

# Name -> a function that takes the executor's options, each with a default, checks them
# and what it needs (a driver, a cluster's address), raises InputError, and changes
# nothing; it returns a Connect, which is called once the scheduler has its state
# directory for itself. Modules are imported only when they are asked for.
EXECUTORS: dict[str, str] = {
    "local": "coadapt.executors.local:local",
    "ray": "coadapt.executors.ray:on_ray",
    "slurm": "coadapt.executors.slurm:on_slurm",
    "kubernetes": "coadapt.executors.kubernetes:OnKubernetes",
}
ENTRY_POINT_GROUP = "coadapt.executors"
# The keyword argument of an engine that can buy nodes: it is no option of a user.
OFFERS = "offers"

__all__ = [
    "ENTRY_POINT_GROUP",
    "EXECUTORS",
    "Connect",
    "Host",
    "executor_names",
    "executor_options",
    "prepare_executor",
    "summary",
]


def executor_names() -> tuple[str, ...]:
    """Return the names that `--executor` accepts: built-in ones in the order of the
    table, then installed ones.
    """
    return (*EXECUTORS, *sorted(_installed().keys() - EXECUTORS.keys()))


def executor_options(name: str) -> dict[str, object]:
    """Return the options of executor `name` with their defaults. Raises InputError as
    prepare_executor.
    """
    return {
        option.name: option.default
        for option in _parameters(_find(name))
        if option.name != OFFERS
    }


def summary(name: str) -> str:
    """Return a description of an executor, in one line."""
    first, _, _ = (inspect.getdoc(_find(name)) or "").partition("\n\n")
    return " ".join(first.split())


def prepare_executor(
    name: str, options: Mapping[str, OptionText], offers: Sequence[Offer] = ()
) -> Connect:
    """Return a function that creates executor `name` with `options`.

    options: values as text, or as plain values of a file. offers: nodes that the
    executor can buy. Raises InputError if the name, an option or its value is not
    allowed, if something that the executor needs is missing, or if it cannot buy such
    nodes.
    """
    factory = _find(name)
    known = {option.name: option for option in _parameters(factory)}
    buys = known.pop(OFFERS, None) is not None
    if offers and not buys:
        able = [each for each in EXECUTORS if _buys(each)]
        allowed = f"an engine that buys nodes ({', '.join(able)}), not {name}"
        raise InputError("--offer", ", ".join(each.id for each in offers), allowed)
    values: dict[str, object] = {OFFERS: tuple(offers)} if offers else {}
    for option, given in options.items():
        field = f"executor {name}, option {option}"
        if option not in known:
            allowed = (
                ", ".join(f"{key}={each.default!r}" for key, each in known.items())
                or "no options"
            )
            raise InputError(field, given, allowed + suggestion(option, known))
        values[option] = parse_option(field, given, known[option].annotation)
    return factory(**values)


def _parameters(factory: Callable[..., Connect]) -> list[inspect.Parameter]:
    return list(inspect.signature(factory, eval_str=True).parameters.values())


def _buys(name: str) -> bool:
    return any(option.name == OFFERS for option in _parameters(_find(name)))


def _installed() -> dict[str, str]:
    # Imported here: each launcher of a job imports this package too, and has no use for
    # it.
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _find(name: str) -> Callable[..., Connect]:
    reference = (
        name if ":" in name else EXECUTORS.get(name) or _installed().get(name, "")
    )
    module_name, colon, function = reference.partition(":")
    if not (colon and module_name and function):
        names = executor_names()
        allowed = f"{', '.join(names)}, or module:function{suggestion(name, names)}"
        raise InputError("--executor", name, allowed)
    try:
        found = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise InputError(
            "--executor", name, f"a function that can be imported ({error})"
        ) from error
    if not callable(found):
        raise InputError(
            "--executor",
            name,
            "a function that takes options and returns a Connect function",
        )
    factory: Callable[..., Connect] = found
    return factory
