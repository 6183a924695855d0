"""A batch schedule declared in advance (contract `schedule`): from how many samples on
which total batch.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction

from coadapt.model.bounds import WHOLE_MAX
from coadapt.model.errors import InputError

# The syntax is that of Megatron-LM's step batch size schedule: `0:768 250B:1536`, keys
# with decimal suffixes.
#
# What is in force follows from the number of samples trained on, and from nothing else:
# `total_at`. All replicas know that number, a checkpoint holds it, and reports tell it
# to the scheduler. So replicas need not agree on a change, a run that comes back finds
# its place, and a policy can read the ramp to come.
#
# A step that begins below a key keeps its batch to its end, even where it passes the
# key: no step is cut, so the change comes at the first step that begins at the key or
# above. Keys in tokens are turned into samples once, rounded up: the first whole sample
# at which that many tokens were seen.

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
STEPS_MAX = 1_000
ALLOWED = (
    "FROM:BATCH pairs parted by blanks, as in 0:768 250B:1536; FROM ascends from 0 "
    "and may end in "
    f"K, M, B or T, BATCH is a whole number >= 1; at most {STEPS_MAX} pairs"
)
_PAIR = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)([KMBT]?):([0-9]{1,15})")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSchedule:
    """Total batches and when each begins.

    steps: (samples trained on, total batch in samples), ascending in the first, which
    begins at 0.
    """

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        keys = [begin for begin, _ in self.steps]
        if not 1 <= len(keys) <= STEPS_MAX or keys[0] != 0 or sorted(set(keys)) != keys:
            raise ValueError(
                f"batch.schedule: 1..{STEPS_MAX} steps that ascend from 0 samples, "
                f"got {keys[:8]}"
            )
        if keys[-1] >= WHOLE_MAX or min(self.totals) < 1:
            raise ValueError(
                f"batch.schedule: batches >= 1 from below {WHOLE_MAX:g} samples, got "
                f"{self.steps[-1]}"
            )

    @classmethod
    def parse(
        cls, text: str, *, tokens_per_sample: int = 1, field: str = "batch.schedule"
    ) -> "BatchSchedule":
        """Return the schedule in `text`, in Megatron's syntax.

        tokens_per_sample: what a sample counts for where the keys are tokens; 1: they
        are samples. Raises InputError that names `field` and what is allowed.
        """
        if tokens_per_sample < 1:
            raise InputError(
                f"{field}, tokens per sample", tokens_per_sample, "a whole number >= 1"
            )
        steps = []
        for pair in text.split():
            match = _PAIR.fullmatch(pair)
            if match is None:
                raise InputError(field, pair, ALLOWED)
            begin = Fraction(match[1]) * SUFFIXES[match[2]]
            if begin.denominator != 1:
                raise InputError(
                    field, pair, f"a whole number before the colon; {ALLOWED}"
                )
            steps.append((-(-int(begin) // tokens_per_sample), int(match[3])))
        try:
            return cls(steps=tuple(steps))
        except ValueError:
            raise InputError(field, text, ALLOWED) from None

    @property
    def totals(self) -> tuple[int, ...]:
        """Return the total batches in the order of time."""
        return tuple(total for _, total in self.steps)

    def total_at(self, samples: float) -> int:
        """Return the total batch of a step that begins after `samples` samples."""
        return self.steps[max(self._after(samples) - 1, 0)][1]

    def samples_after(self, steps: float) -> float:
        """Return the samples of the first `steps` steps."""
        samples = 0.0
        while (change := self.next_change(samples)) is not None:
            total = self.total_at(samples)
            num_to_change = -(-(change - samples) // total)
            if steps <= num_to_change:
                break
            samples += num_to_change * total
            steps -= num_to_change
        return samples + steps * self.total_at(samples)

    def next_change(self, samples: float) -> int | None:
        """Return after how many samples the batch changes next; None if it does not
        change again.
        """
        after = self._after(samples)
        return self.steps[after][0] if after < len(self.steps) else None

    def _after(self, samples: float) -> int:
        return bisect_right(self.steps, samples, key=lambda step: step[0])
