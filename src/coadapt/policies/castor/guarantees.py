"""What a round owes its jobs before it gives GPUs to where they are worth most."""

from typing import NamedTuple

import numpy as np

from coadapt.goodput.compiled import compiled_lean
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.fairness import OVERDUE, Fair

# Times as urgent as anything else that is owed: what `rho_max` guarantees holds beside
# it, too.
SHARES_FIRST = 100.0
ANY_TYPE = -1
NO_TYPE = -2


class Owed(NamedTuple):
    """What the round owes its jobs. replicas_J: at least so many now, 0 if it may wait;
    type_J: of this GPU type, ANY_TYPE, or NO_TYPE, of which nothing counts; goodput_J:
    or whatever does as much, infinity:
    nothing else.

    urgency_J: what a GPU of them counts where not all fit.
    """

    replicas_J: IntArray
    type_J: IntArray
    goodput_J: FloatArray
    urgency_J: FloatArray

    @classmethod
    def nothing(cls, num_jobs: int) -> "Owed":
        """Return what is owed where no job is owed anything."""
        return cls(
            np.zeros(num_jobs, dtype=np.int64),
            np.full(num_jobs, ANY_TYPE),
            np.full(num_jobs, np.inf),
            np.ones(num_jobs),
        )

    def with_shares(self, fair: Fair, rho_max: float) -> "Owed":
        """Return this, and their shares to all that are late by their fair clocks."""
        owed = Owed(
            self.replicas_J.copy(),
            self.type_J.copy(),
            self.goodput_J.copy(),
            self.urgency_J.copy(),
        )
        _owe_shares(owed, fair, rho_max)
        return owed


@compiled_lean
def _owe_shares(owed: Owed, fair: Fair, rho_max: float) -> None:
    for j in range(len(fair.least_J)):
        if fair.least_J[j] < rho_max:
            continue
        overdue = (
            fair.least_J[j] >= OVERDUE * rho_max and fair.rate_J[j] > fair.goodput_J[j]
        )
        if owed.replicas_J[j] == 0:
            owed.type_J[j] = NO_TYPE if overdue else fair.type_J[j]
        owed.replicas_J[j] = max(owed.replicas_J[j], fair.gpus_J[j])
        owed.goodput_J[j] = fair.rate_J[j] if overdue else fair.goodput_J[j]
        owed.urgency_J[j] = SHARES_FIRST
