"""From the output and the rows of a run that failed, or came no further, to the cause.
Pure.
"""

import re
from collections.abc import Mapping, Sequence

from coadapt.train.check.causes import Cause, skips_batches, starts_again_count
from coadapt.train.check.rows import Steps

Lines = Mapping[str, Sequence[str]]

# What Python prints last of an exception, and what Coadapt prints of a setting.
ERROR = re.compile(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Refused))\b:? ?(.*)$")
REFUSED = re.compile(r"^error: (.*)$")
LEFT = re.compile(r"replica (\d+) ends at step (\d+): the script left run\.epochs")
# torch's own hook puts it before each line of a replica's traceback.
RANK = re.compile(r"^(?:\[rank\d+\]: )+")
FIRST = re.compile(r"failed first: (.*)$")
# What others print once the first one has failed.
LOST = (
    "lost contact with another replica",
    "Connection closed by peer",
    "Connection reset",
    "raised from",
)
SHAPES = re.compile(r"size|shape|dimension|expand|broadcast|batch", flags=re.IGNORECASE)
UNLIKE_BACKWARDS = "ran a backward in the same steps"
NOT_THE_SAME_END = "the data ends in"
ONE_SAMPLE = "Expected more than 1 value per channel"


def explain_failure(lines: Lines, steps: Steps) -> Cause | None:
    """Return why a run ended; `steps`: its rows. None where its output says nothing."""
    everything = _plain(lines)
    left = [match for line in everything if (match := LEFT.search(line))]
    if left and not _errors(everything):
        return _left_early(left)
    for line in everything:
        refused = REFUSED.match(line)
        if refused:
            return Cause(kind="refused", text=refused[1])
    errors = _errors(everything)
    if not errors:
        return None
    kind, text = errors[0]
    if ONE_SAMPLE in text:
        return Cause(
            kind="one-sample",
            text=f"a pass of one sample, which batch normalisation refuses: {text}",
            remedy="run.loader(drop_last=True), or a data set whose rest is not that "
            "small",
        )
    if UNLIKE_BACKWARDS in text:
        skipping = skips_batches(steps)
        if skipping is not None:
            return skipping
        found = starts_again_count(steps)
        names = f": {found}" if found else ""
        return Cause(
            kind="unlike-backwards",
            text=f"some replicas ran a backward in a step and others did not{names}",
            remedy=(
                "decide by what is the same on all replicas: run.progress.step, "
                "run.state(...), a figure of "
                "totals(); or run the backward of 0.0 * loss where nothing is to be "
                "learnt"
            ),
        )
    if NOT_THE_SAME_END in text:
        return Cause(
            kind="unlike-streams",
            text=text,
            remedy="give every replica the same stream: run.loader deals it to them",
        )
    carried = _carried(steps)
    if SHAPES.search(text) and carried:
        return Cause(
            kind="carried",
            text=(
                f"{carried} is carried from step to step by the places of a batch, "
                f"which a change deals to "
                f"other replicas: {text}"
            ),
            remedy=(
                "keep it with run.per_sample(...), which deals it to the replicas "
                "that have the samples, or begin it "
                "again in each step"
            ),
        )
    return Cause(kind="failed", text=f"{kind}: {text}")


def explain_silence(lines: Lines, steps: Steps) -> Cause | None:
    """Return why a run came no further: a call that all replicas make together, and
    some do not.
    """
    everything = _plain(lines)
    left = [match for line in everything if (match := LEFT.search(line))]
    if left:
        return _left_early(left)
    if _errors(everything):
        return explain_failure(lines, steps)
    last = max(steps, default=0)
    return Cause(
        kind="silence",
        text=(
            f"after step {last} replicas wait for each other: some run a backward "
            f"that exchanges gradients, or "
            "another call of all replicas, and others do not"
        ),
        remedy=(
            "let run.loader(max_atomic=...) accumulate (no "
            "require_backward_grad_sync, no count of passes of "
            "the script's), and call run.totals() and the like on all replicas"
        ),
    )


def _left_early(left: Sequence["re.Match[str]"]) -> Cause:
    steps = {int(match[1]): int(match[2]) for match in left}
    who = ", ".join(f"replica {rank} at step {step}" for rank, step in steps.items())
    return Cause(
        kind="left-early",
        text=f"not all replicas left run.epochs in the same step (break, return, "
        f"sys.exit): {who}",
        remedy=(
            "decide by what is the same on all: a figure of run.totals() or "
            "validation.totals(), kept in "
            "run.state(...), and leave between two epochs"
        ),
    )


def _plain(lines: Lines) -> list[str]:
    """Return the lines of all replicas; of one that tells of another's failure, that
    failure.
    """
    found = []
    for line in (RANK.sub("", line) for own in lines.values() for line in own):
        first = FIRST.search(line)
        found.append(first[1] if first else line)
    return found


def _errors(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the exceptions, kind and message, without those that only follow from
    another replica's.
    """
    found = [match for line in lines if (match := ERROR.match(line))]
    own = [(match[1], match[2]) for match in found]
    return [item for item in own if not any(word in item[1] for word in LOST)]


def _carried(steps: Steps) -> str:
    """Return the tensor of the script that has one place per sample of the last step,
    and is none of its data.
    """
    if not steps:
        return ""
    *_, rows = steps.values()
    row = rows[0]
    earlier = [other[0] for other in list(steps.values())[-3:-1]]
    for name, (kind, value, shape) in row.seen.items():
        if kind != "tensor" or not isinstance(shape, list) or len(shape) < 2:
            continue
        places = [size for size in shape if size == len(row.ids)]
        # Data and outputs have the samples first; a hidden state of torch's has them
        # second.
        if places and shape[0] != len(row.ids):
            changes = any(
                other.seen.get(name, [None, value])[1] != value for other in earlier
            )
            if changes or not earlier:
                size = ", ".join(map(str, shape))
                return f"`{name}` ({size})"
    return ""
