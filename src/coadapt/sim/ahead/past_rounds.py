"""What a policy saw in its last rounds, so that a forecast can show it again."""

# A policy that keeps something from round to round (gavel the time that each job had,
# castor how long jobs of the past were) decides otherwise without it. Its memory is its
# own, so a new policy is shown what the one in force saw. All of the last rounds count:
# they say what runs, and since when. Of earlier ones those count before and after which
# jobs came or went: a job that ended is learned from there. In a mix of rigid jobs,
# castor preempted another job at once after its last 60 rounds and after its last 400,
# and none after these.

from collections import deque
from collections.abc import Sequence

from coadapt.core.commands import Command, Solve
from coadapt.core.events import Event
from coadapt.core.state import SchedulerState
from coadapt.model import ClusterView

RECENT = 60
CHANGES = 400


class PastRounds:
    """The last rounds, and the earlier ones with other jobs than the round before or
    after them.
    """

    def __init__(self) -> None:
        self._recent: deque[ClusterView] = deque()
        self._changes: deque[ClusterView] = deque(maxlen=CHANGES)
        self._left: ClusterView | None = None

    def observe(
        self, _event: Event, commands: Sequence[Command], _: SchedulerState
    ) -> None:
        """Add the rounds that begin with an event; an observer of the runtime."""
        for each in commands:
            if isinstance(each, Solve):
                self.add(each.view)

    def add(self, view: ClusterView) -> None:
        """Add the view of a round, which is later than all others."""
        self._recent.append(view)
        if len(self._recent) <= RECENT:
            return
        before = self._left
        leaves = self._recent.popleft()
        self._left = leaves
        if _differ(before, leaves) or _differ(leaves, self._recent[0]):
            self._changes.append(leaves)

    @property
    def views(self) -> tuple[ClusterView, ...]:
        """What is kept, in order."""
        return (*self._changes, *self._recent)


def _differ(one: ClusterView | None, other: ClusterView) -> bool:
    """Return whether one has jobs that the other has not."""
    return one is None or {job.id for job in one.jobs} != {job.id for job in other.jobs}
