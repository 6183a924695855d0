"""What a policy foretold of the ends of jobs, held against when they ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coadapt.model import ClusterView, JobId
from coadapt.policies.base import Policy, Prediction, predictions_of
from coadapt.runtime.history import JobHistory

SEEN_EVERY_S = 60.0  # within it no prediction is repeated (1)


class Foretold(NamedTuple):
    """One word on when a job ends, seconds from when it was said; took_s: how long it
    really took.

    low_s, high_s: the interval that holds nine times of ten.
    """

    said_s: float
    low_s: float
    high_s: float
    took_s: float

    @property
    def within(self) -> bool:
        """Whether the end came in the interval."""
        return self.low_s <= self.took_s <= self.high_s


@dataclass(slots=True)
class Foresight:
    """Words by job, each with the instant (s) at which it was said: the first, and a
    new one whenever half of what the last one said has passed. So a job that lasts ten
    times as long has a few words more, not ten times as many.
    """

    said: dict[JobId, list[tuple[float, Prediction]]] = field(default_factory=dict)

    def note(self, policy: Policy, view: ClusterView) -> None:
        """Take in what `policy` foretells after its decision on `view`, if it does."""
        for job, word in predictions_of(policy).items():
            words = self.said.setdefault(job, [])
            if words:
                at, last = words[-1]
                if view.at - at < max(0.5 * (last.end_at - at), SEEN_EVERY_S):
                    continue
            words.append((view.at, word))

    def fell_due(self, jobs: Mapping[JobId, JobHistory]) -> tuple[Foretold, ...]:
        """Return all words on jobs that have ended."""
        return tuple(
            Foretold(
                word.end_at - at, word.low_at - at, word.high_at - at, ended_at - at
            )
            for job, words in self.said.items()
            if (ended_at := jobs[job].ended_at) is not None
            for at, word in words
        )
