"""What a sizer is: it decides how many nodes the cluster has, as a policy
decides GPUs.
"""

from dataclasses import dataclass
from typing import Protocol

from coadapt.model.offer import Sizing, SizingView


@dataclass(frozen=True, slots=True, kw_only=True)
class SizerCard:
    """The class attribute `card` of a sizer, for people.

    source: paper or system, and year. decides: its rule, in one sentence.
    """

    source: str
    decides: str


class Sizer(Protocol):
    """A function of the view, deterministic given its options and the views so far.

    Constructors take keyword arguments with defaults. A sizer may keep state between
    calls. If the state is lost, this may only cost money or time. It must pickle with
    its state.
    """

    def size(self, view: SizingView) -> Sizing:
        """Return the nodes wanted of each offer now, and why.

        Must not modify `view`. The answer must be within each offer's limits.
        """
        ...
