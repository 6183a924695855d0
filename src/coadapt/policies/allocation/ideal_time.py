"""How long each job would have taken on an equal part of the cluster: the measure of
finish-time fairness.
"""

import numpy as np

from coadapt.model import JobId
from coadapt.policies.allocation.paced_jobs import FloatArray, PacedJobs
from coadapt.policies.solvers.time_shares import equal_parts, least_worst


class IdealTimes:
    """Adds up what each job would have needed, on 1/n of the cluster, for what it has
    done so far.

    n changes as jobs come and go, so this is booked whenever parts are decided, at the
    rate of the time before (Gavel's released code). Losing it makes old jobs look as if
    they had been treated well so far.
    """

    def __init__(self, *, central: bool = False) -> None:
        self._central = central
        self._spent_s: dict[JobId, float] = {}
        self._before: dict[JobId, tuple[float, float]] = {}

    def least_worst(self, jobs: PacedJobs) -> FloatArray | None:
        """Return X_JT of the least largest ratio of expected completion time to that on
        an equal part.
        """
        equal_J = jobs.base.rates(equal_parts(jobs.base))
        spent = {}
        before = {}
        for job, left, rate in zip(jobs.jobs, jobs.left_J, equal_J, strict=True):
            steps, slow = self._before.get(job.id, (left, rate))
            past_s = max(steps - left, 0.0) / slow if slow > 0.0 else 0.0
            spent[job.id] = self._spent_s.get(job.id, 0.0) + past_s
            before[job.id] = (float(left), float(rate))
        self._spent_s = spent
        self._before = before
        age_J = np.array([max(jobs.at - job.submitted_at, 0.0) for job in jobs.jobs])
        spent_J = np.array([spent[job.id] for job in jobs.jobs])
        left_s_J = jobs.left_J / np.where(equal_J > 0.0, equal_J, np.inf)
        ideal_J = np.maximum(spent_J + left_s_J, 1e-9)
        return least_worst(
            jobs.base, age_J, jobs.left_J, ideal_J, central=self._central
        )
