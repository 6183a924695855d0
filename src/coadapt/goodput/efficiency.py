"""Statistical efficiency from the gradient noise scale (Pollux, OSDI'21, §3.1)."""

from typing import overload

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Added to both sides of the quotient: smaller than any measured norm, and 0/0 (no
# gradient at all) becomes 1.
TINY = float(np.finfo(np.float64).tiny)


@overload
def efficiency(
    total: float, initial: float, grad_sqr: float, grad_var: float
) -> float: ...
@overload
def efficiency(
    total: FloatArray,
    initial: FloatArray | float,
    grad_sqr: FloatArray | float,
    grad_var: FloatArray | float,
) -> FloatArray: ...
def efficiency(
    total: FloatArray | float,
    initial: FloatArray | float,
    grad_sqr: FloatArray | float,
    grad_var: FloatArray | float,
) -> FloatArray | float:
    """Return progress per sample at batch `total`, relative to batch `initial` (Pollux
    eq. 7).

    EFF(M) = (φ + M0) / (φ + M) with φ = M0 var / sqr. It is 1 at M0, falls as M grows,
    and lies in (0, 1] for M >= M0. Batches in samples; `grad_var` is the gradient's
    variance trace at the initial batch. Scalars or arrays that broadcast together.
    """
    return efficiency_at(total / initial, grad_sqr, grad_var)


def efficiency_at(
    scale: FloatArray | float,
    grad_sqr: FloatArray | float,
    grad_var: FloatArray | float,
) -> FloatArray | float:
    """Return the same at `scale` = total / initial."""
    return (grad_var + grad_sqr + TINY) / (grad_var + grad_sqr * scale + TINY)


@overload
def gain(scale: float, grad_sqr: float, grad_var: float) -> float: ...
@overload
def gain(
    scale: FloatArray, grad_sqr: FloatArray | float, grad_var: FloatArray | float
) -> FloatArray: ...
def gain(
    scale: FloatArray | float,
    grad_sqr: FloatArray | float,
    grad_var: FloatArray | float,
) -> FloatArray | float:
    """Return AdaScale's gain r_t: progress of one step, in steps at the initial batch
    (Pollux eq. 5).

    `scale` is total / initial. For scale >= 1 the gain lies in [1, scale].
    """
    return scale * (grad_var + grad_sqr + TINY) / (grad_var + grad_sqr * scale + TINY)
