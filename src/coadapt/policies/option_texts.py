"""What each option of a policy means, as the docstrings say it: `name, name: text.`, in
any line of them.
"""

import inspect
import re
import sys
from collections.abc import Collection, Iterator
from enum import Enum

# `power, queue_cost: text`, at the start of a sentence or of its half; `options as in
# PolluxOptions` and `see RoundOptions` name the class that explains them.
_HEAD = re.compile(r"(?:^|(?<=[.;] ))((?:[a-z]\w*, )*[a-z]\w*): ")
_ELSEWHERE = re.compile(r"\b(?:as\s+in|see)\s+(\w*Options)\b")
SEED = "of what it draws at random"


def option_texts(policy: object, options: Collection[str]) -> dict[str, str]:
    """Return what docstrings say of `options`; one that none of them explains is
    missing.

    The docstrings are those of the class `policy`, of its bases and of the classes of
    options named there.
    """
    texts: dict[str, str] = {}
    for doc in _docs(policy):
        for name, text in _explained(doc):
            if name in options and not _ELSEWHERE.match(text):
                texts.setdefault(name, text)
    return {"seed": SEED, **texts} if "seed" in options else texts


def allowed_values(default: object) -> str:
    """Return the values of an option that has but a few, or an empty text."""
    if not isinstance(default, Enum):
        return ""
    return "one of " + ", ".join(str(member.value) for member in type(default))


def _docs(policy: object) -> Iterator[str]:
    for each in getattr(policy, "__mro__", (policy,)):
        doc = inspect.getdoc(each) if each is not object else None
        yield doc or ""
        known = vars(sys.modules[each.__module__])
        for name in _ELSEWHERE.findall(doc or ""):
            yield inspect.getdoc(known.get(name)) or ""


def _explained(doc: str) -> Iterator[tuple[str, str]]:
    """Yield each name with the text behind its colon, up to the next name or the end of
    the paragraph.
    """
    for paragraph in doc.split("\n\n"):
        flat = " ".join(paragraph.split())
        heads = list(_HEAD.finditer(flat))
        ends = [head.start() for head in heads[1:]] + [len(flat)]
        for head, end in zip(heads, ends, strict=False):
            for name in head[1].split(", "):
                yield name, flat[head.end() : end].strip().rstrip(".;")
