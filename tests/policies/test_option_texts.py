"""What docstrings say of options is found, wherever they say it."""

from dataclasses import dataclass

from coadapt.policies import policy_option_texts
from coadapt.policies.option_texts import option_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeOptions:
    """What may be set. power: p; 0: none. late, early: in
    seconds."""


class Example:
    """Does nothing. size: of it; None: of all. Note: this is no option.

    power, late: as in SomeOptions. seed: another draw.
    """


def test_each_option_has_its_sentence() -> None:
    assert option_texts(Example, ["size", "power", "late", "unknown"]) == {
        "size": "of it; None: of all. Note: this is no option",
        "power": "p; 0: none",
        "late": "in seconds",
    }


def test_a_seed_needs_no_words() -> None:
    assert option_texts(SomeOptions, ["seed"]) == {"seed": "of what it draws at random"}
    assert option_texts(Example, ["seed"]) == {"seed": "another draw"}


def test_of_a_policy_with_options_in_brackets() -> None:
    assert "backfill" in policy_option_texts("fifo(backfill=true)")
