"""By which rule a job under contract `self` changes its batch while it trains:
Accordion or noise scale.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from coadapt.model.errors import InputError

# The training process (`coadapt.train`) applies the rule; the scheduler does not. It is
# defined here because job files declare it, and because planners know the batches that
# it may use.

EPOCHS_MAX = 100_000
# Both of Accordion (Agarwal et al. 2021, §3); Shockwave's noise-scale jobs decide every
# 10 epochs too.
EVERY = 10
THRESHOLD = 0.5
ALLOWED = (
    "accordion or noise-scale, with options in brackets: accordion(every=10, "
    "threshold=0.5), "
    f"noise-scale(every=10); every: 1..{EPOCHS_MAX} epochs, threshold: > 0"
)
_RULE = re.compile(r"\s*([a-z-]+)\s*(?:\(([^()]*)\))?\s*")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")


class RuleKind(StrEnum):
    """The measure that a batch rule uses: the change of the gradient's norm, or the
    growth of its noise.
    """

    ACCORDION = "accordion"
    NOISE_SCALE = "noise-scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """A batch rule and its numbers.

    every: epochs between two decisions. threshold: Accordion's η. Accordion (Agarwal et
    al. 2021) uses the small batch while the gradient's norm changes by the fraction
    `threshold` or more, else the largest batch. The noise-scale rule (McCandlish et al.
    2018, as in Shockwave's artifact) doubles the batch if the noise scale is above its
    own recent mean.
    """

    kind: RuleKind
    every: int = EVERY
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        if not 1 <= self.every <= EPOCHS_MAX:
            raise ValueError(
                f"batch.rule: every must be within 1..{EPOCHS_MAX} epochs, got "
                f"{self.every}"
            )
        if not (isfinite(self.threshold) and self.threshold > 0.0):
            raise ValueError(
                f"batch.rule: threshold must be finite and > 0, got {self.threshold}"
            )

    @classmethod
    def parse(cls, text: str, *, field: str = "batch.rule") -> "BatchRule":
        """Return the rule in `text`, such as `accordion(every=5)`. Raises InputError,
        which names `field`, for any other text.
        """
        match = _RULE.fullmatch(text)
        if match is None or match[1] not in set(RuleKind):
            raise InputError(field, text, ALLOWED)
        kind = RuleKind(match[1])
        given = dict[str, str]()
        for option in (
            (match[2] or "").split(",") if match[2] and match[2].strip() else []
        ):
            name, _, value = (part.strip() for part in option.partition("="))
            known = name == "every" or (
                name == "threshold" and kind is RuleKind.ACCORDION
            )
            if not known or name in given or not _NUMBER.fullmatch(value):
                raise InputError(field, text, ALLOWED)
            given[name] = value
        if "." in given.get("every", ""):
            raise InputError(field, text, ALLOWED)
        try:
            return cls(
                kind=kind,
                every=int(given.get("every", EVERY)),
                threshold=float(given.get("threshold", THRESHOLD)),
            )
        except ValueError:
            raise InputError(field, text, ALLOWED) from None

    def totals(self, small: int, largest: int) -> tuple[int, ...]:
        """Return the total batches, ascending, that a job may use that begins with
        `small` samples.
        """
        if self.kind is RuleKind.ACCORDION:
            return (small, largest) if small < largest else (small,)
        doubled = [small]
        while doubled[-1] < largest:
            doubled.append(min(2 * doubled[-1], largest))
        return tuple(doubled)
