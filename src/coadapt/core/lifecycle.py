"""Job states, the reasons for them, and the table of legal transitions. The diagram in
the docs is drawn from this table. No other code decides which state may follow which.
"""

# What the table says, and what it leaves out.
#
# A job goes round a circle: pending, starting, running, stopping, and pending again, as
# often as plans want. There are three ends: succeeded, failed, cancelled. A job that
# was preempted, a job whose node was lost and a job whose script failed all return to
# pending by `released`. They differ in their reason, not in their state, because the
# next step is the same: the job runs again from its checkpoint when a plan gives it
# GPUs. A state per cause would add rows and decide nothing.
#
# In the four states of HOLDING a job may have replicas alive, so it holds GPUs; it
# leaves them only by what follows from the event ReplicasExited, which alone says that
# no replica of it lives. That is why a cancel, a lost node and a failed order lead to
# stopping and not to an end: the core does not know yet that the GPUs are free, and
# must not give them to others.
#
# A replica may come to the end of its script at any moment, also while it is starting,
# rescaling or being stopped: success counts from every state of HOLDING, and so does
# giving up. An end is final: no row leads out of it, and late messages find none.
#
# `advance` raises for a pair that has no row. No message from outside can cause that,
# because answers are filtered by generation and state before. If it happens, it is a
# bug in the core.

from enum import StrEnum


class JobState(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RESCALING = "rescaling"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """Why a job is in its state, for programs. A job also has a sentence for its
    user.
    """

    SUBMITTED = "submitted"  # no round has looked at it yet
    NO_CAPACITY = "no_capacity"  # the last round gave it nothing
    SET_ASIDE = "set_aside"  # the policy fails with it; it is tried again later
    IMPOSSIBLE = (
        "impossible"  # its minimum exceeds the present cluster, or its tenant's quota
    )
    ALLOCATED = "allocated"
    PREEMPTED = "preempted"
    RESCALED = "rescaled"
    RESCALE_FAILED = "rescale_failed"  # the previous replicas train on
    GROWTH_FAILED = "growth_failed"  # it goes back to the size that trained last
    NODE_LOST = "node_lost"
    NODE_UNFIT = (
        "node_unfit"  # a node lacks something of this job: it goes on elsewhere
    )
    REPLICAS_LOST = "replicas_lost"
    UNSEEN = (
        "unseen"  # it is unknown whether its replicas still live; they may train on
    )
    HUNG = "hung"  # its replicas had not reported for longer than hang_timeout
    SCRIPT_FAILED = "script_failed"
    TOO_MANY_FAILURES = "too_many_failures"
    BUDGET = "budget"  # its tenant has spent its budget, and it has not started yet
    MAX_COST = "max_cost"  # it is stopped, or was, because it has cost that much
    CANCELLED = "cancelled"
    FINISHED = "finished"


class Trigger(StrEnum):
    ALLOCATED = "allocated"  # a plan gives GPUs to a job that has none
    REPLICAS_STARTED = "replicas_started"
    REPLICAS_KEPT = "replicas_kept"  # a rescale did not come about
    RESCALE_ORDERED = "rescale_ordered"
    STOP_ORDERED = "stop_ordered"
    SUCCEEDED = "succeeded"
    GAVE_UP = "gave_up"  # replicas ended for good: failures exhausted
    RELEASED = "released"  # replicas ended, the job will run again
    CANCELLED = "cancelled"  # cancelled, and no replica is left


S = JobState
T = Trigger

TRANSITIONS: dict[tuple[JobState, Trigger], JobState] = {
    (S.PENDING, T.ALLOCATED): S.STARTING,
    (S.PENDING, T.CANCELLED): S.CANCELLED,
    (S.STARTING, T.REPLICAS_STARTED): S.RUNNING,
    (S.STARTING, T.STOP_ORDERED): S.STOPPING,
    (S.RUNNING, T.RESCALE_ORDERED): S.RESCALING,
    (S.RUNNING, T.STOP_ORDERED): S.STOPPING,
    (S.RESCALING, T.REPLICAS_STARTED): S.RUNNING,
    (S.RESCALING, T.REPLICAS_KEPT): S.RUNNING,
    (S.RESCALING, T.STOP_ORDERED): S.STOPPING,
    **{
        (state, T.SUCCEEDED): S.SUCCEEDED
        for state in (S.STARTING, S.RUNNING, S.RESCALING, S.STOPPING)
    },
    **{
        (state, T.GAVE_UP): S.FAILED
        for state in (S.STARTING, S.RUNNING, S.RESCALING, S.STOPPING)
    },
    **{
        (state, T.RELEASED): S.PENDING
        for state in (S.STARTING, S.RUNNING, S.RESCALING, S.STOPPING)
    },
    (S.STOPPING, T.CANCELLED): S.CANCELLED,
}

ENDED = frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED})
HOLDING = frozenset({S.STARTING, S.RUNNING, S.RESCALING, S.STOPPING})
del S, T


class IllegalTransitionError(AssertionError):
    """The core tried a transition that the table does not have. This is a bug in the
    core.
    """


def advance(state: JobState, trigger: Trigger) -> JobState:
    """Return the state after `trigger`. Raises IllegalTransitionError where the table
    has no such row.
    """
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise IllegalTransitionError(
            f"{trigger} is not legal in state {state}"
        ) from None
