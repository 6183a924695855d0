"""Machine code for loops over small arrays: numba behind one typed decorator, for kernels only."""

# Where numba is missing, kernels run as the plain Python that they are: with the same results, a hundred
# times as slowly. Where no folder can be written to, neither the installed one nor the user's cache (numba
# tries both), they are compiled anew in each process.
#
# A compiled function is optimised again inside of each compiled caller, and of the caller's callers. So the
# outermost functions of a file, which only call others in turn, are better left to Python.

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

try:
    _njit: Any = import_module("numba").njit
except ImportError:
    _njit = None

Function = TypeVar("Function", bound=Callable[..., object])

HAS_COMPILER = _njit is not None


def compiled(function: Function) -> Function:
    """Return `function` compiled on first use and kept on disk. It must be pure arithmetic on arrays.

    Division by zero gives inf or nan as in numpy, it raises nothing. Kernels that call each other belong in
    one file: numba renews a file's cache when that file changes.
    """
    return _compiled(function, called_from_python=True)


def compiled_part(function: Function) -> Function:
    """Return `function` likewise, where only compiled ones call it: a quarter of the compiling less."""
    return _compiled(function, called_from_python=False)


def _compiled(function: Function, called_from_python: bool) -> Function:
    if _njit is None:
        return function
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    if not called_from_python:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    try:
        return cast(Function, _njit(cache=True, **options)(function))
    except RuntimeError:  # no folder to keep it in
        return cast(Function, _njit(**options)(function))
