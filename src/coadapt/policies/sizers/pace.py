"""How fast a job must train to meet its deadline at the least cost, on spot nodes while
they can be had and on on-demand nodes otherwise.
"""

# The rule. Let W be the progress that is left, T the time, a the part of it in which
# spot nodes can be had, s and p the prices of a GPU for an hour, g(k) the goodput on k
# GPUs. With k_s GPUs while there are spot nodes and k_o while there are none,
#
#     minimise  a s k_s + (1 - a) p k_o   where  T (a g(k_s) + (1 - a) g(k_o)) >= W.
#
# At a price of progress L each term has its own best number: the k that minimises
# price x k - L g(k). L is the least one at which the deadline is met. So a job trains
# on many spot GPUs while they are there, and waits without any (k_o = 0) while they are
# not, if that is cheaper and the deadline allows it.
#
# The part a is not known. It is estimated from what was seen, and the numbers are
# computed again at each decision, from what is left by then.

from dataclasses import dataclass

import numpy as np

from coadapt.policies.sizers.curves import FloatArray

NUM_BISECTIONS = 60
# Before anything was seen, spot nodes are taken to be there for half of the time, as if
# that had been seen for three hours. Our choice.
PRIOR_SHARE = 0.5
PRIOR_S = 3 * 3600.0
# A gap between two decisions beyond this is no observation, s.
GAP_MAX_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """GPUs of a job while spot nodes can be had, and while they cannot."""

    on_spot: int
    on_demand: int


def cheapest_pace(
    curve_K: FloatArray,
    needed: float,
    *,
    spot_price: float,
    firm_price: float,
    share: float,
) -> Pace:
    """Return the cheapest GPUs that make `needed` progress per second in the mean.

    curve_K: goodput on 1, 2, ... GPUs. Prices of a GPU for an hour; share: the part of
    the time in which spot nodes can be had. Where even all GPUs are too slow, all.
    """
    goodput_K = np.concatenate(([0.0], curve_K))
    fastest = int(goodput_K.argmax())
    if goodput_K[fastest] <= needed:
        return Pace(on_spot=fastest, on_demand=fastest)

    def at(price: float) -> tuple[Pace, float]:
        on_spot = _best(goodput_K, spot_price, price)
        on_demand = _best(goodput_K, firm_price, price)
        mean = share * goodput_K[on_spot] + (1.0 - share) * goodput_K[on_demand]
        return Pace(on_spot=on_spot, on_demand=on_demand), float(mean)

    # At `high` one step of the curve is worth all GPUs at the dearest price.
    steps = np.diff(np.unique(np.maximum.accumulate(goodput_K)))
    dearest = max(spot_price, firm_price) * len(curve_K)
    low = 0.0
    high = 2.0 * dearest / float(steps.min()) if dearest else 1.0
    for _ in range(NUM_BISECTIONS):
        middle = (low + high) / 2.0
        if at(middle)[1] >= needed:
            high = middle
        else:
            low = middle
    return at(high)[0]


def _best(goodput_K: FloatArray, price: float, value: float) -> int:
    """Return the fewest GPUs that minimise their price less the value of progress."""
    cost_K = price * np.arange(len(goodput_K)) - value * goodput_K
    return int(cost_K.argmin())


class Availability:
    """In which part of the time an offer could be had, from what was seen."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._had_s = 0.0
        self._at: float | None = None
        self._is_there = False

    def see(self, at: float, *, is_there: bool) -> None:
        """Take in whether nodes can be had at an instant, s."""
        if self._at is not None:
            gap_s = min(max(at - self._at, 0.0), GAP_MAX_S)
            self._seen_s += gap_s
            self._had_s += gap_s * self._is_there
        self._at = at
        self._is_there = is_there

    @property
    def share(self) -> float:
        had_s = PRIOR_SHARE * PRIOR_S + self._had_s
        return had_s / (PRIOR_S + self._seen_s)
