"""A policy that fails on some jobs: these are found and set aside, and the others are
planned.
"""

# How the jobs are found, and what happens to them
#
# A policy may raise, die or return an invalid plan because of one job, or of a few jobs
# together. Without a remedy no job would get a plan for as long as that job is there.
# So jobs are added to a view as long as the policy returns a valid plan for it: first
# all that are left, then, if that fails, the first half, then the second half, down to
# single jobs. A job that cannot be added is set aside. With d such jobs among n this
# takes about 2 d log(n / d) plans, in a round that would have had none.
#
# Jobs that hold GPUs are added first, then the others in the order of their submission.
# So if two jobs fail only together, the younger one is set aside, and no job loses its
# GPUs to a job that came later.
#
# A job that is set aside keeps its GPUs. The policy sees neither the job nor these
# GPUs, and its tenant's quota is smaller by them. If the plan with them would be
# invalid (the tenant's quota may have shrunk), the job gets nothing. It is tried again
# after RETRY_S, and after twice the time with each further failure.
#
# Trials use a copy of the policy, because its queues and populations are those of the
# whole cluster.
#
# If the policy takes too long, nothing is learned about jobs, and it gets the whole
# view again in the next round. If it fails with every single job, the policy itself is
# broken. Then no job is set aside, and all jobs show its error.

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from coadapt.model import (
    ClusterView,
    Grant,
    JobId,
    JobView,
    Node,
    Plan,
    PlanError,
    check_plan,
)
from coadapt.model.devices import SharedGpu
from coadapt.model.tenant import EVERYBODY

RETRY_S = 600.0
RETRY_MAX_S = 4 * 3600.0
# Longest search for these jobs in one round; the core gives up a round after
# SchedulerConfig.solve_timeout_s.
SEARCH_S = 120.0
WHY_MAX = 300  # characters of an error, which may hold anything
NOT_TRIED = "or with others that came with it"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """Why there is no plan. of_jobs: whether some jobs may be the cause; a policy that
    is slow is not.
    """

    why: str
    of_jobs: bool = True


Ask = Callable[[ClusterView, bool], Plan | NoPlan]
"""Let the policy plan; True: only to see whether it can, on a copy of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A job that the policy fails with: why, and until when (s) it is not asked about
    it.
    """

    why: str
    until: float
    pause_s: float


@dataclass(slots=True, kw_only=True)
class _Search:
    """Jobs that were added to the view so far, and those that cannot be."""

    good: list[JobId] = field(default_factory=list)
    bad: dict[JobId, str] = field(default_factory=dict)
    deadline: float


class _NoTimeLeftError(Exception):
    """The search ends with what is known."""


class Triage:
    """Makes plans by `ask`, and remembers the jobs that it sets aside; `timer` bounds
    the search (s).
    """

    def __init__(self, ask: Ask, timer: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._timer = timer
        self._aside: dict[JobId, Aside] = {}
        self._search_again_at = float("-inf")
        self._num_failed = 0
        self._good: frozenset[JobId] = (
            frozenset()
        )  # of a search that ran out of time: the next goes on there

    @property
    def aside(self) -> dict[JobId, Aside]:
        """The jobs that the policy failed with when it was last asked about them."""
        return dict(self._aside)

    def plan(self, view: ClusterView) -> Plan | NoPlan:
        """Return a lawful plan for `view`; one that sets jobs aside gives the reason of
        each.
        """
        answer = self._plan(view)
        if isinstance(answer, Plan):
            self._num_failed = 0
            return answer
        self._num_failed += 1
        for_rounds = f"; no plan for {self._num_failed} rounds" * (self._num_failed > 1)
        return replace(answer, why=answer.why + for_rounds)

    def _plan(self, view: ClusterView) -> Plan | NoPlan:
        present = {job.id for job in view.jobs}
        self._aside = {
            job: aside for job, aside in self._aside.items() if job in present
        }
        waiting = {job for job, aside in self._aside.items() if view.at < aside.until}
        answer = self._lawful(view, waiting)
        if isinstance(answer, Plan):
            self._aside = {job: self._aside[job] for job in waiting}
            return self._with_set_aside(view, answer)
        if not answer.of_jobs or not view.jobs or view.at < self._search_again_at:
            return answer
        search = self._search(view, waiting)
        if not search.good:
            self._search_again_at = view.at + RETRY_S
            return NoPlan(why=f"{answer.why} (with every job that was tried alone)")
        for job, why in sorted(search.bad.items()):
            self._set_aside(view, job, why)
        for job in sorted(present - {*search.good, *self._aside}):
            # There was no time for these: the next round asks about them, they keep
            # what they have.
            self._aside[job] = Aside(why=NOT_TRIED, until=view.at, pause_s=RETRY_S / 2)
        answer = self._lawful(view, present - set(search.good))
        return (
            self._with_set_aside(view, answer) if isinstance(answer, Plan) else answer
        )

    def _search(self, view: ClusterView, waiting: set[JobId]) -> _Search:
        """Find as many jobs as possible that the policy can plan for; those of
        `waiting` are not tried.
        """
        search = _Search(deadline=self._timer() + SEARCH_S)
        tried = [job for job in view.jobs if job.id not in waiting]
        tried.sort(
            key=lambda job: (job.id in self._aside, not job.allocation)
        )  # stable: by submission
        begun = [job.id for job in tried if job.id in self._good]
        try:
            self._add(view, search, begun)
            rest = [job.id for job in tried if job.id not in self._good]
            self._add(view, search, rest, known_to_fail=not search.bad)
            self._good = frozenset()
        except _NoTimeLeftError:
            logger.warning(
                "the policy fails with some jobs; there was not enough time to "
                "find all of them"
            )
            self._good = frozenset(search.good)
        return search

    def _add(
        self,
        view: ClusterView,
        search: _Search,
        more: Sequence[JobId],
        *,
        known_to_fail: bool = False,
    ) -> None:
        """Add those of `more` with which the policy still plans."""
        if not more:
            return
        if not known_to_fail or len(more) == 1:
            if self._timer() > search.deadline:
                raise _NoTimeLeftError
            wanted = {*search.good, *more}
            answer = self._lawful(
                view, {job.id for job in view.jobs} - wanted, probe=True
            )
            if isinstance(answer, Plan):
                search.good += more
                return
            if not answer.of_jobs:
                raise _NoTimeLeftError
            if len(more) == 1:
                search.bad[more[0]] = answer.why
                return
        half = len(more) // 2
        num_bad = len(search.bad)
        self._add(view, search, more[:half])
        # If the first half is in, the second half is all that was tried before, and is
        # known to fail.
        self._add(view, search, more[half:], known_to_fail=len(search.bad) == num_bad)

    def _lawful(
        self, view: ClusterView, left_out: set[JobId], *, probe: bool = False
    ) -> Plan | NoPlan:
        seen = view_without(view, left_out)
        answer = self._ask(seen, probe)
        if isinstance(answer, NoPlan):
            return replace(answer, why=answer.why[:WHY_MAX])
        why = _error(seen, answer)
        return NoPlan(why=f"its plan is not lawful: {why}"[:WHY_MAX]) if why else answer

    def _set_aside(self, view: ClusterView, job: JobId, why: str) -> None:
        before = self._aside.get(job)
        pause_s = RETRY_S if before is None else min(2.0 * before.pause_s, RETRY_MAX_S)
        self._aside[job] = Aside(why=why, until=view.at + pause_s, pause_s=pause_s)
        logger.warning(
            "job %s is set aside until %s: the policy fails with it: %s",
            job,
            _time(view.at + pause_s),
            why,
        )

    def _with_set_aside(self, view: ClusterView, plan: Plan) -> Plan | NoPlan:
        """Return the plan for the whole view: `plan`, and the GPUs and reasons of the
        jobs that are set aside.
        """
        left_out = {job.id for job in view.jobs if job.id in self._aside}
        if not left_out:
            return plan
        kept = {
            job.id: job.grant for job in view.jobs if job.id in left_out and job.grant
        }
        whole = self._with(plan, left_out, kept)
        if _error(view, whole):
            whole = self._with(plan, left_out, {})
        why = _error(view, whole)
        return NoPlan(why=why, of_jobs=False) if why else whole

    def _with(self, plan: Plan, left_out: set[JobId], kept: dict[JobId, Grant]) -> Plan:
        batches = {
            job: grant.batch for job, grant in kept.items() if grant.batch is not None
        }
        return Plan(
            allocations={
                **plan.allocations,
                **{job: grant.allocation for job, grant in kept.items()},
            },
            batches={**plan.batches, **batches},
            reasons={
                **plan.reasons,
                **{job: self._reason(job, kept.get(job)) for job in sorted(left_out)},
            },
            diagnostics=plan.diagnostics,
            set_aside={job: self._aside[job].until for job in sorted(left_out)},
            application_times=plan.application_times,
        )

    def _reason(self, job: JobId, kept: Grant | None) -> str:
        aside = self._aside[job]
        does = "waits" if kept is None else f"keeps its {_gpus(kept)}"
        why = f"set aside, the policy fails with it ({aside.why})"
        return f"{does}: {why}; tried again after {_time(aside.until)}"


def view_without(view: ClusterView, left_out: set[JobId]) -> ClusterView:
    """Return the view in which these jobs are not, nor the GPUs that they hold."""
    if not left_out:
        return view
    gone = [job for job in view.jobs if job.id in left_out]
    jobs = tuple(job for job in view.jobs if job.id not in left_out)
    tenants = dict(view.tenants)
    for name, tenant in view.tenants.items():
        held = sum(
            job.allocation.num_gpus
            for job in gone
            if name in (job.spec.tenant, EVERYBODY)
        )
        if tenant.quota_gpus is not None and held:
            tenants[name] = replace(
                tenant, quota_gpus=max(int(tenant.quota_gpus - held), 0)
            )
    return replace(
        view, nodes=_nodes_without(view.nodes, gone, jobs), jobs=jobs, tenants=tenants
    )


def _nodes_without(
    nodes: tuple[Node, ...], gone: list[JobView], jobs: tuple[JobView, ...]
) -> tuple[Node, ...]:
    held: dict[str, int] = {}
    shared: set[SharedGpu] = set()
    for job in gone:
        if job.allocation.shared:
            shared.update(job.allocation.shared_gpus())
            continue
        for node, count in job.allocation.slots:
            held[node] = held.get(node, 0) + count
    # A GPU that is shared with a job that stays is seen by that one.
    for job in jobs:
        if job.allocation.shared:
            shared.difference_update(job.allocation.shared_gpus())
    for node, _ in shared:
        held[node] = held.get(node, 0) + 1
    left = ((node, node.num_gpus - held.get(node.id, 0)) for node in nodes)
    return tuple(replace(node, num_gpus=count) for node, count in left if count > 0)


def _error(view: ClusterView, plan: Plan) -> str:
    """Return what is unlawful about the plan, "" if nothing is."""
    try:
        check_plan(view, plan)
    except PlanError as error:
        return str(error)
    return ""


def _gpus(grant: Grant) -> str:
    count = grant.allocation.num_replicas
    return f"{count} GPU{'s' if count > 1 else ''}"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
