"""What the page shows: a scheduler that runs, or what a journal has recorded."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from coadapt.core.state import SchedulerState
from coadapt.model import JobId, NodeId
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.ports import LogPart
from coadapt.service.page.decisions import DecisionLog
from coadapt.service.page.questions import Questions

T = TypeVar("T")


class PageSource(Protocol):
    """Everything that the routes of the page read. For any thread."""

    @property
    def policy(self) -> str:
        """The name of the policy."""

    @property
    def recorded(self) -> bool:
        """Whether a journal is shown: then nothing can be changed."""

    @property
    def index(self) -> JobIndex:
        """The history of jobs."""

    @property
    def decisions(self) -> DecisionLog:
        """The latest decisions."""

    @property
    def questions(self) -> Questions | None:
        """What answers what-if questions; None where nothing does."""

    def now(self) -> float:
        """Return the instant that is shown, s since 1970."""

    def num_events(self) -> int:
        """Return the number of the last event: it changes when anything does."""

    def read(self, question: Callable[[SchedulerState], T]) -> T:
        """Return `question(state)`; the question keeps nothing of the state."""

    def notices(self) -> list[str]:
        """Return what went wrong inside the scheduler since its start."""

    def why_no_plan_yet(self) -> str:
        """Return why a plan that is due takes so long, "" if nothing is known."""

    def nodes_aside(self) -> Mapping[NodeId, str]:
        """Return the nodes that jobs are kept from, each with the reason."""

    def read_log(self, job: JobId, rank: int, offset: int) -> LogPart:
        """Return part of what a replica printed, from byte `offset` on."""
