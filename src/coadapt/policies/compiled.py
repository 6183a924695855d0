"""Machine code for loops over small arrays: numba behind one typed decorator, for solver kernels only."""

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Return `function` compiled on first use and kept on disk. It must be pure arithmetic on arrays.

    Kernels that call each other belong in one file: numba renews a file's cache when that file changes.
    """
    return cast(Function, njit(cache=True, nogil=True)(function))
