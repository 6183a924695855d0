"""The running scheduler as the page's source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from coadapt.core.state import SchedulerState
from coadapt.model import JobId, NodeId
from coadapt.runtime.job_index import JobIndex
from coadapt.runtime.ports import KeepsNodes, LogPart
from coadapt.service.live_loop import LiveLoop
from coadapt.service.page.decisions import DecisionLog
from coadapt.service.page.questions import Questions

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """A scheduler that runs: see PageSource."""

    loop: LiveLoop
    index: JobIndex
    policy: str
    log: Callable[[JobId, int, int], LogPart]
    engine_trouble: Callable[[], str]
    nodes: KeepsNodes | None
    decisions: DecisionLog
    questions: Questions | None
    why_no_plan: Callable[[], str]

    @property
    def recorded(self) -> bool:
        return False

    def now(self) -> float:
        return self.loop.now()

    def num_events(self) -> int:
        return self.loop.num_events()

    def read(self, question: Callable[[SchedulerState], T]) -> T:
        return self.loop.read(question)

    def notices(self) -> list[str]:
        return [*filter(None, (*self.loop.notices(), self.engine_trouble()))]

    def why_no_plan_yet(self) -> str:
        return self.why_no_plan()

    def nodes_aside(self) -> Mapping[NodeId, str]:
        return {} if self.nodes is None else self.nodes.aside

    def read_log(self, job: JobId, rank: int, offset: int) -> LogPart:
        return self.log(job, rank, offset)
