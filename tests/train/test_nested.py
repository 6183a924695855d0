"""Walking nested states: nothing is lost, nothing is invented, and what comes back is
plain.
"""

from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coadapt.train.nested import leaves, map_leaves, tensors_in

pytestmark = pytest.mark.train

KEYS = st.text("abc", min_size=1, max_size=3)
STATES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)
Pair = namedtuple("Pair", "a b")  # as a state may have one, untyped


@given(STATES)
def test_the_identity_changes_nothing(state: object) -> None:
    assert map_leaves(lambda _, leaf: leaf, state) == state


@given(STATES)
def test_leaves_come_in_one_order_under_one_path_each(state: object) -> None:
    visited: list[tuple[str, object]] = []
    map_leaves(lambda path, leaf: visited.append((path, leaf)), state)
    assert visited == list(leaves(state))
    paths = [path for path, _ in visited]
    assert len(set(paths)) == len(paths)


@given(STATES)
def test_what_was_taken_out_goes_back(state: object) -> None:
    taken = dict(leaves(state))
    outline = map_leaves(lambda path, _: {"mark": path}, state)

    def is_mark(value: object) -> bool:
        return isinstance(value, dict) and value.keys() == {"mark"}

    assert (
        map_leaves(lambda _, mark: taken[mark["mark"]], outline, is_leaf=is_mark)
        == state
    )  # type: ignore[index]  # a mark


def test_what_comes_back_is_plain() -> None:
    state = OrderedDict(a=Counter({3: 1}), b=Pair(1, [2]), c=torch.Size([4, 5]))
    plain = map_leaves(lambda _, leaf: leaf, state)
    assert repr(plain) == "{'a': {3: 1}, 'b': (1, [2]), 'c': (4, 5)}"
    assert list(leaves(state))[:2] == [("/a/3", 1), ("/b/0", 1)]


def test_tensors_are_found_in_what_models_return() -> None:
    @dataclass
    class Output:
        loss: torch.Tensor
        more: object

    one = torch.zeros(1)
    two = torch.ones(2)
    assert tensors_in(one) == [one]
    found = tensors_in([Output(one, {"x": (two, "text")}), None])
    assert [
        tensor is known for tensor, known in zip(found, (one, two), strict=True)
    ] == [True, True]
    assert tensors_in("text") == []
