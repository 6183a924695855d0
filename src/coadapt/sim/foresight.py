"""Predicted ends of jobs, compared with their real ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coadapt.model import ClusterView, JobId
from coadapt.policies.base import Policy, Prediction, predictions_of
from coadapt.runtime.history import JobHistory

SEEN_EVERY_S = 60.0  # shortest time between two recorded predictions of a job, s


class Foretold(NamedTuple):
    """One prediction of a job's end, in seconds from the prediction.

    low_s, high_s: the 90 % interval. took_s: the real time until the end.
    """

    said_s: float
    low_s: float
    high_s: float
    took_s: float

    @property
    def within(self) -> bool:
        """Whether the real end was within the interval."""
        return self.low_s <= self.took_s <= self.high_s


@dataclass(slots=True)
class Foresight:
    """Predictions by job, each with the instant at which it was made, s.

    A job's first prediction is recorded, and a new one whenever half of the last
    predicted time has passed. So a job that lasts ten times as long has only a few
    predictions more.
    """

    made: dict[JobId, list[tuple[float, Prediction]]] = field(default_factory=dict)

    def note(self, policy: Policy, view: ClusterView) -> None:
        """Record the predictions of `policy` after its decision on `view`, if it makes
        any.
        """
        for job, prediction in predictions_of(policy).items():
            made = self.made.setdefault(job, [])
            if made:
                at, last = made[-1]
                if view.at - at < max(0.5 * (last.end_at - at), SEEN_EVERY_S):
                    continue
            made.append((view.at, prediction))

    def fell_due(self, jobs: Mapping[JobId, JobHistory]) -> tuple[Foretold, ...]:
        """Return all predictions about jobs that have ended."""
        return tuple(
            Foretold(
                each.end_at - at, each.low_at - at, each.high_at - at, ended_at - at
            )
            for job, made in self.made.items()
            if (ended_at := jobs[job].ended_at) is not None
            for at, each in made
        )
