"""Periodic instants: the next whole multiple of a period, always later than now despite
rounding.
"""

# `(floor(now / period) + 1) * period` is not always later than `now`. A quotient of
# floats is rounded, and if k * period / period is rounded to less than k, the result is
# `now` again. A timer at that instant fires again and again, and the clock never moves
# on. So the quotient is only a first guess, and products are compared.

import math

# The quotient is off by its own rounding and by that of the product: by 1 each.
_STEPS_BACK = 2


def next_multiple(
    period_s: float, *, after: float, not_before: float = -math.inf
) -> float:
    """Return the first whole multiple of `period_s` that is > `after` and >=
    `not_before`. Seconds.

    If floats cannot represent neighbouring multiples (`after` is 2**53 periods or
    more), it is the next larger float. Raises ValueError unless `period_s` > 0 is
    finite and so is the larger of both instants.
    """
    least = max(after, not_before)
    if not (0.0 < period_s < math.inf and math.isfinite(least)):
        raise ValueError(
            f"a period > 0 and finite instants, got {period_s}, {after} and "
            f"{not_before}"
        )
    soonest = math.nextafter(after, math.inf)
    quotient = least / period_s
    if not abs(quotient) < 2.0**53:
        return max(soonest, not_before)
    index = math.floor(quotient) - _STEPS_BACK
    while index * period_s < least or index * period_s <= after:
        index += 1
    return index * period_s
