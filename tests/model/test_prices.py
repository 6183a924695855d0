"""Prices of GPUs: what may be named, and what a bill adds up."""

import pytest

from coadapt.model import InputError
from coadapt.model.prices import HOUR_S, NO_BILL, Prices

EUR = Prices(currency="EUR", default=1.0, gpus={"a100": 3.0})


def test_a_type_that_is_not_named_has_the_default_price() -> None:
    assert EUR.per_h({"a100": 2.0, "v100": 1.0, "": 0.5}) == 7.5
    assert EUR.per_h({}) == 0.0


def test_a_bill_adds_up_price_times_time() -> None:
    bill = NO_BILL.after(100.0, 6.0).after(100.0 + HOUR_S, 2.0)
    assert bill.cost == 6.0
    assert bill.upto(100.0 + 1.5 * HOUR_S) == 7.0
    assert bill.upto(0.0) == 6.0


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"default": -1.0}, r"prices\.default: got -1\.0; allowed: a number in 0\.\."),
        ({"gpus": {"a100": float("nan")}}, r"prices\.gpus\.a100: got nan; allowed"),
        ({"gpus": {"a100": 1e9}}, r"prices\.gpus\.a100: got 1000000000\.0; allowed"),
        ({"currency": "E\nUR"}, r"prices\.currency: got .*; allowed: text in one line"),
    ],
)
def test_an_illegal_price_is_named(given: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        Prices(**{"currency": "EUR", "default": 1.0, **given})  # type: ignore[arg-type]
