"""How sure a ratio of two averages is, of which the denominator may be close to
zero.
"""

import math


def fieller(
    sqr: float, trace: float, errors: tuple[float, float, float]
) -> tuple[float, float]:
    """Return the interval of trace / sqr: all φ for which trace - φ sqr is within its
    own error of zero.

    errors: variances of `sqr` and `trace` and their covariance, times the square of the
    quantile (Fieller 1954). The upper end is infinite as long as `sqr` does not differ
    significantly from zero.
    """
    a = sqr**2 - errors[0]
    b = sqr * trace - errors[2]
    c = trace**2 - errors[1]
    root = math.sqrt(max(b * b - a * c, 0.0))
    low = c / (b + root) if c > 0.0 else 0.0
    return low, (b + root) / a if a > 0.0 else math.inf
