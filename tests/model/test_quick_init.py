"""The quicker `__init__`: what it makes is what the dataclass's own would have made."""

import pickle
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, field
from dataclasses import replace as replaced

import pytest

from coadapt.model.quick_init import maker, quick_init, replace


def _values(decorate):  # type: ignore[no-untyped-def]  # a class of its own for each
    @decorate
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Value:
        name: str
        size: int = 1
        parts: dict[str, int] = field(default_factory=dict)
        twice: int = field(init=False, default=0)
        seen: list[int] = field(init=False, default_factory=list)

        def __post_init__(self) -> None:
            if self.size < 1:
                raise ValueError("size must be >= 1")
            object.__setattr__(self, "twice", 2 * self.size)

    return Value


@quick_init
@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: tuple[int, ...] = ()


def test_it_sets_what_the_dataclass_sets() -> None:
    plain = _values(lambda kind: kind)
    quick = _values(quick_init)
    for given in ({"name": "a"}, {"name": "b", "size": 3, "parts": {"x": 1}}):
        assert (
            repr(quick(**given)).rpartition(".")[2]
            == repr(plain(**given)).rpartition(".")[2]
        )
    value = quick(name="a", size=2)
    assert (value.twice, value.seen, value.parts) == (4, [], {})
    assert value.parts is not quick(name="a").parts
    assert value == quick(name="a", size=2) != quick(name="a")
    assert replaced(value, size=5).twice == 10


def test_it_refuses_what_the_dataclass_refuses() -> None:
    quick = _values(quick_init)
    for wrong in ({}, {"name": "a", "colour": 1}, {"name": "a", "twice": 2}):
        with pytest.raises(TypeError, match="argument"):
            quick(**wrong)
    with pytest.raises(TypeError, match="positional"):
        quick("a")
    with pytest.raises(ValueError, match="size must be"):
        quick(name="a", size=0)
    with pytest.raises(FrozenInstanceError):
        quick(name="a").size = 2


def test_arguments_by_place_and_pickles_stay() -> None:
    pair = Pair(1, (2,))
    assert pickle.loads(pickle.dumps(pair)) == pair == Pair(left=1, right=(2,))
    assert hash(pair) == hash(Pair(1, (2,)))


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a pickle must bring over though no argument sets it."""

    name: str
    told: list[str] = field(init=False, compare=False, default_factory=list)


def test_pickles_and_deep_copies_have_what_no_argument_sets() -> None:
    first = Counted(name="a")
    first.told.append("x")
    for again in (pickle.loads(pickle.dumps(first)), deepcopy(first)):
        assert (again, again.told) == (first, ["x"])
        assert again.told is not first.told


def test_a_maker_makes_what_the_class_makes() -> None:
    kind = _values(quick_init)
    make = maker(kind)
    for given in ({"name": "a"}, {"name": "b", "size": 3, "parts": {"x": 1}}):
        value = make(**given)
        assert (value, type(value), value.twice, value.seen) == (
            kind(**given),
            kind,
            2 * value.size,
            [],
        )
    assert make(name="a").parts is not make(name="a").parts
    assert maker(Pair)(1, (2,)) == Pair(1, (2,))
    for wrong in ({}, {"name": "a", "colour": 1}, {"name": "a", "twice": 2}):
        with pytest.raises(TypeError, match="argument"):
            make(**wrong)
    with pytest.raises(ValueError, match="size must be"):
        make(name="a", size=0)
    with pytest.raises(FrozenInstanceError):
        make(name="a").size = 2


def test_a_copy_has_what_changed_and_is_checked_anew() -> None:
    value = _values(quick_init)(name="a", size=2, parts={"x": 1})
    value.seen.append(1)
    copy = replace(value, size=5)
    assert (copy.name, copy.size, copy.twice, copy.seen) == (
        "a",
        5,
        10,
        [],
    )  # as dataclasses.replace has it
    assert copy == replaced(value, size=5)
    assert copy.parts is value.parts
    assert type(copy) is type(value)
    with pytest.raises(FrozenInstanceError):
        copy.size = 2
    with pytest.raises(ValueError, match="size must be"):
        replace(value, size=0)
    with pytest.raises(TypeError, match="argument"):
        replace(value, twice=2)


def test_makers_and_copies_of_a_subclass_are_of_it() -> None:
    @quick_init
    @dataclass(frozen=True, slots=True)
    class Triple(Pair):
        third: int = 3

    first = maker(Triple)(1, third=4)
    assert (type(first), first) == (Triple, Triple(1, third=4))
    assert (type(replace(first, left=2)), type(replace(Pair(1), left=2))) == (
        Triple,
        Pair,
    )
    assert pickle.loads(pickle.dumps(maker(Pair)(1))) == Pair(1)
