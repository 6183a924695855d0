"""Prices of GPUs, and what the GPUs that a job holds have cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.model.bounds import LABEL_ALLOWED, is_label
from coadapt.model.errors import InputError

HOUR_S = 3_600.0
# A price above this is a mistake: 1,000 times that of the dearest GPU that is for hire.
PRICE_MAX = 1e5
ALLOWED_PRICE = f"a number in 0..{PRICE_MAX:g}: the price of a GPU for an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a GPU costs per hour, by GPU type. Raises InputError for an illegal
    value.
    """

    currency: str
    """As it is shown, such as EUR."""
    default: float
    """Of GPU types that `gpus` does not name, and of nodes whose type is not known."""
    gpus: Mapping[str, float] = field(default_factory=dict)
    """By GPU type."""

    def __post_init__(self) -> None:
        if not is_label(self.currency):
            raise InputError("prices.currency", self.currency, LABEL_ALLOWED)
        given = {"default": self.default}
        given |= {f"gpus.{name}": price for name, price in self.gpus.items()}
        for name, price in given.items():
            if not (math.isfinite(price) and 0.0 <= price <= PRICE_MAX):
                raise InputError(f"prices.{name}", price, ALLOWED_PRICE)

    def per_h(self, gpus: Mapping[str, float]) -> float:
        """Return the price per hour of so many GPUs of each type."""
        return sum(
            self.gpus.get(gpu_type, self.default) * count
            for gpu_type, count in sorted(gpus.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What the GPUs of a job have cost up to `at` (s), and what those cost per hour
    that it holds since then.
    """

    cost: float = 0.0
    at: float = 0.0
    per_h: float = 0.0

    def upto(self, at: float) -> float:
        """Return the cost up to `at` (s)."""
        return self.cost + self.per_h * max(at - self.at, 0.0) / HOUR_S

    def after(self, at: float, per_h: float) -> "Bill":
        """Return the bill of a job that holds other GPUs from `at` (s) on."""
        return Bill(cost=self.upto(at), at=at, per_h=per_h)


NO_BILL = Bill()
