"""The replicas of a stream compare one sample of every few steps, in their consensus.

`loading/comparison.py` compares what they begin with. Streams that part later (a
shuffle without a seed, fetch processes that take turns in another order) would train
some samples twice and others never.
"""

import logging
import zlib
from collections.abc import Sequence

from coadapt.train.group.group import gather_all
from coadapt.train.loading.comparison import STREAM, read_again
from coadapt.train.samples.alike import Row, why_later_unlike
from coadapt.train.session import Session

logger = logging.getLogger(__name__)

HASH_BITS = 20


class LateComparison:
    """Every replica calls alike: `note` before a step, `take` and `judge` between
    steps.
    """

    def __init__(self, session: Session) -> None:
        self.dataset: object = None
        self._session = session
        self._noted: tuple[int, Sequence[Row]] | None = None
        self._taken: tuple[int, Sequence[Row]] | None = None
        self._told = False

    def note(self, rows: Sequence[Row]) -> None:
        """Compare these, of the step that is about to run."""
        self._noted = (self._session.progress.step, rows)

    def take(self) -> float:
        """Return a number below 2^20 that tells what was noted, 0 where nothing was."""
        self._taken, self._noted = self._noted, None
        if self._taken is None or self._told:
            return 0.0
        step, rows = self._taken
        told = repr((step, [sorted(row.items()) for row in rows])).encode()
        return float(zlib.crc32(told) >> (32 - HASH_BITS) | 1)

    def judge(self, total: float, squares: float) -> None:
        """Look at the sum over the replicas of what `take` returned, and of its square.

        Says once what differs. Collective.
        """
        size = self._session.group.size
        if self._taken is None or size * int(squares) == int(total) ** 2:
            return
        step, rows = self._taken
        steady = read_again(self._session, self.dataset, rows).steady
        told = gather_all(self._session.group, (step, rows, steady))
        unlike = None
        if len({number for number, _, _ in told}) == 1:
            unlike = why_later_unlike([(seen, parts) for _, seen, parts in told])
        if unlike is None:
            return
        self._told = True
        if self._session.group.rank == 0:
            logger.warning(
                "step %d: %s: the replicas get %s; write %s",
                step + 1,
                STREAM,
                unlike.given,
                unlike.allowed,
            )
