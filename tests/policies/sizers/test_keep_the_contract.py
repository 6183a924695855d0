"""Every sizer gives a lawful answer on any view, says why, and pickles with
its state.
"""

import pytest

from coadapt.policies.sizers import (
    SIZERS,
    create_sizer,
    sizer_card,
    sizer_option_texts,
    sizer_options,
)
from coadapt.policies.sizers.contract import check_sizer

CHOICES = [
    *SIZERS,
    "castor(budget_per_h=10)",
    "castor(budget=500)",
    "castor(value_of_time=0)",
    "castor(spot=false, value_of_time=50)",
]


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(choice, marks=[pytest.mark.long] * ("budget" in choice))
        for choice in CHOICES
    ],
)
def test_keeps_the_contract(choice: str) -> None:
    check_sizer(lambda: create_sizer(choice), cases=10)


@pytest.mark.parametrize("name", SIZERS)
def test_tells_what_it_is_and_what_its_options_mean(name: str) -> None:
    card = sizer_card(name)
    assert card.source
    assert card.decides.endswith(".")
    assert set(sizer_option_texts(name)) == set(sizer_options(name))
