"""The replicas of a stream compare one sample of every few steps, in their consensus.

`loading/comparison.py` compares the beginning of the streams. Streams that differ only
later (by a shuffle without a seed, or fetch processes in another order) would train on
some samples twice and on others never.
"""

import logging
import zlib
from collections.abc import Sequence

from coadapt.train.group.group import gather_all
from coadapt.train.loading.comparison import STREAM, read_again
from coadapt.train.samples.alike import Row, only_parts, why_later_unlike
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

# Squares of such numbers, and their sums over replicas, are exact in float64.
HASH_BITS = 20


class LateComparison:
    """Every replica makes the same calls: `note` before a step, `take` and `judge`
    between steps.
    """

    def __init__(self, session: Session) -> None:
        self.dataset: object = None
        self._session = session
        self._noted: tuple[int, Sequence[Row]] | None = None
        self._taken: tuple[int, Sequence[Row]] | None = None
        # The parts of a sample that are compared, once other parts were seen to be
        # random.
        self._parts: frozenset[str] | None = None
        self._over = False

    def note(self, rows: Sequence[Row]) -> None:
        """Note `rows` of the step that is about to run, for the comparison."""
        self._noted = (self._session.progress.step, rows)

    def take(self) -> float:
        """Return a hash of the noted rows, 0 if there are none."""
        self._taken = None if self._over else self._noted
        self._noted = None
        if self._taken is None:
            return 0.0
        step, rows = self._taken
        seen = [sorted(row.items()) for row in only_parts(rows, self._parts)]
        return float(zlib.crc32(repr((step, seen)).encode()) >> (32 - HASH_BITS) | 1)

    def judge(self, total: float, squares: float) -> None:
        """Log once how the streams differ, if they do. total, squares: the sums over
        the replicas of the results of `take` and of their squares. Collective.
        """
        size = self._session.group.size
        if self._taken is None or size * int(squares) == int(total) ** 2:
            return
        step, rows = self._taken
        steady = read_again(self._session, self.dataset, rows).steady
        gathered = gather_all(self._session.group, (step, rows, steady))
        if len({number for number, _, _ in gathered}) > 1:
            return  # not of the same step: the replicas do not wait for each other
        unlike = why_later_unlike([(seen, parts) for _, seen, parts in gathered])
        if unlike is None:
            parts = [parts or frozenset() for _, _, parts in gathered]
            self._parts = frozenset.intersection(*parts)
            return
        self._over = True
        if self._session.group.rank == 0:
            logger.warning(
                "step %d: %s: replicas get %s: some come twice, others never; allowed: "
                "%s",
                step + 1,
                STREAM,
                unlike.given,
                unlike.allowed,
            )
