"""Epochs left in each mode of a job that changes its own batch (Shockwave, NSDI'23).

A mode is a total batch that the job may use. M modes, in increasing order of their
batch.
"""

# What is known: the number of epochs in all, E; the modes that the job may visit; the
# seconds of an epoch in each; and the modes of the epochs seen so far. Not known: when
# the job changes. Two rules guess.
#
# Counting (the released code): shares of the modes have a Dirichlet prior, E / M in
# each mode, and every epoch seen adds one to its own. The expected share of a mode, of
# E epochs in all, less the epochs seen in it, is what is left. The prior weighs as much
# as the whole job does: a job that left its small batch long ago is still believed to
# return to it, and remaining times come out too long until the end.
#
# Restatement (the paper): a phase that has ended is known, so it says nothing about the
# others any more.
# What is left is spread evenly over the modes whose phase has not ended, the present
# one among them. For a job that only grows this is right at its last mode, where
# counting is worst. A job that returns to a mode (Accordion at a drop of the learning
# rate) opens its phase again.

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """How the epochs that are left are spread over the modes."""

    COUNTS = "counts"
    RESTATEMENT = "restatement"


@dataclass(frozen=True, slots=True)
class Phase:
    """Consecutive epochs, finished, in one mode."""

    mode: int
    num_epochs: int


def epochs_left(
    num_epochs: int, num_modes: int, phases: Sequence[Phase], current: int, rule: Rule
) -> list[float]:
    """Return the expected epochs left in each mode; they sum to what is left in all.

    num_epochs: of the whole job. phases: of the finished epochs, in order. current: the
    mode of the present one. Raises ValueError for a mode that is not among `num_modes`.
    """
    if not all(
        0 <= mode < num_modes for mode in (current, *(phase.mode for phase in phases))
    ):
        raise ValueError(
            f"modes must be within 0..{num_modes - 1}, got {current} after {phases}"
        )
    left = max(num_epochs - sum(phase.num_epochs for phase in phases), 0)
    if rule is Rule.COUNTS:
        return _by_counts(num_epochs, left, _seen(num_modes, phases, current))
    ended = {phase.mode for phase in phases} - {current}
    share = left / (num_modes - len(ended))
    return [0.0 if mode in ended else share for mode in range(num_modes)]


def _seen(num_modes: int, phases: Sequence[Phase], current: int) -> list[int]:
    """Return the epochs seen in each mode, the present one counted."""
    seen = [0] * num_modes
    for phase in phases:
        seen[phase.mode] += phase.num_epochs
    seen[current] += 1
    return seen


def _by_counts(num_epochs: int, left: int, seen: Sequence[int]) -> list[float]:
    prior = num_epochs / len(seen)
    expected = [
        num_epochs * (prior + count) / (num_epochs + sum(seen)) for count in seen
    ]
    # Whole epochs seen are taken off while a whole one is there, as in the released
    # code: never below 0.
    rest = [
        share - min(count, int(share))
        for share, count in zip(expected, seen, strict=True)
    ]
    scale = left / max(int(sum(rest) + 1.0), left)
    return [scale * share for share in rest]
