"""The instants of a period: the next whole multiple of it, which is later than now
whatever the digits are.
"""

# `(floor(now / period) + 1) * period` is not always later than `now`: a quotient of
# floats rounds, and where k * period / period comes out below k, the result is `now`
# again. A timer that is set so fires in the same instant for ever, and the clock
# stands. So the quotient only says where to begin, and the products are compared.

import math

# The quotient is off by its own rounding and by that of the product: by 1 each.
_STEPS_BACK = 2


def next_multiple(
    period_s: float, *, after: float, not_before: float = -math.inf
) -> float:
    """Return the first whole multiple of `period_s` that is > `after` and >=
    `not_before`. Seconds.

    Where floats cannot tell neighbouring multiples apart there (`after` is 2**53
    periods or more), it is the next instant that they can tell. Raises ValueError
    unless `period_s` > 0 and the instants' maximum are finite.
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
