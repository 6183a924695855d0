"""Machine code for loops over small arrays: numba behind one typed decorator, for
kernels only.
"""

# Where numba is missing, kernels run as the plain Python that they are: with the same
# results, a hundred times as slowly. Where no folder can be written to, neither the
# installed one nor the user's cache (numba tries both), they are compiled again in each
# process.
#
# A compiled function is optimised again inside of each compiled caller, and of the
# caller's callers. So the outermost functions of a file, which only call others in
# turn, are better left to Python.
#
# What makes no array needs none of numba's counting of references, which is a fifth of
# what is compiled: lean functions get their scratch space from the caller. Numba takes
# a tuple of arrays apart at each call, into some eight values per array, so few arrays
# are compiled faster than many. And a plain number as an argument makes it compile the
# function again for that number; one of numpy's type does not.

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pickle import UnpicklingError
from typing import Any, TypeVar, cast

import numpy as np

try:
    _njit: Any = import_module("numba").njit
except ImportError:
    _njit = None

Function = TypeVar("Function", bound=Callable[..., object])

HAS_COMPILER = _njit is not None
UNREADABLE = AttributeError, ImportError, EOFError, UnpicklingError


@contextmanager
def when_compiling(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` once, as soon as a kernel is compiled within the block.

    A kernel from the cache is not compiled. Without numba no kernel is.
    """
    if not HAS_COMPILER:
        yield
        return
    event = import_module("numba.core.event")
    notified = False

    class Listener(event.Listener):  # type: ignore[misc, name-defined]  # of numba
        def on_start(self, _event: object) -> None:
            nonlocal notified
            if not notified:
                notified = True
                notify()

        def on_end(self, _event: object) -> None:
            """Do nothing."""

    with event.install_listener("numba:compile", Listener()):
        yield


def variable(value: int) -> int:
    """Return `value` as a number that does not make numba compile functions again."""
    return cast(int, np.int64(value))


def compiled(function: Function) -> Function:
    """Return `function` compiled on first use and kept on disk. It must be pure
    arithmetic on arrays.

    Division by zero gives inf or nan as in numpy, it raises nothing. Kernels that call
    each other belong in one file: numba renews a file's cache when that file changes.
    """
    return _compiled(function)


def compiled_part(function: Function) -> Function:
    """Return `function`, compiled for calls by compiled functions only, which takes a
    quarter less time to compile.
    """
    return _compiled(function, no_cpython_wrapper=True)


def compiled_lean(function: Function) -> Function:
    """Return `function` as `compiled` does, where it and what it calls make no array: a
    fifth less.
    """
    return _compiled(function, _nrt=False)


def lean_part(function: Function) -> Function:
    """Return `function` as `compiled_part` does, where it and what it calls make no
    array.
    """
    return _compiled(function, no_cpython_wrapper=True, _nrt=False)


def _compiled(function: Function, **options: bool) -> Function:
    if _njit is None:
        return function
    # No caller needs a C function around each kernel.
    given: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cfunc_wrapper": True,
        **options,
    }
    try:
        kept = _njit(cache=True, **given)(function)
    except RuntimeError:  # no folder to keep it in
        return cast(Function, _njit(**given)(function))
    _begin_anew_if_unreadable(getattr(kept, "_cache", None))
    return cast(Function, kept)


def _begin_anew_if_unreadable(cache: Any) -> None:
    """Replace a cache that cannot be read, where numba would raise.

    It names the classes of arguments. Where one of them has another name in this
    version of Coadapt, what an earlier one kept (pip leaves it there) cannot be read,
    not even to see that it is of other code.
    """
    load = getattr(cache, "load_overload", None)
    if load is None:  # another numba
        return

    def load_overload(signature: object, context: object) -> object:
        try:
            return load(signature, context)
        except UNREADABLE:
            try:
                cache.flush()
            except OSError:  # others may write there
                cache.disable()
            return None

    cache.load_overload = load_overload
