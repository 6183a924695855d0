"""When jobs start or end: the play's course, with an interval learned from how wrong it
was before.
"""

# A play is deterministic; the world is not: jobs come, curves turn out otherwise, noise
# grows. So every prediction that was made is kept until the job is gone, and log(what
# it took / what was said) joins a record. The interval of a new prediction spans the
# 5th to the 95th percentile of that record, of predictions that said about as much:
# nine of ten ends lie in it, as long as jobs to come are like jobs that
# went. What is said of a day proves wrong otherwise than what is said of a minute, and
# is known much later:
# until enough of it is, the interval is that of all, and no narrower than a factor of
# LONG_FACTOR either way.
# What is said itself always lies in it: that all came sooner for hours proves nothing
# of the next.
# Both sides get a round's length added, since ends are seen at rounds only.

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from coadapt.goodput.compiled import compiled_lean, lean_part
from coadapt.model import JobId
from coadapt.policies.base import Prediction
from coadapt.policies.castor.arrays import FloatArray, IntArray, JobRows

ERRORS_MAX = 600
ERRORS_MIN = 20  # below, the factor FIRST_FACTOR to each side stands for the record
FIRST_FACTOR = 3.0
ALIKE = 4.0  # what said up to so many times as much, or as little, is alike
LONG_FACTOR = (
    2.0  # (measured: of ends more than four hours off, 0.46 to 1.53 of what was said)
)
SEEN_EVERY_S = 60.0
LOW = 0.05
HIGH = 0.95
# Of starts, the highest: a wait that goes on is told of in each round, and joins the
# record but once per half of what was said, so the record has too few of them (tried:
# at 0.95 17 % were outside, nearly all later, at 0.98 10 %).
STARTS_HIGH = 0.99
NUM_OCTAVES = 64  # of seconds that are said


@dataclass(slots=True)
class Predictions:
    """made: per job, (instant, predicted end) at times. errors_2E: the latest errors,
    seconds said and log ratios, of `num_errors` in all; the oldest gives way.
    ascending_2E: by ratios, until another one is known.

    at, job_rows, left_s_J: of the last round, its jobs, seconds to each one's end
    (infinity: no word). again_at_J: when the next prediction of each is due. high: the
    percentile of the most.
    due_by: the end of the first interval that was given of each job, s.
    """

    made: dict[JobId, list[tuple[float, float]]] = field(default_factory=dict)
    errors_2E: FloatArray = field(default_factory=lambda: np.empty((2, ERRORS_MAX)))
    num_errors: int = 0
    ascending_2E: FloatArray | None = None
    at: float = 0.0
    job_rows: JobRows = field(default_factory=JobRows)
    left_s_J: FloatArray = field(default_factory=lambda: np.empty(0))
    again_at_J: FloatArray = field(default_factory=lambda: np.empty(0))
    seen_at: float = 0.0
    high: float = HIGH
    due_by: dict[JobId, float] = field(default_factory=dict)

    @property
    def has_past(self) -> bool:
        """Whether enough predictions were proved or disproved to say how wrong they
        are.
        """
        return self.num_errors >= ERRORS_MIN

    def missed(self, job: JobId, high_s: float) -> bool:
        """Return whether an earlier interval of `job` has passed; note the present one.

        high_s: the end of the interval that would be given now, seconds from now.
        """
        by = self.due_by.setdefault(job, self.at + high_s)
        return by < self.at

    def observe(self, at: float, here: Set[JobId]) -> None:
        """Learn from the jobs that have gone since the last round."""
        gone = self.made.keys() - here
        for job in [job for job in self.made if job in gone] if gone else ():
            ended_at = max(0.5 * (self.seen_at + at), at - SEEN_EVERY_S)
            for said_at, end_at in self.forget(job):
                took = max(ended_at - said_at, 0.0)
                said = end_at - said_at
                error = math.log((took + SEEN_EVERY_S) / (said + SEEN_EVERY_S))
                self.errors_2E[:, self.num_errors % ERRORS_MAX] = said, error
                self.num_errors += 1
                self.ascending_2E = None
        self.seen_at = at

    def predict(self, at: float, job_rows: JobRows, left_s_J: FloatArray) -> None:
        """Take in the seconds to each job's end by the play (infinity: no word)."""
        self.again_at_J = job_rows.kept(self.job_rows, self.again_at_J, -np.inf)
        self.at = at
        self.job_rows = job_rows
        self.left_s_J = left_s_J
        row_R = np.empty(len(left_s_J), dtype=np.int64)
        rows = row_R[: _fall_due(at, left_s_J, self.again_at_J, row_R)].tolist()
        names = list(job_rows.row_of) if rows else []
        for row in rows:
            self.made.setdefault(names[row], []).append((at, at + float(left_s_J[row])))

    def forget(self, job: JobId) -> list[tuple[float, float]]:
        """Forget what was said of `job`, and return it."""
        row = self.job_rows.row_of.get(job)
        if row is not None:
            self.left_s_J[row] = np.inf
            self.again_at_J[row] = -np.inf
        self.due_by.pop(job, None)
        return self.made.pop(job)

    def said(self, rows: Sequence[int]) -> FloatArray:
        """Return the seconds that the last round said of the jobs in these rows: of
        each, a `Prediction` as a column of (3, rows); infinity where it said nothing.
        """
        if self.ascending_2E is None:
            known_2E = self.errors_2E[:, : self.num_errors]
            self.ascending_2E = known_2E[:, np.argsort(known_2E[1], kind="stable")]
        said_3R = np.empty((3, len(rows)))
        spread_O2 = np.zeros((NUM_OCTAVES, 2))
        _say(
            self.left_s_J,
            np.array(rows, dtype=np.int64),
            self.ascending_2E,
            self.high,
            spread_O2,
            said_3R,
        )
        return said_3R

    @property
    def latest(self) -> dict[JobId, Prediction]:
        """What the last round said of each job."""
        said_R3 = (self.at + self.said(range(len(self.left_s_J)))).T.tolist()
        told = zip(self.job_rows.row_of, said_R3, strict=True)
        return {job: Prediction(*each) for job, each in told if each[0] < math.inf}


@compiled_lean
def _fall_due(
    at: float, left_s_J: FloatArray, again_at_J: FloatArray, row_R: IntArray
) -> int:
    """Write of whom something is to be said now, and when again: once half of what is
    said is over, so early and late words weigh alike. Return how many they are.
    """
    count = 0
    for j in range(len(left_s_J)):
        if again_at_J[j] <= at and left_s_J[j] < np.inf:
            again_at_J[j] = at + 0.5 * left_s_J[j]
            row_R[count] = j
            count += 1
    return count


@compiled_lean
def _say(
    left_s_J: FloatArray,
    row_R: IntArray,
    error_2E: FloatArray,
    high: float,
    spread_O2: FloatArray,
    said_3R: FloatArray,
) -> None:
    """Write what each is said to take, at the least and at the most, s. spread_O2:
    scratch, of zeros.
    """
    for r in range(len(row_R)):
        left_s = left_s_J[row_R[r]] if row_R[r] < len(left_s_J) else np.inf
        said_3R[0, r] = said_3R[1, r] = said_3R[2, r] = left_s
        if left_s == np.inf:
            continue
        around_s = left_s + SEEN_EVERY_S
        octave = min(int(np.rint(np.log2(around_s))), NUM_OCTAVES - 1)
        if spread_O2[octave, 0] == 0.0:
            _spread(error_2E, 2.0**octave, high, spread_O2[octave])
        said_3R[1, r] = max(around_s * spread_O2[octave, 0] - 2 * SEEN_EVERY_S, 0.0)
        said_3R[2, r] = around_s * spread_O2[octave, 1]


@lean_part
def _spread(
    error_2E: FloatArray, said_s: float, high: float, spread_2: FloatArray
) -> None:
    """Write the least and the most over what is said, of predictions of `said_s`."""
    low_s = said_s / ALIKE - SEEN_EVERY_S
    high_s = said_s * ALIKE - SEEN_EVERY_S
    num_errors = error_2E.shape[1]
    alike = 0
    for e in range(num_errors):
        alike += low_s <= error_2E[0, e] <= high_s
    least = -math.log(FIRST_FACTOR)
    most = math.log(FIRST_FACTOR)
    if alike >= ERRORS_MIN:
        first = math.floor(LOW * (alike - 1))
        last = math.ceil(high * (alike - 1))
        count = 0
        for e in range(num_errors):
            if low_s <= error_2E[0, e] <= high_s:
                if count == first:
                    least = min(error_2E[1, e], 0.0)
                if count == last:
                    most = max(error_2E[1, e], 0.0)
                count += 1
    elif num_errors >= ERRORS_MIN:
        first = math.floor(LOW * (num_errors - 1))
        last = math.ceil(high * (num_errors - 1))
        least = min(error_2E[1, first], -math.log(LONG_FACTOR))
        most = max(error_2E[1, last], math.log(LONG_FACTOR))
    spread_2[0] = math.exp(least)
    spread_2[1] = math.exp(most)
