"""The worklist of live jobs: what they hold, which may need an order, and which
changed. It is updated job by job.
"""

# Why the worklist is updated and not computed again after each event.
#
# converge.py asks after every event which orders can be sent. The answer depends on the
# free GPUs, and on the jobs that differ from the plan. A sum over all jobs took 4 ms
# with 10,000 jobs, 2,000 of them running, and nearly all events are about one job. So
# each change of a job is noted here (`note`), and an event costs time only for the jobs
# that it concerns.
#
# The worklist is not state. It follows from the job records, and is computed from them
# at a start and when settings change. Tests compare it with a sum over all records
# after every event of random runs.
#
# Thousands of jobs may settle at the same time (settling.py): a plan wants them
# changed, and they have not taken their first step. They rest here until one of them
# changes, or may be changed, and no event looks at the others. With 10,000 live jobs,
# each first step looked at all of them, and a round took minutes.

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from coadapt.core.accounting import held
from coadapt.core.heartbeats import HeartbeatTimeouts
from coadapt.core.lifecycle import HOLDING, JobState
from coadapt.core.state import JobRecord
from coadapt.model import JobId, Node, TenantId
from coadapt.model.devices import NOTHING, Holdings
from coadapt.model.tenant import EVERYBODY

# Instants that are computed in two ways differ by rounding, s.
ROUNDING_S = 1e-3
IN_FLIGHT = frozenset({JobState.STARTING, JobState.RESCALING, JobState.STOPPING})


class Worklist:
    """Live jobs that need something, and what all live jobs hold.

    holdings: GPUs held, and free GPUs. moving: jobs whose GPUs are about to change.
    resting: jobs that need an order, and may not be changed before they settled.
    unseen: jobs whose views are out of date, in the order in which they changed.
    unplanned: jobs that changed since the last plan, so that even an equal plan may
    change them. heartbeats: jobs with replicas; their order is repeated after
    `silence_s` without a report.
    """

    def __init__(
        self, nodes: Iterable[Node], jobs: Sequence[JobRecord], silence_s: float
    ) -> None:
        self.holdings = Holdings(nodes)
        self.heartbeats = HeartbeatTimeouts()
        self._silence_s = silence_s
        self._actionable = dict[JobId, JobRecord]()
        self.resting = dict[JobId, JobRecord]()
        self._rest_until = math.inf  # of the first of them, s
        self.moving = dict[JobId, JobRecord]()
        self.unseen = dict[JobId, None]()
        self.unplanned = set[JobId]()
        for job in sorted(jobs, key=heard_at):
            self.note(job)

    @property
    def jobs(self) -> list[JobRecord]:
        """The jobs that may need an order and do not rest, in submission order."""
        return sorted(
            self._actionable.values(), key=lambda job: (job.submitted_at, job.id)
        )

    @property
    def unlike_plan(self) -> list[JobRecord]:
        """The jobs whose order may differ from the plan: it is open, or another one is
        needed.
        """
        return [
            *self._actionable.values(),
            *self.resting.values(),
            *self.moving.values(),
        ]

    def rest(self, job: JobRecord, until: float) -> None:
        """Leave a job of `jobs` out until it changes, or until instant `until` (s)."""
        self.resting[job.id] = self._actionable.pop(job.id)
        self._rest_until = min(self._rest_until, until)

    def wake(self, at: float) -> None:
        """End the rest of all jobs if that of one of them is over at `at` (s). The
        others are to be laid to rest again.
        """
        if at >= self._rest_until - ROUNDING_S:
            self._actionable.update(self.resting)
            self.resting.clear()
            self._rest_until = math.inf

    def wake_tenants(self, tenants: AbstractSet[TenantId]) -> None:
        """End the rest of the jobs of some tenants; with EVERYBODY, of all jobs."""
        for job in list(self.resting.values()):
            if not tenants.isdisjoint((job.spec.tenant, EVERYBODY)):
                self._actionable[job.id] = self.resting.pop(job.id)

    def note(self, job: JobRecord) -> None:
        """Update the worklist with what `job` holds and needs now."""
        self.holdings.put(job.id, held(job))
        self.resting.pop(job.id, None)
        for jobs, belongs in (
            (self._actionable, may_act(job)),
            (self.moving, moves_soon(job)),
        ):
            if belongs:
                jobs[job.id] = job
            else:
                jobs.pop(job.id, None)
        self.hear(job)
        self.unplanned.add(job.id)

    def hear(self, job: JobRecord) -> None:
        """Record the last heartbeat of `job`. Its view is out of date."""
        self.unseen[job.id] = None
        if job.status.state in HOLDING:
            self.heartbeats.record(
                job.id, min(self._silence_s, job.spec.hang_timeout_s), heard_at(job)
            )
        else:
            self.heartbeats.forget(job.id)

    def forget(self, job: JobId) -> None:
        """Remove a job that has ended, and what it held."""
        self.holdings.put(job, NOTHING)
        self._actionable.pop(job, None)
        self.resting.pop(job, None)
        self.moving.pop(job, None)
        self.unplanned.discard(job)
        self.heartbeats.forget(job)
        self.unseen[job] = None


def heard_at(job: JobRecord) -> float:
    """Return when the job last reported, s. If it never did: when it last answered an
    order, or an order was last sent.
    """
    reported_at = job.running.reported_at
    return job.heard_at if reported_at is None else reported_at


def may_act(job: JobRecord) -> bool:
    """Return whether the job may need an order now. A job with an open order that the
    plan wants does not.
    """
    if job.state is JobState.PENDING:
        return bool(job.target)
    unwanted = job.status.cancel_requested or not job.target
    if job.state in (JobState.RUNNING, JobState.RESCALING):
        return unwanted or not job.order.grant.satisfies(job.target)
    return unwanted and job.state is JobState.STARTING


def moves_soon(job: JobRecord) -> bool:
    """Return whether the job's GPUs are about to change, by the answer to an open order
    or by the next plan.
    """
    return job.state in IN_FLIGHT or job.failed_rescales.waits_for_plan
