"""What a sizer is: it decides how many nodes the cluster has, as a policy
decides GPUs.
"""

from dataclasses import dataclass
from typing import Protocol

from coadapt.model.offer import Sizing, SizingView


@dataclass(frozen=True, slots=True, kw_only=True)
class SizerCard:
    """What a sizer says of itself, as its class attribute `card`.

    source: paper or system, and year. decides: by what rule, in one sentence.
    """

    source: str
    decides: str


class Sizer(Protocol):
    """A function of the view, deterministic given its options and the views so far.

    Constructors take keyword arguments with defaults. A sizer may keep state between
    calls; losing it must cost money or time only. It must pickle with its state.
    """

    def size(self, view: SizingView) -> Sizing:
        """Return the nodes wanted of each offer now, and why.

        Must not modify `view`. The answer must be within each offer's limits.
        """
        ...
