"""YAML as job files use it: mappings, lists, texts, numbers, truth values. Every
mistake is one line.
"""

# What YAML 1.1 makes of plain words has surprised people for twenty years: `1:30` is
# 90, `010` is 8, a date is an object, and `no` is false. So plain words are read by the
# rules of YAML 1.2, which has none of the first three: they stay text, and a field that
# wants a number says so. Only yes, no, on and off stay truth values: as text they would
# pass for a name, while their author may have meant either. A field that expects text
# says that they are to be quoted.
#
# The parser is recursive, Python's integers stop at 4,300 digits, and constructors of
# tags raise what they like: nesting, digits and tags are limited here, so that no such
# thing comes up.

import re
from collections.abc import Hashable

import yaml

from coadapt.model import InputError
from coadapt.model.bounds import NESTING_MAX

TAGS = ("null", "bool", "int", "float", "str", "map", "seq", "merge")
TAG_PREFIX = "tag:yaml.org,2002:"
DIGITS_MAX = 40  # more than any number that a field takes
SHOWN_LINE_MAX = 200  # characters of the line that is wrong

_FRACTION = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"
# Type, the words that are of it, and the characters that those begin with ("" for no
# word at all).
_PLAIN: list[tuple[str, str, list[str]]] = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"(?i:true|false|yes|no|on|off)", list("tTfFyYnNoO")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", list("-+0123456789")),
    ("float", rf"{_FRACTION}|[-+]?\.(?i:inf)|\.(?i:nan)", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
]


class _JobLoader(yaml.SafeLoader):
    """The safe loader with fewer types, without repeated keys, and with an end to
    nesting.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._level = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._level += 1
        if self._level > NESTING_MAX:
            raise _problem(f"more than {NESTING_MAX} levels", self.peek_event())  # type: ignore[no-untyped-call]  # PyYAML's
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        tag = node.tag.removeprefix(TAG_PREFIX)
        if tag not in TAGS:
            raise _problem(f"the tag !{tag} has no meaning here", node)
        if tag in ("int", "float") and len(node.value) > DIGITS_MAX:
            raise _problem(f"a number of at most {DIGITS_MAX} digits", node)
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, OverflowError, TypeError):
            raise _problem(f"{node.value[:DIGITS_MAX]!r} is no {tag}", node) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        return int(text, 0) if text.startswith(("0x", "0o")) else int(text)

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        if not isinstance(node, yaml.MappingNode):
            raise _problem("expected a mapping", node)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _problem("a key must be a word, not a list or a mapping", key)
            if key.tag not in (f"{TAG_PREFIX}str", f"{TAG_PREFIX}merge"):
                raise _problem(f"the key {key.value} must be text: quote it", key)
            if key.value in seen:
                raise _problem(f"the key {key.value} stands here twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in _PLAIN:
    _JobLoader.add_implicit_resolver(
        TAG_PREFIX + _tag, re.compile(rf"^(?:{_pattern})$"), _first
    )
_JobLoader.add_constructor(f"{TAG_PREFIX}int", _JobLoader.construct_yaml_int)


def load_yaml(text: str, name: str) -> object:
    """Return the plain data of one YAML document. Raises InputError with the line of
    the file `name`.
    """
    try:
        return yaml.load(text, _JobLoader)
    except yaml.MarkedYAMLError as error:
        number = error.problem_mark.line + 1 if error.problem_mark else 0
        where = f"{name} line {number}"
        raise InputError(
            where, _line(text, number), f"YAML ({str(error.problem)[:SHOWN_LINE_MAX]})"
        ) from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        allowed = f"text without the character {error.character:#06x}"
        raise InputError(
            f"{name} line {number}", _line(text, number), allowed
        ) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(name, text, f"YAML ({error})") from None


def _problem(problem: str, place: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)  # type: ignore[arg-type]  # or libyaml's alike


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return (
        lines[number - 1].strip()[:SHOWN_LINE_MAX] if 0 < number <= len(lines) else ""
    )
