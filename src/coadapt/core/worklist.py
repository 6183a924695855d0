"""What live jobs hold, which of them may need an order, and which changed; kept up to
date job by job.
"""

# Why this is kept, and not computed anew.
#
# converge.py asks after every event which orders can go out. The answer depends on the
# free GPUs, and on the jobs that are not as the plan wants them. To sum up 10,000 jobs
# for each of them cost 4 ms at 2,000 running jobs, and events about single jobs are
# nearly all there are. So each change of a job is noted here (`note`), and an event
# costs what the jobs that it concerns cost.
#
# Nothing here is state: it follows from the records, and is made anew from them at a
# start and for other settings. That it never drifts from what a sum over all records
# gives is checked in the tests after every event of random runs.

from collections.abc import Iterable, Sequence

from coadapt.core.accounting import held
from coadapt.core.heartbeats import HeartbeatTimeouts
from coadapt.core.lifecycle import HOLDING, JobState
from coadapt.core.state import JobRecord
from coadapt.model import JobId, Node
from coadapt.model.devices import NOTHING, Holdings

IN_FLIGHT = frozenset({JobState.STARTING, JobState.RESCALING, JobState.STOPPING})


class Worklist:
    """The live jobs by what is to be done about them, and what they hold.

    holdings: what they hold, and what is free. moving: those whose GPUs are about to
    change. unseen: those whose views are to be made anew, in the order in which they
    changed. unplanned: those to which a plan may say something new though it equals the
    last one. heartbeats: jobs with replicas, which are asked after `silence_s`.
    """

    def __init__(
        self, nodes: Iterable[Node], jobs: Sequence[JobRecord], silence_s: float
    ) -> None:
        self.holdings = Holdings(nodes)
        self.heartbeats = HeartbeatTimeouts()
        self._silence_s = silence_s
        self._actionable = dict[JobId, JobRecord]()
        self.moving = dict[JobId, JobRecord]()
        self.unseen = dict[JobId, None]()
        self.unplanned = set[JobId]()
        for job in sorted(jobs, key=heard_at):
            self.note(job)

    @property
    def jobs(self) -> list[JobRecord]:
        """The jobs that may need an order, in submission order."""
        return sorted(
            self._actionable.values(), key=lambda job: (job.submitted_at, job.id)
        )

    @property
    def unlike_plan(self) -> list[JobRecord]:
        """The jobs whose order may not be as the plan has it: under way, or in need of
        another.
        """
        return [*self._actionable.values(), *self.moving.values()]

    def note(self, job: JobRecord) -> None:
        """Take in what `job` holds and wants now."""
        self.holdings.put(job.id, held(job))
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
        """Take in when `job` was last heard of; its view changes."""
        self.unseen[job.id] = None
        if job.status.state in HOLDING:
            self.heartbeats.record(
                job.id, min(self._silence_s, job.spec.hang_timeout_s), heard_at(job)
            )
        else:
            self.heartbeats.forget(job.id)

    def forget(self, job: JobId) -> None:
        """Let go of a job that has ended, and of what it held."""
        self.holdings.put(job, NOTHING)
        self._actionable.pop(job, None)
        self.moving.pop(job, None)
        self.unplanned.discard(job)
        self.heartbeats.forget(job)
        self.unseen[job] = None


def heard_at(job: JobRecord) -> float:
    """Return when the job last reported, s; of one that never did, when it last
    answered or was asked.
    """
    reported_at = job.running.reported_at
    return job.heard_at if reported_at is None else reported_at


def may_act(job: JobRecord) -> bool:
    """Return whether the job may need an order now; one that waits for an answer as it
    should does not.
    """
    if job.state is JobState.PENDING:
        return bool(job.target)
    unwanted = job.status.cancel_requested or not job.target
    if job.state in (JobState.RUNNING, JobState.RESCALING):
        return unwanted or not job.order.grant.satisfies(job.target)
    return unwanted and job.state is JobState.STARTING


def moves_soon(job: JobRecord) -> bool:
    """Return whether the job's GPUs are about to change: an answer, or the next plan,
    will tell.
    """
    return job.state in IN_FLIGHT or job.failed_rescales.waits_for_plan
