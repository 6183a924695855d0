"""The values of one metric that a script logged and no report has delivered yet."""

import math
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from coadapt.model.report import LOGGED_MAX, Logged

# Values that are kept while no scheduler takes reports; the oldest are dropped.
KEPT_MAX = 1_000


class LoggedValues:
    """Keeps what was logged under `names`, each time that the first of them is logged.
    `note` is for the training loop, the rest for the thread that reports.

    Without names nothing is kept.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._rows: deque[Logged] = deque(maxlen=KEPT_MAX)

    def note(
        self, samples: float, metrics: Mapping[str, float], new: Collection[str]
    ) -> None:
        """Take in that `new` names were logged after `samples` samples. metrics: the
        newest values of all names.
        """
        if not self._names or self._names[0] not in new:
            return
        values = {name: metrics[name] for name in self._names if name in metrics}
        if all(math.isfinite(value) for value in values.values()):
            with self._lock:
                self._rows.append(Logged(samples=samples, values=values))

    def pending(self) -> tuple[Logged, ...]:
        """Return the oldest rows that were not delivered, as many as a report may
        have.
        """
        with self._lock:
            return tuple(self._rows)[:LOGGED_MAX]

    def delivered(self, rows: Sequence[Logged]) -> None:
        """Forget rows that the scheduler has."""
        ids = {id(row) for row in rows}
        with self._lock:
            while self._rows and id(self._rows[0]) in ids:
                self._rows.popleft()
