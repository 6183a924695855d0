"""How far rounding alone parts two runs of a script, step by step, and which
differences between two runs it explains.
"""

# Replicas add numbers in another order, and on passes of another size, than one replica
# alone. So parameters differ by rounding after the first step already. What becomes of
# that depends on the script: in most trainings it stays at 1e-7 of the norm, in some it
# grows by a factor with each step (large learning rates, recurrent networks,
# normalisation, mixed precision), until two runs have nothing in common but their
# samples. No comparison can tell such a run from one with a fault at the end. It can
# tell before.
#
# The growth is measured. Reference runs alone begin with parameters that are off by a
# rounding error, and each of their gradients is off by a few. How far these runs and
# the run alone are apart is what rounding does to this script up to a step. It often
# begins with one event in one of the runs: an activation changes its sign, or a
# gradient does. So references differ among each other by orders of magnitude, and
# another run may be ahead of all of them: FACTOR times as far, or as far as they are
# after twice the steps. Within that a difference is due to rounding. Beyond it,
# something else is the cause. Where rounding explains more than MOST, a fault could
# hide in it: from the first step that makes use of that, nothing is compared.

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coadapt.train.check.rows import Steps
from coadapt.train.wrappers.recorder import StepRow

# Of the norm of all parameters: what is always allowed, and what is never called the
# same training.
LEAST = 1e-5
MOST = 1e-2
FACTOR = 10.0
# Steps by which another run may be ahead of the references, as a share of the step.
AHEAD_SHARE = 1.0
AHEAD_MIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two runs part, if they do.

    apart: the first step whose parameters differ by more than rounding explains.
    undecided: the first step whose difference is too large to be called the same, and
    which rounding explains. At most one of them is set.
    """

    apart: int | None = None
    undecided: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """grown: for each step of the run alone, the largest distance between two of the
    runs that measure it, up to there and a little later, as a fraction of the
    parameters' norm.

    last: the same after the last step, where models are compared as the script leaves
    them.
    """

    grown: Mapping[int, float] = field(default_factory=dict)
    last: float = 0.0

    @classmethod
    def measured(
        cls, alone: Steps, references: Iterable[Steps], last: Sequence[float] = ()
    ) -> "Rounding":
        """Return what the reference runs show. last: the distances of their ends."""
        pairs = list(itertools.combinations([alone, *references], 2))
        steps = list(alone)
        distances = [
            max((_distance_at(one, other, step) for one, other in pairs), default=0.0)
            for step in steps
        ]
        grown: dict[int, float] = {}
        most = 0.0
        seen = 0
        for index, step in enumerate(steps):
            ahead = index + max(AHEAD_MIN, int(AHEAD_SHARE * index))
            most = max([most, *distances[seen : ahead + 1]])
            seen = ahead + 1
            grown[step] = most
        return cls(grown=grown, last=max([most, *last]))

    @property
    def horizon(self) -> int | None:
        """The first step at which rounding explains more than MOST; None without."""
        return next((step for step in self.grown if self.explains(step) > MOST), None)

    def explains(self, step: int) -> float:
        """Return the relative distance from the run alone that rounding explains."""
        return max(LEAST, FACTOR * self.grown.get(step, 0.0))

    @property
    def explains_at_end(self) -> float:
        """The same for the models as the script leaves them."""
        return max(LEAST, FACTOR * self.last)

    def parting(self, alone: Steps, run: Steps) -> Parting:
        """Return where `run` parts from the run alone."""
        for step, rows in alone.items():
            if step not in run:
                continue
            apart = distance(rows[0], run[step][0])
            explained = self.explains(step)
            if apart > explained:
                return Parting(apart=step)
            if apart > MOST:
                return Parting(undecided=step)
        return Parting()


def distance(one: StepRow, other: StepRow) -> float:
    """Return the norm of the difference of all parameters over their norm, as their
    sketches show it.
    """
    if one.sketch and len(one.sketch) == len(other.sketch):
        apart = math.dist(one.sketch, other.sketch)
    else:
        apart = abs(one.checksum - other.checksum)
    return apart / max(one.norm, 1e-30) if math.isfinite(apart) else math.inf


def up_to(run: Steps, step: int | None) -> Steps:
    """Return the rows of `run` before `step`; all of them where that is None."""
    if step is None:
        return run
    return {at: rows for at, rows in run.items() if at < step}


def _distance_at(one: Steps, other: Steps, step: int) -> float:
    if step not in one or step not in other:
        return 0.0
    return distance(one[step][0], other[step][0])
