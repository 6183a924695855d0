"""The state of the cluster at one instant, in parts that a page can show a slice of."""

# One overview serves all open pages. It is made of values of the jobs' records. These
# are replaced and never changed, so the overview may be kept while the scheduler
# continues. No event is handled while an overview is made, so it is made seldom, and
# only while a page asks for it.

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from coadapt.core.accounting import held
from coadapt.core.lifecycle import HOLDING, JobState
from coadapt.core.state import JobRecord, SchedulerState, Status
from coadapt.model import JobId, JobSpec, Node, NodeId
from coadapt.model.wire import Json
from coadapt.runtime.buying_picture import buying_picture
from coadapt.runtime.snapshot import count_states, no_plan_text
from coadapt.runtime.story import why_now
from coadapt.service.page.source import PageSource
from coadapt.service.page.trouble import FAILED_REASONS, Trouble, troubles_of_jobs

# Least age of an overview before another one is made: in s, and in times the time that
# making it took.
AGE_MIN_S = 0.5
AGE_PER_COST = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A job on one node, and how many GPUs it holds there."""

    job: JobId
    name: str
    num_gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A pending job."""

    job: JobId
    spec: JobSpec
    status: Status
    submitted_at: float

    def why(self, plan_error: str) -> str:
        """Return why it waits, a sentence."""
        why = why_now(self.status)[1]
        if not plan_error:
            return why
        before = f"{why}; " if self.status.reason in FAILED_REASONS else ""
        return f"{before}waits: {no_plan_text(plan_error)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The cluster at `at` (s). queue: pending jobs, by priority and submission."""

    at: float
    num_events: int
    round: int
    plan_error: str
    nodes: tuple[Node, ...]
    holders: dict[NodeId, list[Holder]]
    queue: list[Waiting]
    troubles: list[Trouble]
    num_jobs: dict[str, int]
    num_gpus: int
    num_gpus_used: float
    buying: dict[str, Json] | None = None
    """See buying_picture."""
    leaving: Mapping[NodeId, str] = field(default_factory=dict)
    """Bought nodes on which nothing is started any more, and why."""


def overview_of(state: SchedulerState, at: float, num_events: int) -> Overview:
    """Return the overview of `state` at `at` (s)."""
    holders: defaultdict[NodeId, list[Holder]] = defaultdict(list)
    num_used = 0.0
    waiting: list[JobRecord] = []
    for job in state.active:
        if job.status.state is JobState.PENDING:
            waiting.append(job)
        elif job.status.state in HOLDING:
            for node, num_gpus in held(job).by_node.items():
                holders[node].append(
                    Holder(job=job.id, name=job.spec.name, num_gpus=num_gpus)
                )
                if node in state.nodes:
                    num_used += num_gpus
    # The jobs come by submission, and sorting keeps that order where priorities are
    # equal.
    waiting.sort(key=lambda job: -job.spec.priority)
    nodes = sorted(state.nodes.values(), key=lambda node: node.id)
    return Overview(
        at=at,
        num_events=num_events,
        round=state.round,
        plan_error=state.plan_error,
        nodes=tuple(nodes),
        holders=dict(holders),
        queue=[
            Waiting(
                job=job.id,
                spec=job.spec,
                status=job.status,
                submitted_at=job.submitted_at,
            )
            for job in waiting
        ],
        troubles=troubles_of_jobs(state, at),
        num_jobs=count_states(state),
        num_gpus=sum(node.num_gpus for node in nodes),
        num_gpus_used=num_used,
        buying=buying_picture(state, at),
        leaving={} if state.buying is None else dict(state.buying.leaving),
    )


class Overviews:
    """Makes overviews of a source as they are asked for. For any thread."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._latest: Overview | None = None
        self._made_at = 0.0
        self._cost_s = 0.0

    def latest(self) -> Overview:
        """Return an overview that is as new as its cost allows."""
        with self._lock:
            age_s = time.monotonic() - self._made_at
            is_fresh = age_s < max(AGE_MIN_S, AGE_PER_COST * self._cost_s)
            if self._latest is not None and is_fresh:
                return self._latest
            begun = time.monotonic()
            at = self._source.now()
            num_events = self._source.num_events()
            self._latest = self._source.read(
                lambda state: overview_of(state, at, num_events)
            )
            self._made_at = time.monotonic()
            self._cost_s = self._made_at - begun
            return self._latest
