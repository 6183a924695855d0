"""Fair clocks: what each job would have done on an equal share, and who is late by them."""

# A job's fair clock runs at the goodput that it would have on its share of the cluster, GPUs / jobs, whatever
# it really gets. From it follows when it would have ended there (T_fair), and from what it really did when it
# ends if it gets its share from now on; the quotient is the least finish-time fairness ρ that it can still
# count on. Once that reaches `rho_max`, the round owes the job its share until the quotient is below again.
#
# Guarantee. While the number of jobs n and the goodputs stay, and n <= GPUs: shares are floor(GPUs / n),
# their sum fits, so every late job gets at least its share in the next round and the quotient rises no
# further: ρ <= rho_max + (round + its rescales x δ) / T_fair. When jobs come, T_fair and what is left grow
# alike.

from dataclasses import dataclass, field

import numpy as np

from coadapt.model import JobId
from coadapt.policies.castor.arrays import FloatArray, IntArray
from coadapt.policies.castor.situation import Situation


@dataclass(slots=True)
class FairClocks:
    """done: per job, the instant and the progress that its clock had then."""

    done: dict[JobId, tuple[float, float]] = field(default_factory=dict)

    def owed(self, at: float, now: Situation, num_gpus: int, rho_max: float) -> IntArray:
        """Return the replicas that each job is owed at least (0: it is not late), and move the clocks on."""
        share = max(num_gpus // max(len(now.jobs), 1), 1)
        column_J, goodput_J = _at_share(now, share)
        owed_J = np.zeros(len(now.jobs), dtype=np.int64)
        clocks: dict[JobId, tuple[float, float]] = {}
        for row, job in enumerate(now.jobs):
            if not now.timed_J[row] or goodput_J[row] <= 0.0:
                continue
            age_s, goodput = max(at - job.submitted_at, 0.0), float(goodput_J[row])
            before, clock = self.done.get(job.id, (job.submitted_at, 0.0))
            clock += goodput * max(at - before, 0.0)
            clocks[job.id] = (at, clock)
            whole = job.measured.progress + float(now.left_J[row])
            # One start on the fair share, too, takes its rescale time.
            fair_s = max(age_s + (whole - clock) / goodput, 0.1 * whole / goodput) + job.rescale_s
            if (age_s + float(now.left_J[row]) / goodput) / fair_s >= rho_max:
                owed_J[row] = now.configs.gpus_C[column_J[row]]
        self.done = clocks
        return owed_J


def _at_share(now: Situation, share: int) -> tuple[IntArray, FloatArray]:
    """Return per job the configuration with most GPUs of its share (else its least), and its goodput."""
    gpus_JC = np.where(now.goodput_JC > 0.0, now.configs.gpus_C, 0)
    within_JC = np.where(gpus_JC <= share, gpus_JC, 0)
    least_JC = np.where(gpus_JC > 0, gpus_JC, np.iinfo(np.int64).max)
    column_J = np.where(within_JC.any(axis=1), within_JC.argmax(axis=1), least_JC.argmin(axis=1))
    every_J = np.arange(len(now.jobs))
    return column_J, now.goodput_JC[every_J, column_J]
