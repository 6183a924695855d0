"""What a user writes to choose policies: names, options, and every way to write them
wrong.
"""

import contextlib
import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coadapt.model import InputError
from coadapt.policies import create_policy, policy_options
from coadapt.policies.choice import parse_choice, split_choices
from coadapt.policies.shockwave.forecasts import Rule

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,8}(-[a-z]{1,4})?", fullmatch=True).filter(
    lambda word: (
        word not in ("true", "false", "none")
        and not any(map(keyword.iskeyword, word.split("-")))
    )
)
VALUES = st.one_of(
    st.integers(-(10**6), 10**6),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    WORDS,
)
OPTIONS = st.from_regex(r"o_[a-z]{0,5}", fullmatch=True)


@given(
    name=WORDS,
    options=st.dictionaries(OPTIONS, VALUES, max_size=4),
    others=st.lists(WORDS, max_size=3, unique=True),
)
def test_what_is_written_is_what_is_read(
    name: str, options: dict[str, object], others: list[str]
) -> None:
    inside = ", ".join(f"{key}={value}" for key, value in options.items())
    choice = f"{name}({inside})"
    assert parse_choice(choice) == (name, options)
    whole = [choice, *(f"{other}()" for other in others if other != name)]
    assert split_choices(" , ".join(whole)) == whole


@given(text=st.text(max_size=40))
def test_any_other_text_is_refused_as_bad_input(text: str) -> None:
    with contextlib.suppress(InputError):
        for choice in split_choices(text):
            parse_choice(choice)


def test_options_are_those_of_the_policy() -> None:
    assert policy_options("tiresias(promote_knob=8)")["promote_knob"] == 8
    assert policy_options("tiresias(thresholds_gpu_s=[1.0, 2.0])")[
        "thresholds_gpu_s"
    ] == (1.0, 2.0)
    assert policy_options("shockwave(rule=counts)")["rule"] is Rule.COUNTS
    assert create_policy("fifo(backfill=true)") is not None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            "fifo(backfil=1)",
            "policy fifo, option backfil: got 1; allowed: backfill=False",
        ),
        (
            "fifo(backfill=1)",
            "policy fifo, option backfill: got 1; allowed: a value such as False",
        ),
        ("fifo(backfill=true", r"allowed: NAME or NAME\(option=value"),
        ("fifo(backfill=true)(seed=1)", r"allowed: NAME or NAME\(option=value"),
        ("fifo(true)", r"allowed: NAME or NAME\(option=value"),
        ("fifo(backfill=true, backfill=false)", r"allowed: NAME or NAME\(option=value"),
        (
            "fifo(backfill=__import__('os'))",
            "allowed: a number, a word, or several in brackets",
        ),
        ("tiresias(promote_knob=1e999)", "got inf; allowed: a finite number"),
        ("tiresias(promote_knob=-1)", "promote_knob must be >= 0, got -1"),
        ("shockwave(rule=guess)", "got 'guess'; allowed: counts, restatement"),
        ("afs(seed=1)", "allowed: no options"),
    ],
)
def test_a_choice_that_is_wrong_is_told_what_is_right(
    choice: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        create_policy(choice)


@pytest.mark.parametrize(
    "text", ["", " , ", "fifo,fifo", "fifo(backfill=true", "fifo)"]
)
def test_a_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(
        InputError, match=r"--policy: got .*; allowed: policies, each once"
    ):
        split_choices(text)
